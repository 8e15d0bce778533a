"""Sources that Python reads: the contract, what is read when, errors, and who holds the data."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.functions.programs import gone, spread

import cereal
from cereal import BatchTransform, DataLoader
from cereal.cache import elements
from cereal.cache.elements import chunks_of, read_elements
from cereal.pipeline.host_source import HostData, HostIndexed, living
from cereal.testing import assert_same, check_loader, check_resume, check_source

N = 20


class Shelf(HostData):
    """Rows in memory that are read like a file; notes every read, and fails at `bad`."""

    def __init__(self, rows: Any) -> None:
        super().__init__()
        self.rows = rows
        self.reads: list[list[int]] = []
        self.bad = -1

    def take(self, indices: np.ndarray) -> Any:
        assert indices.ndim == 1
        self.reads.append(indices.tolist())
        if self.bad in indices:
            raise OSError(f"row {self.bad} cannot be read")
        return jax.tree.map(lambda x: x[indices], self.rows)


@cereal.pytree_dataclass
class Shelved(HostIndexed[Any]):
    """The rows of a shelf."""

    shelf: Any
    n: int = cereal.static_field(default=N)
    ordering: str = cereal.static_field(default="sequential")

    def __len__(self) -> int:
        return self.n

    def element_spec(self) -> Any:
        return {
            "x": jax.ShapeDtypeStruct((2,), jnp.float32),
            "n": jax.ShapeDtypeStruct((), jnp.int32),
        }

    def _take_host(self, indices: np.ndarray) -> Any:
        return self.shelf.take(indices)

    def reader(self) -> Any:
        number = self.shelf.number
        return lambda indices: living(number).take(indices)


def rows_of(n: int = N, offset: int = 0) -> Any:
    numbers = np.arange(offset, offset + n, dtype=np.int32)
    return {"x": np.stack([numbers, -numbers], axis=1).astype(np.float32), "n": numbers}


def shelved(n: int = N, ordering: str = "sequential", offset: int = 0) -> Shelved:
    return Shelved(Shelf(rows_of(n, offset)), n, ordering)


def numbers(pair: tuple[Any, Any]) -> list[int]:
    return pair[0]["n"].tolist()


def keep(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
    return carry, (batch, mask)


# The contract


def test_a_source_on_the_host_keeps_the_contract(strict_jax: None) -> None:
    source = shelved(7, "shuffle")
    check_source(source)
    check_loader(DataLoader([source, BatchTransform(3, pad_last_batch=True)]))
    check_resume(DataLoader([source, BatchTransform(3)]))


def test_it_gives_what_an_array_in_memory_gives() -> None:
    arrays = cereal.ArraySampleSource(rows_of(), ordering="shuffle")
    for stages in ([], [BatchTransform(3)], [BatchTransform(2), BatchTransform(3)]):
        loaders = [DataLoader([s, *stages]) for s in (shelved(N, "shuffle"), arrays)]
        mine, theirs = (list(each.iterate(each.init_state(4), steps=5)) for each in loaders)
        assert_same(mine, theirs, f"{len(stages)} batchings")


def test_under_nested_vmap_every_lane_gets_its_own_rows() -> None:
    loader = DataLoader([shelved(N, "shuffle"), BatchTransform(4)])
    keys = jax.random.split(jax.random.key(0), (2, 3))
    states = jax.vmap(jax.vmap(loader.init_state))(keys)
    batches = jax.vmap(jax.vmap(loader.next_batch))(states)[0]
    for i, j in np.ndindex(2, 3):
        indices = loader.indices_at(keys[i, j], 0)
        np.testing.assert_array_equal(batches["n"][i, j], indices)
        np.testing.assert_array_equal(batches["x"][i, j, :, 0], indices)


def test_data_on_the_host_is_structure_without_leaves() -> None:
    source = shelved()
    assert jax.tree.leaves(source) == []
    assert jax.tree.map(lambda x: x, source).shelf is source.shelf
    assert jax.tree.structure(source) == jax.tree.structure(Shelved(source.shelf))
    assert jax.tree.structure(source) != jax.tree.structure(shelved())


def test_one_program_reads_for_each_loader_its_own_data() -> None:
    step = jax.jit(lambda loader, state: loader.next_batch(state)[0]["n"])
    for offset in (0, 100, 200):
        loader = DataLoader([shelved(offset=offset), BatchTransform(3)])
        state = loader.init_state(0)
        assert step(loader, state).tolist() == [offset, offset + 1, offset + 2]
        assert numbers(next(iter(loader))) == [offset, offset + 1, offset + 2]
        assert numbers(loader.batch_at(0, 0)) == [offset, offset + 1, offset + 2]


def test_data_that_cannot_say_what_it_is_has_no_digest() -> None:
    with pytest.raises(TypeError, match=r"^Shelf has no digest"):
        Shelf(rows_of()).digest_of()


# What is read when


@pytest.mark.parametrize("steps", [1, 2, 7, 12])
def test_iterate_reads_every_batch_exactly_once(steps: int) -> None:
    source = shelved()
    found = list(DataLoader([source, BatchTransform(4)]).iterate(steps=steps))
    assert [numbers(pair) for pair in found] == source.shelf.reads
    assert len(source.shelf.reads) == steps


def test_an_epoch_that_is_padded_or_dropped_is_read_exactly_once() -> None:
    rules: list[dict[str, Any]] = [{"pad_last_batch": True}, {"drop_last": True}]
    for rule in rules:
        source = shelved(10)
        found = list(DataLoader([source, BatchTransform(4, **rule)]))
        assert [numbers(pair) for pair in found] == source.shelf.reads


def test_iterate_reads_a_batch_when_it_is_asked_for() -> None:
    source = shelved()
    iterator = DataLoader([source, BatchTransform(4)]).iterate(epochs=None)
    assert source.shelf.reads == []
    for taken in range(1, 4):
        next(iterator)
        assert len(source.shelf.reads) == taken


def test_a_step_and_a_scan_read_every_row_once() -> None:
    source = shelved()
    loader = DataLoader([source, BatchTransform(4)])
    loader.next_batch(loader.init_state(0))
    assert source.shelf.reads == [[0, 1, 2, 3]]
    source.shelf.reads.clear()
    loader.scan_epoch(loader.init_state(0), 0, keep)
    assert np.concatenate(source.shelf.reads).tolist() == list(range(N))
    source.shelf.reads.clear()
    cereal.evaluate(loader, lambda batch: batch["n"])
    assert np.concatenate(source.shelf.reads).tolist() == list(range(N))


def test_building_and_looking_at_a_loader_reads_nothing() -> None:
    source = shelved()
    loader = DataLoader([source, BatchTransform(4), cereal.MapTransform(lambda b: b["n"])])
    repr(loader)
    loader.init_state(0)
    loader.element_spec()
    loader.indices_at(0, 3)
    loader.iterate()
    assert source.shelf.reads == []


def test_elements_are_read_by_index_whatever_their_number() -> None:
    source = cereal.MapTransform(lambda e: e["n"] * 10)(shelved())
    for indices in ([3], [5, 5, 0], list(range(N))):
        values, mask = read_elements(source, np.array(indices))  # type: ignore[arg-type]
        assert values.tolist() == [10 * index for index in indices]
        assert mask is None


def test_chunks_of_elements_hold_all_indices_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements, "_MOST_BYTES", 12 * 16)  # 12 bytes an element
    chunks = list(chunks_of(shelved(50), np.arange(50)))
    assert [len(chunk) for chunk in chunks] == [16, 16, 16, 2]
    np.testing.assert_array_equal(np.concatenate(chunks), np.arange(50))


# Errors


def by_iterate(loader: DataLoader[Any]) -> Any:
    return list(loader.iterate(steps=5))


def by_next_batch(loader: DataLoader[Any]) -> Any:
    state, pairs = loader.init_state(0), []
    for _ in range(5):
        batch, state, mask = loader.next_batch(state)
        pairs.append((batch, mask))
    return pairs


def by_scan_epoch(loader: DataLoader[Any]) -> Any:
    stacked = loader.scan_epoch(loader.init_state(0), 0, keep)[2]
    return [jax.tree.map(lambda x, k=k: x[k], stacked) for k in range(5)]


def by_evaluate(loader: DataLoader[Any]) -> Any:
    assert cereal.evaluate(loader, lambda batch: batch["n"]) == (N - 1) / 2
    return by_next_batch(loader)


@pytest.mark.parametrize("road", [by_iterate, by_next_batch, by_scan_epoch, by_evaluate])
def test_an_error_of_the_reader_comes_out_and_the_loader_works_on(road: Callable[..., Any]) -> None:
    source = shelved()
    loader = DataLoader([source, BatchTransform(4)])
    source.shelf.bad = 9
    for _ in range(2):
        with pytest.raises(OSError, match="row 9 cannot be read"):
            road(loader)
    source.shelf.bad = -1
    assert [numbers(pair) for pair in road(loader)] == np.arange(N).reshape(5, 4).tolist()


def test_an_error_inside_jit_is_raised_on_one_device_and_by_the_next_call_on_several(
    capfd: pytest.CaptureFixture[str],
) -> None:
    source = shelved()
    loader = DataLoader([source, BatchTransform(4)])
    step = jax.jit(lambda loader, state: loader.next_batch(state))
    state = loader.state_at(0, 2)
    step(loader, spread(loader.init_state(0)))
    source.shelf.bad = 9
    batch, _, mask = step(loader, spread(state))
    assert not mask.any()
    assert np.isnan(batch["x"]).all()
    assert "row 9 cannot be read" in capfd.readouterr().err
    with pytest.raises(OSError, match="row 9 cannot be read"):
        step(loader, spread(state))
    with pytest.raises(jax.errors.JaxRuntimeError, match="row 9 cannot be read"):
        jax.block_until_ready(step(loader, state))
    source.shelf.bad = -1
    assert_same(step(loader, state), loader.next_batch(state), "afterwards")


def test_a_batch_that_was_read_is_handed_out_before_the_error_of_the_next() -> None:
    source = shelved()
    source.shelf.bad = 9
    loader = DataLoader([source, BatchTransform(4)])
    iterator = loader.iterate()
    assert [numbers(next(iterator)) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for _ in range(2):
        with pytest.raises(OSError, match="row 9 cannot be read"):
            next(iterator)


def test_the_state_after_an_error_is_that_of_the_last_batch_handed_out() -> None:
    source = shelved()
    source.shelf.bad = 9
    loader = DataLoader([source, BatchTransform(4)])
    iterator = loader.iterate()
    for _ in range(2):
        next(iterator)
    with pytest.raises(OSError, match="row 9 cannot be read"):
        next(iterator)
    assert_same(iterator.state, loader.state_at(0, 2), "the state")
    source.shelf.bad = -1
    rest = [numbers(pair) for pair in loader.iterate(iterator.state)]
    assert rest == np.arange(N).reshape(5, 4).tolist()[2:]


def test_an_iterator_goes_on_after_an_error_without_losing_a_batch() -> None:
    source = shelved()
    source.shelf.bad = 9
    iterator = DataLoader([source, BatchTransform(4)]).iterate()
    found, errors = [], 0
    while True:
        try:
            found.append(numbers(next(iterator)))
        except OSError:
            errors += 1
            source.shelf.bad = -1 if errors == 3 else 9
        except StopIteration:
            break
    assert errors == 3
    assert found == np.arange(N).reshape(5, 4).tolist()


# Who holds the data


def test_data_lives_as_long_as_a_loader_whatever_was_compiled() -> None:
    loader = DataLoader([shelved(), BatchTransform(4)])
    state = loader.init_state(0)
    passed = jax.jit(lambda loader, state: loader.next_batch(state)[0]["n"])
    for road in (by_iterate, by_next_batch, by_scan_epoch):
        road(loader)
    passed(loader, state)
    shelf = weakref.ref(loader.source.source.shelf)  # type: ignore[attr-defined]
    again = jax.tree.map(lambda x: x, loader)
    del loader
    gc.collect()
    assert passed(again, state).tolist() == [0, 1, 2, 3]
    number = again.source.source.shelf.number  # type: ignore[attr-defined]
    assert living(number) is shelf()
    del again
    assert gone(shelf)
    with pytest.raises(cereal.CerealError, match=r"the data .* is gone: .*; keep the loader"):
        living(number)


def test_an_iterator_keeps_the_data_of_its_loader() -> None:
    iterator = DataLoader([shelved(), BatchTransform(4)]).iterate()
    next(iterator)
    gc.collect()
    assert numbers(next(iterator)) == [4, 5, 6, 7]
