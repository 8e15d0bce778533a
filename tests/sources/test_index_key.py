from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal.testing import check_source

DATA = {"x": np.arange(20, dtype=np.float32) * 10}


@pytest.mark.parametrize("ordering", ["sequential", "shuffle", [7, 7, 3, 19]])
def test_each_element_carries_its_index_in_the_data(ordering: Any) -> None:
    source = cereal.ArraySampleSource(DATA, ordering=ordering, index_key="index")
    check_source(source)
    loader = cereal.DataLoader([source, cereal.BatchTransform(3)])
    for step in range(3):
        batch, _ = loader.batch_at(5, step)
        assert batch["index"].dtype == jnp.int32
        np.testing.assert_array_equal(batch["index"], loader.indices_at(5, step))
        np.testing.assert_array_equal(batch["x"], batch["index"] * 10)


def test_the_data_given_is_left_as_it_was() -> None:
    cereal.ArraySampleSource(DATA, index_key="index")
    assert set(DATA) == {"x"}


@pytest.mark.parametrize(
    ("data", "index_key", "message"),
    [
        (DATA, 3, "`index_key` must be a string, got 3"),
        (DATA, "x", "the data has a key 'x' already; choose another `index_key`"),
        (DATA["x"], "i", r"needs elements that are dicts, .* ndarray; write `\{\"x\": data\}`"),
        ((DATA["x"],), "i", "needs elements that are dicts, but they are tuple"),
    ],
)
def test_an_index_that_has_no_place_is_refused(data: Any, index_key: Any, message: str) -> None:
    with pytest.raises(cereal.PipelineError, match="^ArraySampleSource: .*" + message):
        cereal.ArraySampleSource(data, index_key=index_key)


@pytest.mark.parametrize("index_key", [3, "value"])
def test_a_range_refuses_it_too(index_key: Any) -> None:
    with pytest.raises(cereal.PipelineError, match=r"^RangeSource: .*(must be a string|already)"):
        cereal.RangeSource(5, index_key=index_key)


def test_the_first_stage_over_a_dataset_is_given_the_index_too() -> None:
    source = cereal.DatasetSource([{"a": 10 * i} for i in range(4)], index_key="i")
    add = cereal.HostMapTransform(lambda element: element["a"] + element["i"])
    batch, _ = next(iter(cereal.DataLoader([source, add, cereal.BatchTransform(4)], workers=0)))
    assert batch.tolist() == [0, 11, 22, 33]
