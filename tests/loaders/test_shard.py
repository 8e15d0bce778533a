"""`DataLoader(shard=(index, count))`: the parts of the batches of a loader without it."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.slowly import quickly, slowly

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DiskSampleSource,
    FilterTransform,
    HostMapTransform,
    MapTransform,
    RandomMapTransform,
)

N = 30
ROWS = {"x": np.arange(N * 3, dtype=np.int32).reshape(N, 3), "y": np.arange(N)}


def add(element: Any, key: Any) -> Any:
    return {**element, "x": element["x"] + jax.random.randint(key, (), 0, 100)}


def read(index: int) -> Any:
    return {"x": ROWS["x"][index], "y": np.int32(index)}


SOURCES = {
    "arrays": lambda: ArraySampleSource(ROWS, ordering="shuffle"),
    "function": lambda: DiskSampleSource(N, read, ordering="shuffle"),
}
ALONE = [RandomMapTransform(add), FilterTransform(lambda e: e["y"] % 3 > 0)]
MIXED = [MapTransform(lambda b: {**b, "x": b["x"] - b["y"].max()})]
ON_HOST = [HostMapTransform(lambda b: {**b, "x": b["x"] - b["y"].max()})]


@pytest.mark.parametrize(
    ("stages", "name", "count"),
    quickly(
        itertools.product(["alone", "before"], SOURCES, [1, 2, 4]),
        ("alone", "function", 2),
        ("before", "function", 4),
        ("before", "arrays", 1),
    ),
)
def test_parts_make_the_batch(name: str, stages: str, count: int) -> None:

    batch = [BatchTransform(7 if count > 1 else 8, pad_last_batch=True)]
    made = [*ALONE, *batch] if stages == "before" else [*batch, *ALONE]
    whole = DataLoader([SOURCES[name](), *made])
    parts = [DataLoader([SOURCES[name](), *made], shard=(k, count)) for k in range(count)]
    assert {len(part) for part in parts} == {len(whole)}
    walks = [part.iterate(part.init_state(2), steps=9) for part in parts]
    for wanted, *found in zip(whole.iterate(whole.init_state(2), steps=9), *walks, strict=True):
        check(found, wanted)
    states = [str(walk.state) for walk in walks]
    assert len(set(states)) == 1


def check(found: list[Any], wanted: Any) -> None:
    found, (batch, mask) = jax.device_get((found, wanted))
    size = len(mask)
    shapes = {len(part) for _, part in found}
    assert shapes == {-(-size // len(found))}  # equal parts
    real = np.concatenate([part for _, part in found])
    np.testing.assert_array_equal(real[:size], mask)
    assert not real[size:].any()
    for key in batch:
        together = np.concatenate([part[key] for part, _ in found])
        np.testing.assert_array_equal(together[:size], batch[key])


@pytest.mark.parametrize("stages", [MIXED, ON_HOST], ids=["compiled", "on the host"])
def test_stages_that_see_whole_batches_are_given_whole_batches(stages: list[Any]) -> None:
    made = [SOURCES["function"](), BatchTransform(8), *stages]
    whole = DataLoader(made)
    with pytest.warns(cereal.OptionWarning, match="is given whole batches and may mix"):
        parts = [DataLoader(made, shard=(k, 2)) for k in range(2)]
    walks = [part.iterate(part.init_state(0), steps=5) for part in parts]
    for wanted, *found in zip(whole.iterate(whole.init_state(0), steps=5), *walks, strict=True):
        check(found, wanted)


def test_only_the_part_is_read() -> None:
    seen: list[int] = []
    source = DiskSampleSource(32, lambda i: seen.append(i) or np.int32(i), ordering="sequential")
    loader = DataLoader([source, BatchTransform(8)], shard=(1, 4), workers=0)
    seen.clear()
    found = [batch.tolist() for batch, _ in loader.iterate()]
    assert found == [[2, 3], [10, 11], [18, 19], [26, 27]]
    assert seen == [2, 3, 10, 11, 18, 19, 26, 27]


def test_micro_batches_are_cut_along_the_batch() -> None:
    source = ArraySampleSource(np.arange(24), ordering="sequential")
    loader = DataLoader([source, BatchTransform(4), BatchTransform(3)], shard=(1, 2))
    batch, mask = next(iter(loader))
    assert batch.tolist() == [[2, 3], [6, 7], [10, 11]]
    assert mask.shape == (3, 2)


def test_programs_and_scans() -> None:
    source = ArraySampleSource(np.arange(24), ordering="shuffle")
    whole = DataLoader([source, BatchTransform(8)])
    loader = DataLoader([source, BatchTransform(8)], shard=(1, 2))
    _, _, want = whole.scan_epoch(whole.init_state(1), 0, lambda c, b, m: (c, b))
    _, _, found = loader.scan_epoch(loader.init_state(1), 0, lambda c, b, m: (c, b))
    np.testing.assert_array_equal(found, want[:, 4:])
    batch, _, _ = jax.jit(lambda loader, state: loader.next_batch(state))(
        loader, loader.init_state(1)
    )
    np.testing.assert_array_equal(batch, want[0, 4:])
    np.testing.assert_array_equal(loader.batch_at(1, 2)[0], want[2, 4:])
    assert loader.indices_at(1, 2).tolist() == want[2, 4:].tolist()


def test_a_state_goes_on_with_another_number_of_parts() -> None:
    made = [ArraySampleSource(np.arange(24), ordering="shuffle"), BatchTransform(8)]
    whole = DataLoader(made)
    wanted = [batch for batch, _ in whole.iterate(whole.init_state(0))]
    first = DataLoader(made, shard=(0, 2)).iterate(whole.init_state(0), steps=1)
    next(first)
    later = DataLoader(made, shard=(3, 4))
    found = [batch for batch, _ in later.iterate(first.state)]
    np.testing.assert_array_equal(jnp.stack(found), jnp.stack(wanted[1:])[:, 6:])


def test_jax_in_one_process_is_all_of_it() -> None:
    made = [ArraySampleSource(np.arange(8), ordering="sequential"), BatchTransform(4)]
    assert next(iter(DataLoader(made, shard="jax")))[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [slowly(8), 9])
def test_parts_of_packed_sequences(size: int) -> None:
    def loader(**options: Any) -> Any:
        windows = cereal.WindowSource(np.arange(60.0), 5, predict=2, ordering="shuffle")
        packed = cereal.TimeSeriesBatchTransform(mode="packed")
        return DataLoader([windows, BatchTransform(size, pad_last_batch=True), packed], **options)

    whole = loader()
    for step in (0, len(whole) - 1):
        batch, mask = jax.device_get(whole.batch_at(0, step))
        parts = [jax.device_get(loader(shard=(k, 2)).batch_at(0, step)) for k in range(2)]
        for key in batch:
            found = np.concatenate([part[key] for part, _ in parts])
            real = np.concatenate([real for _, real in parts])
            real = real if key != "target" else real.reshape(-1, 5)[:, 0]
            wanted = mask if key != "target" else mask.reshape(-1, 5)[:, 0]
            assert (found[real] == batch[key][wanted]).all()
            assert real.sum() == wanted.sum() > 0


class Endless:
    def __len__(self) -> int:
        return 2**62

    def __getitem__(self, index: int) -> np.float32:
        return np.float32(index % 1000)


@pytest.mark.parametrize("size", [8, 7])
def test_parts_of_data_without_an_end_in_a_program(size: int) -> None:
    data = cereal.DatasetSource(Endless(), ordering="sequential")
    stages = [data, BatchTransform(size, pad_last_batch=True)]
    found = []
    for k in range(2):
        loader = DataLoader(stages, shard=(k, 2))
        batch, state, mask = jax.jit(loader.next_batch)(loader.state_at(0, 3))
        assert state.offset == 4 * size
        found += np.asarray(batch)[np.asarray(mask)].tolist()
    assert found == list(range(3 * size, 4 * size))
