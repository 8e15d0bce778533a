"""What the processes of the tests do. Each function runs in every process."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import cereal
from cereal import BatchTransform, DataLoader, DiskSampleSource, MapTransform, MemmapSource

LENGTH, WIDTH = 64, 16


def rows() -> dict[str, np.ndarray]:
    x = np.arange(LENGTH * WIDTH, dtype=np.int32).reshape(LENGTH, WIDTH)
    return {"x": x, "y": np.arange(LENGTH, dtype=np.int32)}


def mesh_of(name: str, *, explicit: bool = False, order: str = "as it is") -> Mesh:
    """`data`, `data x model`, or `data x seq`: the second axis has two devices, if there are."""
    devices = np.array(jax.devices())
    if order == "mixed":  # neighbours in the mesh belong to different processes
        devices = devices.reshape(jax.process_count(), -1).T.reshape(-1)
    second = 1 if len(devices) % 2 else 2
    kind = AxisType.Explicit if explicit else AxisType.Auto
    if name == "data":
        return Mesh(devices, ("data",), axis_types=(kind,))
    axes = tuple(name.split(" x "))
    return Mesh(devices.reshape(-1, second), axes, axis_types=(kind, kind))


def spec_of(name: str) -> Any:
    return {"x": P("data", "seq"), "y": P("data")} if name == "data x seq" else P("data")


def gathered(tree: Any) -> Any:
    """Global arrays as NumPy arrays, whole in every process."""
    return jax.tree.map(lambda x: multihost_utils.process_allgather(x, tiled=True), tree)


def all_alike(mesh: str, source: str, stage: bool, explicit: bool, order: str, size: int) -> Any:
    """Every way of running gives the batches of a loader in one process."""
    seen: list[int] = []

    def read(index: int) -> Any:
        seen.append(index)
        return {"x": rows()["x"][index], "y": np.int32(index)}

    def pipeline(read: Any) -> list[Any]:
        sources = {
            "function": lambda: DiskSampleSource(LENGTH, read, ordering="shuffle"),
            "arrays": lambda: cereal.ArraySampleSource(rows(), ordering="shuffle"),
        }
        stages = [MapTransform(lambda b: {**b, "x": 2 * b["x"]})] if stage else []
        return [sources[source](), BatchTransform(size, pad_last_batch=True), *stages]

    alone = DataLoader(
        pipeline(lambda i: {"x": rows()["x"][i], "y": np.int32(i)}),
        workers=0 if source == "function" else None,
    )
    found = mesh_of(mesh, explicit=explicit, order=order)
    loader = DataLoader(
        pipeline(read), sharding=(found, spec_of(mesh)), workers=1 if source == "function" else None
    )
    want = [jax.device_get(pair) for pair in alone.iterate(alone.init_state(5), steps=10)]
    seen.clear()
    state = loader.init_state(5)
    batches = loader.iterate(state, steps=10)
    for step, (batch, mask) in enumerate(batches):
        whole, real = gathered((batch, mask))
        np.testing.assert_array_equal(real[:size], want[step][1])
        assert not real[size:].any()
        for name in whole:
            np.testing.assert_array_equal(whole[name][:size], want[step][0][name])
    reads = len(seen)
    batch, state, mask = loader.next_batch(state)
    np.testing.assert_array_equal(gathered(batch)["x"][:size], want[0][0]["x"])
    batch, state, mask = loader.next_batch(state)
    np.testing.assert_array_equal(gathered(batch)["x"][:size], want[1][0]["x"])

    def add(total: Any, batch: Any, mask: Any) -> Any:
        return total + jax.numpy.sum(jax.numpy.where(mask, batch["y"], 0)), None

    _, total, _ = loader.scan_epoch(loader.init_state(5), jax.numpy.int32(0), add, steps=10)
    assert int(total) == sum(int((pair[0]["y"] * pair[1]).sum()) for pair in want)
    loader.close()
    return {"reads": reads, "epoch": int(batches.state.epoch)}
