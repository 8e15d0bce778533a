"""What `sharding=`, `shard=` and `check_replicas=` refuse, and what they say."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import cereal
from cereal import ArraySampleSource, BatchTransform, DataLoader, DevicePutTransform, PipelineError

ROWS = {"x": np.zeros((12, 6), np.float32), "y": np.arange(12)}


def mesh_of(*shape: int) -> Mesh:
    axes = ("data", "model")[: len(shape)]
    devices = jax.devices()[: int(np.prod(shape))]
    return jax.make_mesh(shape, axes, axis_types=(AxisType.Auto,) * len(shape), devices=devices)


MESH = mesh_of(2, 2)
NAMED = NamedSharding(MESH, P("data"))


def loader_of(sharding: Any, *stages: Any, size: int = 4, **options: Any) -> Any:
    source = ArraySampleSource(ROWS, ordering="sequential")
    return DataLoader([source, BatchTransform(size), *stages], sharding=sharding, **options)


@pytest.mark.parametrize(
    ("sharding", "message"),
    [
        ((MESH, "rows"), "does not fit the mesh, whose axes are 'data', 'model': .*rows"),
        ((MESH, {"x": P("data"), "z": P("data")}), r"says nothing about `batch\['y'\]`; it has"),
        (
            (MESH, {"x": P("data"), "y": P("data"), "z": P()}),
            r"has `batch\['z'\]`, and there is no such array in a batch, which is {x: float32",
        ),
        (
            (MESH, {"x": P("data"), "y": P("data", "model")}),
            r"P\('data', 'model'\) has more axes than `batch\['y'\]`, which is int32\[4\]; leave",
        ),
        (
            (MESH, (None, "data")),
            r"says nothing about `batch\['x'\]`; .* one spec of all .* `sharding=\(mesh, P\(None, "
            r"'data'\)\)`",
        ),
        (
            (MESH, (("data", "model"), None)),
            r"write `sharding=\(mesh, P\(\('data', 'model'\), None",
        ),
        ((MESH, P(None, ("data", "model"))), r"cannot divide float32\[4,6\]: .*"),
        ({}, "`sharding` is empty, {}; write"),
        (
            P("data"),
            "a spec alone has no mesh: write `sharding=.mesh, specs.",
        ),
        ("data", "got str; for one device add `DevicePutTransform"),
        (jax.devices()[0], "for one device add `DevicePutTransform"),
        (MESH, "must be a NamedSharding, a tree of them, or `.mesh, axis.`, got Mesh"),
        (
            NamedSharding(AbstractMesh((2, 2), ("data", "model")), P("data")),
            "its mesh is abstract and has no devices",
        ),
        (
            {"x": NAMED, "y": NamedSharding(mesh_of(2), P("data"))},
            "the arrays of a batch go to different meshes",
        ),
        (NamedSharding(MESH, P("data"), memory_kind="pinned_host"), "'pinned_host' memory; leave"),
    ],
)
def test_shardings_that_do_not_fit(sharding: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        loader_of(sharding)


def test_a_tuple_of_axes_is_a_tree_for_a_batch_that_is_a_tuple() -> None:
    source = ArraySampleSource((ROWS["x"], ROWS["y"]), ordering="sequential")
    loader = DataLoader([source, BatchTransform(4)], sharding=(MESH, (None, "data")))
    (x, y), _ = next(iter(loader))
    assert x.is_fully_replicated
    assert y.sharding.spec == P("data")
    with pytest.raises(PipelineError, match="does not fit the mesh") as raised:
        loader_of((MESH, ("data", "rows")))
    assert "one spec of all" not in str(raised.value)


@pytest.mark.parametrize(("size", "near"), [(7, "6 or 8"), (1, "2")])
def test_a_batch_that_the_mesh_does_not_divide(size: int, near: str) -> None:
    message = f"a batch of {size} cannot be divided into 2 equal parts.* that can are {near}"
    with pytest.raises(PipelineError, match=message):
        loader_of((MESH, "data"), size=size)
    source = ArraySampleSource(ROWS, ordering="sequential")
    padded = DataLoader([source, BatchTransform(size, pad_last_batch=True)], sharding=NAMED)
    assert next(int(mask.sum()) for _, mask in padded) == size


def test_elements_cannot_be_divided() -> None:
    with pytest.raises(PipelineError, match=r"gives single elements.*add a BatchTransform"):
        DataLoader(ArraySampleSource(ROWS), sharding=NAMED)


def test_one_place_decides_where_batches_go() -> None:
    with pytest.raises(PipelineError, match=r"and so does the DevicePutTransform to .* leave one"):
        loader_of(NAMED, DevicePutTransform(jax.devices()[1]))
    with pytest.raises(PipelineError, match="`shard=` gives local ones; pass one of them"):
        loader_of(NAMED, shard=(0, 2))


@pytest.mark.parametrize("every", [0, -1, 1.5, "often"])
def test_check_replicas_must_be_a_count(every: Any) -> None:
    with pytest.raises(PipelineError, match="check_replicas"):
        loader_of(NAMED, check_replicas=every)


def test_check_replicas_needs_a_mesh() -> None:
    with pytest.raises(PipelineError, match="share a mesh; pass `sharding=`, too"):
        loader_of(None, check_replicas=3)


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        ((2, 2), r"shard\[0\]"),
        ((-1, 2), r"shard\[0\]"),
        ((0, 0), r"shard\[1\]"),
        (3, 'must be two numbers, got 3; write `shard=.index, count.`, or `shard="jax"`'),
        ("Jax", "must be two numbers, got 'Jax'"),
        ((0, 3), "a batch of 4 cannot be divided into 3 equal parts; .* that can are 3 or 6"),
    ],
)
def test_shards_that_do_not_exist(shard: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        loader_of(None, shard=shard)


def test_a_shard_needs_batches() -> None:
    with pytest.raises(PipelineError, match="gives single elements; add a BatchTransform"):
        DataLoader(ArraySampleSource(ROWS), shard=(0, 2))


def test_one_device_is_a_mesh_of_one() -> None:
    loader = loader_of(SingleDeviceSharding(jax.devices()[2]))
    batch, mask = next(iter(loader))
    assert batch["x"].devices() == mask.devices() == {jax.devices()[2]}


@pytest.mark.parametrize("put", ["one device", "another order", "a constant of a stage"])
def test_data_that_was_put_elsewhere(put: str) -> None:
    turned = Mesh(MESH.devices.ravel()[::-1], ("all",))
    there: Any = NamedSharding(turned, P()) if put == "another order" else jax.devices()[2]
    array = jax.device_put(np.arange(8.0), there)
    source: Any = ArraySampleSource(array, ordering="sequential")
    stages: list[Any] = []
    if put == "a constant of a stage":
        source, stages = (
            ArraySampleSource(np.arange(8.0)),
            [cereal.MapTransform(lambda b: b + array[0])],
        )
    with pytest.raises(
        PipelineError, match=r"an array of the pipeline, float32\[8\], was put on .*2"
    ):
        DataLoader([source, BatchTransform(4), *stages], sharding=NAMED)


def test_padding_that_the_mask_cannot_show() -> None:
    windows = cereal.WindowSource(np.arange(40.0), 8, predict=4)
    packed = cereal.TimeSeriesBatchTransform(mode="packed")
    batch = BatchTransform(10, pad_last_batch=True)
    with pytest.raises(PipelineError, match=r"padded to \[12\] .* mask \[80\] has no place"):
        DataLoader([windows, batch, packed], sharding=(MESH, ("data", "model")))


def test_packed_batches_that_a_shard_cannot_cut() -> None:
    windows = cereal.WindowSource(np.arange(40.0), 8, predict=4)
    stages = [cereal.MapTransform(lambda b: b), cereal.TimeSeriesBatchTransform(mode="packed")]
    with pytest.raises(PipelineError, match=r"mask \[64\] has not one .* MapTransform"):
        DataLoader([windows, BatchTransform(8), *stages], shard=(0, 2))


def test_a_loader_over_a_global_array_captured_in_shard_map() -> None:
    data = jax.device_put({"y": np.arange(8)}, NamedSharding(MESH, P("data")))
    loader = DataLoader([ArraySampleSource(data, ordering="sequential"), BatchTransform(4)])

    def own(state: Any) -> Any:
        return loader.next_batch(state)[0]["y"]

    mapped = jax.shard_map(own, mesh=MESH, in_specs=P(), out_specs=P(), check_vma=False)
    with pytest.raises(cereal.UsageError, match="pass the loader as an argument"):
        jax.jit(mapped)(loader.init_state(0))


def test_parameters_elsewhere() -> None:
    carry = jax.device_put(jnp.float32(0), jax.devices()[3])
    loader = loader_of(NamedSharding(mesh_of(2), P("data")))
    message = "`sharding=` puts batches on cpu:0, cpu:1, but `carry` was put on cpu:3; write"
    with pytest.raises(cereal.UsageError, match=message):
        loader.scan_epoch(loader.init_state(0), carry, lambda carry, batch, mask: (carry, None))


def test_a_loader_over_a_mesh_cannot_be_pickled_but_copied() -> None:
    loader = loader_of(NAMED)
    with pytest.raises(TypeError, match="pickle the pipeline, and build the loader where"):
        pickle.dumps(loader)
    batch, _ = next(iter(copy.deepcopy(loader)))
    assert batch["x"].sharding.spec == P("data")
