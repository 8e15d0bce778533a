"""`sharding=` over batches that are padded, with arrays that do not have the lanes of the batch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from tests.slowly import slowly

from cereal import BatchTransform, DataLoader, DiskSampleSource, HostMapTransform, MapTransform

MESH = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
EXPLICIT = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))
DOUBLE = MapTransform(lambda batch: jax.tree.map(lambda x: 2 * x, batch))


def pipeline(*stages: Any) -> list[Any]:
    return [DiskSampleSource(24, lambda i: {"x": np.float32(i)}, ordering="sequential"), *stages]


def by_iterate(loader: Any) -> Any:
    return next(iter(loader))[0]


def by_next_batch(loader: Any) -> Any:
    return loader.next_batch(loader.init_state(0))[0]


def by_scan_epoch(loader: Any) -> Any:
    keep = lambda carry, batch, mask: (carry + mask.sum(), batch)  # noqa: E731
    batches = loader.scan_epoch(loader.init_state(0), np.int32(0), keep, steps=2)[2]
    return jax.tree.map(lambda x: x[0], batches)


def check(stages: list[Any], mesh: Any, way: Any) -> None:
    """The batch has the promised shapes, and begins with what a loader without a mesh gives."""
    alone = DataLoader(pipeline(*stages), workers=0)
    spread = DataLoader(pipeline(*stages), workers=0, sharding=(mesh, {"x": P("data"), "w": P()}))
    want, found = by_iterate(alone), way(spread)
    for name, array in found.items():
        assert array.shape == spread.element_spec()[name].shape
        inside = tuple(map(slice, want[name].shape))
        np.testing.assert_array_equal(np.asarray(array)[inside], want[name])


WAYS = [by_iterate, slowly(by_next_batch), by_scan_epoch]
# 10 lanes are padded to 12.
TABLES = [(), (12,), slowly((13,)), slowly((12, 5)), (5,)]


@pytest.mark.parametrize("mesh", [MESH, slowly(EXPLICIT)], ids=["auto", "explicit"])
@pytest.mark.parametrize("stages", [slowly([]), [DOUBLE]], ids=["no stage", "a stage"])
@pytest.mark.parametrize("shape", TABLES, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_arrays_of_a_whole_batch_are_as_they_were(
    shape: Any, stages: Any, mesh: Any, way: Any
) -> None:
    table = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    with_table = HostMapTransform(lambda batch: {**batch, "w": table})
    check([BatchTransform(10, pad_last_batch=True), with_table, *stages], mesh, way)


@pytest.mark.parametrize("mesh", [MESH, slowly(EXPLICIT)], ids=["auto", "explicit"])
@pytest.mark.parametrize("stages", [slowly([]), [DOUBLE]], ids=["no stage", "a stage"])
@pytest.mark.parametrize("inner", [True, False], ids=["of each microbatch", "of all"])
@pytest.mark.parametrize("way", WAYS)
def test_a_number_of_each_microbatch(inner: bool, stages: Any, mesh: Any, way: Any) -> None:
    micro, batch = BatchTransform(4), BatchTransform(3, pad_last_batch=True)  # padded to 4
    mean = HostMapTransform(lambda batch: {**batch, "w": batch["x"].mean(axis=-1)})
    check([micro, mean, batch, *stages] if inner else [micro, batch, mean, *stages], mesh, way)
