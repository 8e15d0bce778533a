"""`global_batch`: global arrays of batches that users make themselves."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from tests.aligned import aligned

import cereal

MESH = jax.make_mesh((2, 2), ("data", "seq"), axis_types=(AxisType.Auto,) * 2)


def test_every_array_is_laid_out() -> None:
    local = {"x": np.arange(32).reshape(4, 8), "y": np.arange(4.0), "scale": 2.0}
    batch = cereal.global_batch(local, (MESH, P("data", "seq")))
    assert batch["x"].sharding == NamedSharding(MESH, P("data", "seq"))
    assert batch["y"].sharding.spec == P("data")
    assert batch["scale"].is_fully_replicated
    jax.tree.map(np.testing.assert_array_equal, batch, local)


def test_a_sharding_for_each_array() -> None:
    local = {"x": np.zeros((4, 8)), "y": np.zeros(4)}
    batch = cereal.global_batch(local, (MESH, {"x": P("data", "seq"), "y": P()}))
    assert batch["y"].is_fully_replicated


def test_bad_input() -> None:
    with pytest.raises(cereal.UsageError, match=r"`batch\['a'\]` must be an array or a number"):
        cereal.global_batch({"a": "text"}, (MESH, "data"))
    with pytest.raises(cereal.UsageError, match=r"the part of this process, cannot be laid out"):
        cereal.global_batch({"a": np.zeros(3)}, (MESH, "data"))
    with pytest.raises(cereal.PipelineError, match=r"global_batch: `sharding`: .* does not fit"):
        cereal.global_batch({"a": np.zeros(4)}, (MESH, "rows"))


@pytest.mark.parametrize(
    "wrong", [np.array([1, 2**40 + 7, 3, 4]), np.array([0, 0, 0, 2**32], np.uint64), 2**40 + 7]
)
def test_integers_beyond_32_bits_are_refused(wrong: Any) -> None:
    message = r"global_batch: `batch\['a'\]`: the integer \d+ does not fit u?int32, which JAX uses"
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.global_batch({"a": wrong}, (MESH, "data"))


def test_numbers_of_64_bits_that_fit_are_taken() -> None:
    local = {"a": np.array([7, -(2**31), 2**31 - 1, 0]), "b": np.array([1.5, np.nan, np.inf, 0])}
    batch = cereal.global_batch(local, (MESH, "data"))
    assert batch["a"].dtype == np.int32
    assert batch["b"].dtype == np.float32
    jax.tree.map(np.testing.assert_array_equal, batch, local)


def test_a_batch_may_be_written_to_afterwards() -> None:
    local = aligned((4, 8), np.float32)
    batch = cereal.global_batch(local, (MESH, P("data", "seq")))
    local[:] = 1
    assert not np.asarray(batch).any()
