"""A mask belongs to its batch: it lies where the batch lies, and donating it harms nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DevicePutTransform,
    DiskSampleSource,
    FilterTransform,
    HostCallbackTransform,
    MapTransform,
    RangeSource,
    masked_mean,
)
from cereal.loaders.iterators import iterator as iterator_module

N, B = 64, 4
WIDE = 1 << 15  # a batch of these is large: it is handed over without a program


def element(i: int) -> Any:
    return {"x": np.float32(i)}


def large(i: int) -> Any:
    return {"x": np.full(WIDE, i, np.float32)}


def same(x: Any) -> Any:
    return x


def most(x: Any) -> Any:
    return x["x"] < N - 2


def watched(batch: Any, mask: Any) -> None:
    del batch, mask


def arrays() -> Any:
    return ArraySampleSource({"x": np.arange(N, dtype=np.float32)}, "sequential")


PIPELINES: dict[str, Callable[[], list[Any]]] = {
    "arrays": lambda: [arrays(), BatchTransform(B)],
    "padded": lambda: [arrays(), BatchTransform(B + 1, pad_last_batch=True)],
    "map": lambda: [arrays(), MapTransform(same), BatchTransform(B)],
    "filter": lambda: [arrays(), FilterTransform(most), BatchTransform(B)],
    "callback": lambda: [arrays(), BatchTransform(B), HostCallbackTransform(watched)],
    "disk": lambda: [DiskSampleSource(N, element, ordering="sequential"), BatchTransform(B)],
    "disk, large": lambda: [DiskSampleSource(N, large, ordering="sequential"), BatchTransform(B)],
    "disk, map": lambda: [
        DiskSampleSource(N, element, ordering="sequential"),
        BatchTransform(B),
        MapTransform(same),
    ],
}


@pytest.fixture(autouse=True)
def short_runs_read_ahead_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterator_module, "LEAST_CALLS", 1)


@pytest.mark.parametrize("kind", PIPELINES)
def test_no_two_batches_share_a_mask(kind: str) -> None:
    with DataLoader(PIPELINES[kind]()) as loader:
        masks = [mask for _, mask in (*loader.iterate(), *loader.iterate())]
    assert len({mask.unsafe_buffer_pointer() for mask in masks}) == len(masks)
    expected = [mask.tolist() for mask in masks]
    jax.jit(lambda mask: ~mask, donate_argnums=0)(masks[0])
    assert [mask.tolist() for mask in masks[1:]] == expected[1:]


@pytest.mark.parametrize("kind", PIPELINES)
def test_donating_a_mask_leaves_batches_that_are_held_alone(kind: str) -> None:
    consume = jax.jit(lambda mask: ~mask, donate_argnums=0)
    seen = []
    with DataLoader(PIPELINES[kind]()) as loader:
        batches = loader.iterate()
        now = next(batches)
        for later in batches:  # one batch is held ahead
            seen.append(consume(now[1]))
            now = later
        seen.append(consume(now[1]))
        expected = [(~mask).tolist() for _, mask in loader.iterate()]
    assert [mask.tolist() for mask in seen] == expected


def test_two_loaders_side_by_side_may_donate_their_masks() -> None:
    both = jax.jit(lambda m, n: (~m, ~n), donate_argnums=(0, 1))
    loaders = [DataLoader(PIPELINES["arrays"]()) for _ in range(2)]
    pairs = list(zip(*(loader.iterate() for loader in loaders), strict=True))
    assert len(pairs) == N // B
    for (_, m), (_, n) in pairs:
        assert not any(mask.any() for mask in both(m, n))


# Where it lies


def mesh_of(kind: AxisType) -> Any:
    return jax.make_mesh((4,), ("d",), devices=jax.devices()[:4], axis_types=(kind,))


def mean(batch: Any, mask: Any) -> Any:
    return masked_mean(batch["x"].reshape(mask.shape[0], -1).sum(1), mask)


# JAX runs no ordered callback over several devices.
@pytest.mark.parametrize("kind", [kind for kind in PIPELINES if kind != "callback"])
@pytest.mark.parametrize("axes", [AxisType.Auto, AxisType.Explicit])
def test_under_a_mesh_the_mask_lies_where_its_batch_lies(kind: str, axes: AxisType) -> None:
    with DataLoader(PIPELINES[kind]()) as loader:
        outside = float(jax.jit(mean)(*next(loader.iterate())))
        with jax.set_mesh(mesh_of(axes)):
            for batch, mask in loader.iterate():
                assert batch["x"].devices() == mask.devices()
            assert float(jax.jit(mean)(*next(loader.iterate()))) == outside
        batch, mask = next(loader.iterate())
        assert batch["x"].devices() == mask.devices() == {jax.devices()[0]}
        assert float(jax.jit(mean)(batch, mask)) == outside


def test_somebody_elses_mesh_does_not_reach_a_loader_on_one_device() -> None:
    here = jax.devices()[1]
    data = jax.device_put({"x": np.ones((N, 8), np.float32)}, here)
    mine = DataLoader([ArraySampleSource(data, "sequential"), BatchTransform(B)])
    other = DataLoader([ArraySampleSource({"x": np.ones((N, 8))}, "sequential"), BatchTransform(B)])
    with jax.set_mesh(mesh_of(AxisType.Auto)):
        next(other.iterate())
    batch, mask = next(mine.iterate())
    assert batch["x"].devices() == mask.devices() == {here}
    weights = jax.device_put(jnp.ones(8), here)
    assert jax.jit(lambda w, b, m: masked_mean(b["x"] @ w, m))(weights, batch, mask) == 8


def test_a_placement_holds_for_the_mask_too() -> None:
    sharding = NamedSharding(mesh_of(AxisType.Auto), PartitionSpec("d"))
    for stages in (
        [RangeSource(N), BatchTransform(B)],
        [DiskSampleSource(N, large), BatchTransform(B)],
        [DiskSampleSource(N, element), BatchTransform(B)],
    ):
        with DataLoader([*stages, DevicePutTransform(sharding)]) as loader:
            batches = loader.iterate(loader.init_state(0))
            masks = [mask for _, mask in (next(batches), next(batches))]
        assert all(mask.sharding == sharding for mask in masks)
        assert masks[0] is not masks[1]
