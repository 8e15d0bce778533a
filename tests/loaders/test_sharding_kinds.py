"""`sharding=` over every kind of pipeline: the batches of the same pipeline without a mesh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from tests.compilations import compilations
from tests.workers.process_loaders import arrays, equal
from tests.workers.test_processes import KINDS, SLOWLY, pipelines

import cereal
from cereal import BatchTransform, DataLoader, DiskSampleSource, MapTransform, RangeSource

MESH = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = jax.make_mesh((2, 2), ("data", "model"))


@pytest.mark.parametrize(
    "mesh", [MESH, pytest.param(EXPLICIT, marks=pytest.mark.slow)], ids=["auto", "explicit"]
)
@pytest.mark.parametrize("kind", [*KINDS, *SLOWLY])
def test_batches_are_those_without_a_mesh(kind: str, mesh: Any, tmp_path: Path) -> None:
    stages = pipelines(tmp_path)[kind]
    plain = DataLoader(stages, workers=0)
    spec = P(None, "data") if kind == "twice" else P("data")
    with DataLoader(stages, workers=1, sharding=(mesh, spec)) as loader:
        state, theirs = loader.init_state(3), plain.init_state(3)
        assert equal(arrays(loader.iterate(state)), arrays(plain.iterate(theirs)))
        batch, after, mask = loader.next_batch(state)
        expected, _, expected_mask = plain.next_batch(theirs)
        assert equal(arrays([(batch, mask)]), arrays([(expected, expected_mask)]))
        batch, _, mask = loader.next_batch(after)
        _, _, outputs = loader.scan_epoch(state, jnp.int32(0), keep, steps=3)
        _, _, wanted = plain.scan_epoch(theirs, jnp.int32(0), keep, steps=3)
        assert equal(arrays([outputs]), arrays([wanted]))
        assert equal(arrays([(batch, mask)]), arrays([jax.tree.map(lambda x: x[1], wanted)]))


def keep(carry: Any, batch: Any, mask: Any) -> Any:
    return carry, (batch, mask)


@pytest.mark.parametrize("where", ["host", "device", "files"])
def test_caches(where: str, tmp_path: Path) -> None:
    source = DiskSampleSource(32, lambda i: {"y": np.int32(i)}, ordering="shuffle")
    cache = cereal.CacheTransform(tmp_path / "cache" if where == "files" else where)
    stages = [source, cache, BatchTransform(8), MapTransform(lambda b: b["y"] * 2)]
    plain, loader = DataLoader(stages), DataLoader(stages, sharding=(MESH, "data"))
    for _ in range(2):
        ours = arrays(loader.iterate(loader.init_state(1), epochs=2))
        assert equal(ours, arrays(plain.iterate(plain.init_state(1), epochs=2)))
        loader.learnt.forget_epochs()
        plain.learnt.forget_epochs()


def test_streams() -> None:
    double = MapTransform(lambda batch: batch * 2)
    stages = [RangeSource(60), BatchTransform(6), double, cereal.UnbatchTransform()]
    stages.append(BatchTransform(8))
    plain, loader = DataLoader(stages), DataLoader(stages, sharding=(MESH, "data"))
    ours, theirs = loader.init_state(0), plain.init_state(0)
    assert equal(arrays(loader.iterate(ours, steps=6)), arrays(plain.iterate(theirs, steps=6)))
    batch, _, mask = loader.next_batch(ours)
    assert batch.sharding.spec == mask.sharding.spec == P("data")  # type: ignore[union-attr]


def test_errors_of_elements_name_them() -> None:
    def read(index: int) -> Any:
        if index == 9:
            raise KeyError("nine")
        return np.int32(index)

    source = DiskSampleSource(32, read, ordering="sequential")
    stages = [source, BatchTransform(8)]
    loader = DataLoader(stages, sharding=(MESH, "data"), workers=1)
    batches = loader.iterate(loader.init_state(0))
    next(batches)
    with pytest.raises(KeyError, match="nine"):
        next(batches)
    skips = DataLoader(stages, sharding=(MESH, "data"), workers=1, on_error="skip")
    masks = [mask.tolist() for _, mask in skips.iterate(skips.init_state(0))]
    assert masks[1] == [True, False, *[True] * 6]
    assert skips.skipped == 1


@pytest.mark.parametrize("source", [RangeSource(32), DiskSampleSource(32, np.int32)], ids=str)
def test_the_second_epoch_is_not_compiled_again(source: Any) -> None:
    loader = DataLoader([source, BatchTransform(8)], sharding=(MESH, "data"))

    def body(carry: Any, batch: Any, mask: Any) -> Any:
        del mask
        return {**carry, "sum": carry["sum"] + batch.sum()}, None

    carry = {"sum": jnp.int32(0), "key": jax.random.key(0), "host": np.zeros(3, np.float32)}
    state, carry, _ = loader.scan_epoch(loader.init_state(0), carry, body)
    with compilations() as made:
        state, carry, _ = loader.scan_epoch(state, carry, body)
    assert made() == 0
    assert int(carry["sum"]) == 2 * sum(range(32))
