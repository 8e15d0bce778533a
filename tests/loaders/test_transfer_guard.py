"""Under `jax_transfer_guard="disallow"`, whatever cereal moves is moved by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.slowly import quickly

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    CacheTransform,
    DataLoader,
    DiskSampleSource,
    IterableSource,
    MapTransform,
    MemmapSource,
    RandomMapTransform,
    WeightedSampling,
)
from cereal.device.transfer import to_device, to_host

N, WIDE = 9, 70_000
SMALL = {"x": np.ones((N, 2), np.float32), "y": np.arange(N, dtype=np.int32)}


def element(index: int) -> Any:
    return {"x": np.ones(2, np.float32), "y": np.int32(index)}


def large(index: int) -> Any:
    return {"x": np.ones(WIDE, np.float32), "y": np.int32(index)}


def halved(element: Any) -> Any:
    return {**element, "x": element["x"] / 2}


def noisy(element: Any, key: Any) -> Any:
    return {**element, "x": element["x"] + jax.random.normal(key, element["x"].shape)}


def add_up(carry: Any, batch: Any, mask: Any) -> Any:
    return carry + jnp.where(mask, batch["y"], 0).sum(), None


def means(batch: Any) -> Any:
    return {"y": batch["y"]}


def weighted(tmp_path: Path) -> Any:
    del tmp_path
    return ArraySampleSource(SMALL, ordering=WeightedSampling(np.arange(1.0, N + 1)))


def mapped(tmp_path: Path) -> Any:
    cereal.save_arrays(tmp_path / "data", SMALL)
    return MemmapSource(tmp_path / "data", ordering="shuffle")


SOURCES: dict[str, Callable[[Path], Any]] = {
    "arrays": lambda _: ArraySampleSource(SMALL),
    "weighted": weighted,
    "disk": lambda _: DiskSampleSource(N, element),
    "large": lambda _: DiskSampleSource(N, large),
    "memmap": mapped,
    "iterable": lambda _: IterableSource(lambda: map(element, range(N)), length=N),
}
# No callbacks: JAX itself sends the token of their order, and not by name.
STAGES: dict[str, list[Any]] = {
    "plain": [],
    "map": [MapTransform(halved)],
    "random": [RandomMapTransform(noisy)],
    "cache": [CacheTransform("host")],
}


def everything(loader: DataLoader[Any], key: Any, zero: Any) -> None:
    state = loader.init_state(key)
    loader.init_state(3)
    loader.state_at(key, 2)
    loader.batch_at(key, 1)
    loader.indices_at(key, 1)
    _, after, _ = loader.next_batch(state)
    loader.next_batch(after)
    batches = loader.iterate(state)
    for _ in batches:
        assert batches.state.words.shape == (5,)
    batches.state = state
    next(batches)
    loader.scan_epoch(batches.state, zero, add_up)
    cereal.evaluate(loader, means, key=key)


@pytest.mark.parametrize("source", SOURCES)
def test_pipelines_run_under_a_guard(source: str, tmp_path: Path) -> None:
    key, zero = jax.random.key(1), jnp.int32(0)
    batch = BatchTransform(4, pad_last_batch=True)
    stages: list[Any] = [SOURCES[source](tmp_path), batch]
    loader = DataLoader(stages, workers=2) if stages[0].traits.host else DataLoader(stages)
    with loader, jax.transfer_guard("disallow"):
        everything(loader, key, zero)


@pytest.mark.parametrize(
    ("source", "stage"),
    quickly(
        itertools.product(["arrays", "disk"], STAGES),
        ("arrays", "random"),
        ("arrays", "cache"),
        ("disk", "map"),
    ),
)
def test_stages_run_under_a_guard(source: str, stage: str, tmp_path: Path) -> None:
    key, zero = jax.random.key(1), jnp.int32(0)
    stages = [SOURCES[source](tmp_path), *STAGES[stage], BatchTransform(3)]
    with DataLoader(stages) as loader, jax.transfer_guard("disallow"):
        everything(loader, key, zero)


def test_pipelines_are_built_under_a_guard_and_their_states_can_be_read() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    images = np.ones((N, 8, 8), np.uint8)  # stored as words
    with jax.transfer_guard("disallow"):
        train, rest = cereal.split(ArraySampleSource(SMALL), (6, 3), key=1)
        for source in (
            train,
            ArraySampleSource(images),
            ArraySampleSource(SMALL, ordering=[3, 1, 2]),
            ArraySampleSource(SMALL, ordering=WeightedSampling(np.arange(1.0, N + 1))),
            cereal.SliceSource(rest, [2, 0]),
            cereal.MixSource([train, rest], weights=(3, 1)),
            cereal.ConcatSource([rest, train]),
        ):
            loader = DataLoader([source, BatchTransform(2)])
            next(loader.iterate(loader.init_state(0)))
        state = loader.init_state(7)
        assert [to_host(x).tolist() for x in (state.key, state.epoch, state.offset)] == [
            [0, 7],
            0,
            0,
        ]
        states = jax.vmap(loader.init_state)(keys)
        assert (states.key.shape, states.epoch.shape) == ((3, 2), (3,))
        jax.vmap(loader.next_batch)(states)


def test_a_guard_for_the_whole_process_counts_in_workers_too() -> None:
    key, zero = jax.random.key(1), jnp.int32(0)
    jax.config.update("jax_transfer_guard", "disallow")
    try:
        with DataLoader([DiskSampleSource(N, element), BatchTransform(3)], workers=2) as loader:
            everything(loader, key, zero)
    finally:
        jax.config.update("jax_transfer_guard", None)


def test_a_guard_that_forbids_all_transfers_is_obeyed() -> None:
    with DataLoader([DiskSampleSource(N, element), BatchTransform(3)]) as loader:
        state = loader.init_state(0)
        with jax.transfer_guard("disallow_explicit"), pytest.raises(Exception, match="Disallowed"):
            list(loader.iterate(state))


def test_transfers_give_the_same_with_a_guard_and_without() -> None:
    words = np.arange(5, dtype=np.uint32)
    plain = to_device(words)
    with jax.transfer_guard("disallow"):
        guarded = to_device(words)
        assert to_host(guarded).tolist() == [0, 1, 2, 3, 4]
    assert plain.sharding == guarded.sharding
    assert (plain.committed, guarded.committed) == (False, False)
    assert to_host(plain).tolist() == [0, 1, 2, 3, 4]
