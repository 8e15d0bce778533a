"""From what Python read to arrays on the device: small and large batches, placed and donated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from cereal import (
    BatchTransform,
    DataLoader,
    DatasetSource,
    DevicePutTransform,
    DiskSampleSource,
    HostFilterTransform,
    HostMapTransform,
    MapTransform,
    RenameTransform,
)
from cereal.pipeline import execute

ROWS, N = 4, 18
SIZES = {"small": 16, "large": 1 << 16}  # float32 an element: 64 bytes, 256 KB


def read_of(width: int) -> Callable[[int], Any]:
    return lambda i: {"x": np.full(width, i, np.float32), "n": i}


def make(width: int, *stages: Any, batch: Any = None, **options: Any) -> DataLoader[Any]:
    source = DiskSampleSource(N, read_of(width), ordering="sequential")
    batch = BatchTransform(ROWS, pad_last_batch=True) if batch is None else batch
    return DataLoader([source, batch, *stages], **{"workers": 2, **options})


def check(pairs: list[Any], width: int, begin: int = 0) -> None:
    """Every batch is what a plain loop makes: five of them, the last one half."""
    for step, (batch, mask) in enumerate(pairs, start=begin):
        rows = np.arange(step * ROWS, (step + 1) * ROWS)
        assert np.asarray(mask).tolist() == (rows < N).tolist()
        rows = rows % N
        assert batch["n"].tolist() == rows.tolist()
        assert batch["n"].dtype == jnp.int32
        assert batch["x"].shape == (ROWS, width)
        assert (np.asarray(batch["x"]) == rows[:, None]).all()


def sharding(devices: int = 4) -> NamedSharding:
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((devices,), ("d",), devices=jax.devices()[:devices], axis_types=auto)
    return NamedSharding(mesh, PartitionSpec("d"))


def test_the_sizes_here_lie_on_both_sides_of_large() -> None:
    sizes = [ROWS * (width * 4 + 4) for width in SIZES.values()]
    assert sizes[0] < execute._LARGE < sizes[1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("workers", [0, 2])
def test_all_roads_deliver_the_same(size: str, workers: int) -> None:
    width = SIZES[size]
    with make(width, workers=workers) as loader:
        check(list(loader.iterate()), width)
        check([loader.batch_at(0, step) for step in range(5)], width)
        body = lambda carry, batch, mask: (carry, (batch, mask))  # noqa: E731
        stacked = loader.scan_epoch(loader.init_state(0), 0, body)[2]
        check([jax.tree.map(lambda x, k=k: x[k], stacked) for k in range(5)], width)
        inside = jax.jit(loader.next_batch)(loader.init_state(0))
        check([(inside[0], inside[2])], width)


@pytest.mark.parametrize("size", SIZES)
def test_batches_are_committed_alike_whatever_their_size(size: str) -> None:
    with make(SIZES[size]) as loader:
        batch, mask = next(loader.iterate())
        other = jax.device_put(jnp.ones(ROWS), jax.devices()[1])
        total = other + batch["n"]  # of an array that is not committed: no error
        assert total.devices() == {jax.devices()[1]}
        assert mask.devices() == {jax.devices()[0]}


@pytest.mark.parametrize("size", SIZES)
def test_batches_go_to_a_device(size: str) -> None:
    width, device = SIZES[size], jax.devices()[2]
    with make(width, DevicePutTransform(device)) as loader:
        pairs = [*loader.iterate(), loader.batch_at(0, 4)]
        check(pairs[:5], width)
        check(pairs[5:], width, begin=4)
        for batch, mask in pairs:
            for leaf in (*batch.values(), mask):
                assert leaf.devices() == {device}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("devices", [2, 4])
def test_batches_are_laid_out_over_devices(size: str, devices: int) -> None:
    width, place = SIZES[size], sharding(devices)
    with make(width, DevicePutTransform(place)) as loader:
        pairs = list(loader.iterate())
        check(pairs, width)
        for batch, mask in pairs:
            for leaf in (*batch.values(), mask):
                assert leaf.sharding.is_equivalent_to(place, leaf.ndim)
                shards = sorted(leaf.addressable_shards, key=lambda shard: shard.device.id)
                for number, shard in enumerate(shards):
                    part = slice(number * ROWS // devices, (number + 1) * ROWS // devices)
                    np.testing.assert_array_equal(shard.data, np.asarray(leaf)[part])


@pytest.mark.parametrize("size", SIZES)
def test_placed_batches_that_are_kept_stay_as_they_were(size: str) -> None:
    width = SIZES[size]
    for place in (jax.devices()[0], jax.devices()[3], sharding()):
        with make(width, DevicePutTransform(place), workers=1, prefetch=1) as loader:
            kept = list(loader.iterate(epochs=4))
        for epoch in range(4):
            check(kept[epoch * 5 : (epoch + 1) * 5], width)


@pytest.mark.parametrize("size", SIZES)
def test_a_default_device_is_where_batches_go(size: str) -> None:
    with jax.default_device(jax.devices()[1]), make(SIZES[size]) as loader:
        pairs = list(loader.iterate())
        check(pairs, SIZES[size])
        assert {d for batch, _ in pairs for d in batch["x"].devices()} == {jax.devices()[1]}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_batches_may_be_donated(size: str) -> None:
    width = SIZES[size]

    def train(batch: Any, mask: Any) -> Any:
        return {"x": batch["x"] + 0, "n": batch["n"] + 0}, mask | False

    step = jax.jit(train, donate_argnums=(0, 1))
    with make(width, workers=1, prefetch=1) as loader:
        iterator, kept = loader.iterate(epochs=4), []
        for batch, mask in iterator:
            kept.append(step(batch, mask))
    for epoch in range(4):
        check(kept[epoch * 5 : (epoch + 1) * 5], width)


@pytest.mark.parametrize("size", SIZES)
def test_a_compiled_stage_after_the_seam_sees_the_batch(size: str) -> None:
    double = MapTransform(lambda b: {"x": b["x"] * 0 + b["n"][:, None], "n": b["n"]})
    for stages in ([double], [double, DevicePutTransform(jax.devices()[1])]):
        with make(SIZES[size], *stages) as loader:
            check(list(loader.iterate()), SIZES[size])


def test_a_large_batch_is_renamed_and_filtered_too() -> None:
    width = SIZES["large"]
    rename = RenameTransform({"x": "y"})
    source = DiskSampleSource(N, read_of(width), ordering="sequential")
    odd = HostFilterTransform(lambda element: element["n"] % 2 == 1)
    with DataLoader([source, odd, BatchTransform(ROWS), rename]) as loader:
        for step, (batch, mask) in enumerate(loader.iterate(steps=4)):
            assert mask.tolist() == [False, True, False, True]
            rows = np.array([4 * step + 1, 4 * step + 3])
            assert (np.asarray(batch["y"])[[1, 3]] == rows[:, None]).all()


@pytest.mark.parametrize("size", SIZES)
def test_the_mask_of_a_skipped_element_is_delivered(size: str) -> None:
    def read(i: int) -> np.ndarray:
        if i == 6:
            raise OSError("no six")
        return np.full(SIZES[size], i, np.float32)

    stages = [DiskSampleSource(N, read, ordering="sequential"), BatchTransform(ROWS)]
    with DataLoader(stages, on_error="skip") as loader:
        pairs = list(loader.iterate(steps=3))
        for batch, mask in (pairs[1], loader.batch_at(0, 1)):
            assert mask.tolist() == [True, True, False, True]
            assert np.asarray(batch)[[0, 1, 3], 0].tolist() == [4, 5, 7]


# Arrays that the user's function has, too


@pytest.mark.parametrize("size", SIZES)
def test_a_function_may_use_its_own_array_for_every_batch(size: str) -> None:
    room = np.zeros((ROWS, SIZES[size]), np.float32)

    def fill(rows: Any) -> np.ndarray:
        room[...] = np.stack(rows)
        return room

    source = DiskSampleSource(N, lambda i: np.full(SIZES[size], i, np.float32), ordering="shuffle")
    pipelines = [
        [BatchTransform(ROWS, collate=fill)],
        [BatchTransform(ROWS), HostMapTransform(fill)],
    ]
    for stages in pipelines:
        with DataLoader([source, *stages], workers=1) as loader:
            kept = [batch for batch, _ in loader.iterate(loader.init_state(0), steps=9)]
            room[...] = -1
            for step, batch in enumerate(kept):
                rows = loader.indices_at(0, step)
                assert (np.asarray(batch) == rows[:, None]).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("where", ["collate", "batch"])
def test_what_stands_in_for_a_batch_may_be_one_array_for_all(where: str, size: str) -> None:
    room, armed = np.zeros((ROWS, SIZES[size]), np.float32), []

    def fails(rows: Any) -> np.ndarray:
        if armed:
            raise OSError(str(int(rows[0][0])))
        return np.stack(rows)

    def instead(error: Exception) -> np.ndarray:
        room[...] = int(str(error))
        return room

    source = DatasetSource([np.full(SIZES[size], i, np.float32) for i in range(N)])
    stages: list[Any] = [BatchTransform(ROWS, collate=fails)]
    if where == "batch":
        stages = [BatchTransform(ROWS), HostMapTransform(fails)]
    with DataLoader([source, *stages], workers=1, on_error=instead) as loader:
        armed.append(True)
        kept = [batch for batch, _ in loader.iterate(steps=4)]
        assert [int(batch[0, 0]) for batch in kept] == [0, 4, 8, 12]


@pytest.mark.parametrize("size", SIZES)
def test_one_array_that_stands_for_all_elements_is_never_written_to(size: str) -> None:
    mine = np.full(SIZES[size], 3, np.float32)
    with DataLoader([[mine] * 8, BatchTransform(ROWS)], workers=2) as loader:
        kept = [np.asarray(batch) for batch, _ in loader]
        mine[...] = 5
        assert all((batch == 3).all() for batch in kept)
        assert (np.asarray(next(iter(loader))[0]) == 5).all()
