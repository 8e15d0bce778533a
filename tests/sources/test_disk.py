"""Elements that a function reads: what they may be, in which order, how far ahead, and errors."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import (
    BatchTransform,
    DataLoader,
    DiskSampleSource,
    HostMapTransform,
    MapTransform,
    PipelineError,
)
from cereal.testing import check_loader, check_source

N = 11


def plain(i: int) -> dict[str, Any]:
    return {"x": np.full((2, 3), i, np.float32), "label": i * i}


def disk(fn: Callable[[int], Any] = plain, n: int = N, **options: Any) -> DiskSampleSource:
    return DiskSampleSource(n, fn, **{"ordering": "sequential", **options})


def batches(source: Any, size: int = 2, **options: Any) -> list[Any]:
    loader = DataLoader([source, BatchTransform(size)], **options)
    return [batch for batch, _ in loader.iterate(steps=-(-N // size))]


def keep(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
    return carry, (batch, mask)


# Batches


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_batches_are_what_a_loop_over_the_function_gives(workers: int) -> None:
    loader = DataLoader([disk(), BatchTransform(4, pad_last_batch=True)], workers=workers)
    for epoch in range(2):
        found = list(loader.iterate(loader.state_at(0, 3 * epoch)))
        assert len(found) == 3
        for step, (batch, mask) in enumerate(found):
            expected = [plain(i) for i in range(4 * step, min(4 * step + 4, N))]
            assert mask.tolist() == [True] * len(expected) + [False] * (4 - len(expected))
            rows = np.stack([element["x"] for element in expected])
            np.testing.assert_array_equal(batch["x"][mask], rows)
            assert batch["label"][mask].tolist() == [element["label"] for element in expected]


def test_a_function_as_a_source_keeps_the_contract(strict_jax: None) -> None:
    source = DiskSampleSource(7, plain)
    check_source(source)
    check_loader(DataLoader([source, BatchTransform(3, pad_last_batch=True)]))


ORDERS: dict[str, Any] = {
    "sequential": "sequential",
    "shuffle": "shuffle",
    "an array": np.array([4, 4, 0, 10, 7]),
    "a list": [4, 4, 0, 10, 7],
    "a jax array": jnp.array([4, 4, 0, 10, 7]),
    "blocks": cereal.BlockShuffle(4),
    "weighted": cereal.WeightedSampling(np.arange(1.0, N + 1)),
}


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_reads_the_indices_that_an_array_would_read(name: str) -> None:
    order = ORDERS[name]
    mine = DataLoader([disk(ordering=order), BatchTransform(3)], workers=2)
    theirs = cereal.ArraySampleSource(np.arange(N) ** 2, ordering=order)
    expected = DataLoader([theirs, BatchTransform(3)])
    assert mine.steps_per_epoch == expected.steps_per_epoch
    found = [b["label"].tolist() for b, _ in mine.iterate(mine.init_state(5), steps=9)]
    assert found == [b.tolist() for b, _ in expected.iterate(expected.init_state(5), steps=9)]
    if name in ("an array", "a list", "a jax array"):
        assert list(itertools.chain(*found))[:5] == [16, 16, 0, 100, 49]


def test_shuffled_every_epoch_reads_every_element_once_in_another_order() -> None:
    reads: list[int] = []
    source = DiskSampleSource(N, lambda i: reads.append(i) or i)
    loader = DataLoader([source, BatchTransform(N)], workers=0)
    orders = []
    for epoch in range(3):
        reads.clear()
        batch, _ = loader.batch_at(7, epoch)
        assert reads == batch.tolist()
        orders.append(tuple(reads))
    assert all(sorted(order) == list(range(N)) for order in orders)
    assert len(set(orders)) == 3


def test_the_function_is_called_with_python_integers() -> None:
    kinds: set[type] = set()
    loader = DataLoader([disk(lambda i: kinds.add(type(i)) or i), BatchTransform(2)])
    jax.jit(lambda loader, state: loader.next_batch(state)[0])(loader, loader.init_state(0))
    loader.read_element(np.int64(3))  # type: ignore[arg-type]
    assert kinds == {int}


# What elements may be


class Image:
    """Like Pillow's: no array, but it shows one."""

    def __init__(self, i: int) -> None:
        self._data = np.full((2, 2, 3), i, np.uint8)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._data.__array_interface__


class Tensor:
    """Like torch's."""

    def __init__(self, i: int) -> None:
        self._data = np.full(3, i, np.float16)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._data if dtype is None else self._data.astype(dtype)


class Pair(NamedTuple):
    a: Any
    b: Any


KINDS: dict[str, tuple[Callable[[int], Any], Any]] = {
    "an integer": (lambda i: i - 5, np.int32),
    "a float": (lambda i: i / 4, np.float32),
    "a complex number": (lambda i: complex(i, -i), np.complex64),
    "a bool": (lambda i: i % 3 == 0, np.bool_),
    "a NumPy scalar": (lambda i: np.int8(i), np.int8),
    "a list of numbers": (lambda i: [i, i + 1], np.int32),
    "a list of lists": (lambda i: [[i, 0.5], [1, 2]], np.float32),
    "int64": (lambda i: np.array([i, -i]), np.int32),
    "float64": (lambda i: np.array([i, -i]) / 3, np.float32),
    "uint64": (lambda i: np.array([i], np.uint64), np.uint32),
    "big-endian": (lambda i: np.array([i, 300], ">i2"), np.int16),
    "float16": (lambda i: np.array([i], np.float16), np.float16),
    "bfloat16": (lambda i: np.array([i]).astype(jnp.bfloat16), jnp.bfloat16),
    "a column of a matrix": (lambda i: (np.arange(12).reshape(4, 3) * i)[:, 1], np.int32),
    "a jax array": (lambda i: jnp.full((2,), i, jnp.float32), np.float32),
    "an empty array": (lambda i: np.zeros((0, 2), np.float32), np.float32),
    "an image": (Image, np.uint8),
    "a tensor": (Tensor, np.float16),
}


@pytest.mark.parametrize("name", KINDS)
def test_an_element_becomes_the_array_that_it_stands_for(name: str) -> None:
    fn, dtype = KINDS[name]
    for step, batch in enumerate(batches(disk(fn), workers=1)):
        lanes = [np.asarray(fn(i % N)) for i in (2 * step, 2 * step + 1)]
        assert batch.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(batch, np.stack(lanes).astype(dtype))


def test_trees_keep_their_kind() -> None:
    found = batches(disk(lambda i: Pair((i,), {"z": [i, i], "n": None})))
    assert isinstance(found[1], Pair)
    assert found[1].a[0].tolist() == [2, 3]
    assert found[1].b["z"].tolist() == [[2, 2], [3, 3]]
    assert found[1].b["n"] is None


OBJECTS: dict[str, Callable[[int], Any]] = {
    "text": lambda i: "x" * i,
    "bytes": lambda i: b"x" * i,
    "a list of texts": lambda i: ["x"] * i,
    "an object": lambda i: type("Any", (), {"__len__": lambda self: i})(),
    "a set": lambda i: set(range(i)),
    "a ragged list": lambda i: [[0] * j for j in range(1, i + 1)] if i > 1 else [0] * i,
    "a list that is ragged at first": lambda i: ([[1, 2], [3]] + [[0]] * i)[:i] or [[1, 2], [3]],
    "lists of several lengths": lambda i: list(range(i)),
    "arrays of several shapes": lambda i: np.zeros((i, 2)),
    "a dict of unsortable keys": lambda i: {1: 0, "a": 0},
    "numbers and texts": lambda i: [1, "a"] * i,
}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_element_may_be_any_python_object_up_to_batching(name: str) -> None:
    fn = OBJECTS[name]
    source = HostMapTransform(len)(disk(fn))
    found = [x for batch in batches(source) for x in batch.tolist()]
    assert found == [len(fn(i % N)) for i in range(len(found))]


def test_an_object_that_reaches_batching_is_named() -> None:
    source = disk(lambda i: {"text": "a", "n": i})
    with pytest.raises(PipelineError, match=r"element\['text'\]` is a Python object.*HostMapTran"):
        DataLoader([source, BatchTransform(2)])


def test_a_function_that_returns_nothing_is_refused() -> None:
    with pytest.raises(PipelineError, match="return"):
        DataLoader([disk(lambda i: None), BatchTransform(2)])


# Numbers that do not fit


BIG: dict[str, Callable[[int], Any]] = {
    "a scalar": lambda i: 2**31 + i,
    "a negative scalar": lambda i: -(2**31) - 1 - i,
    "a NumPy scalar": lambda i: np.int64(2**40 + i),
    "an unsigned scalar": lambda i: np.uint64(2**33 + i),
    "a list": lambda i: [2**40 + i],
    "beyond 64 bits": lambda i: 2**70 + i,
}


@pytest.mark.parametrize("name", BIG)
def test_an_integer_that_does_not_fit_is_an_error_and_never_wraps(name: str) -> None:
    fn = BIG[name]
    with pytest.raises((PipelineError, OverflowError), match=r"fit|too large|int"):
        batches(disk(fn))
    with pytest.raises((PipelineError, OverflowError), match=r"fit|too large|int"):
        batches(disk(lambda i: fn(i) if i == 5 else type(fn(i))([0] if name == "a list" else 0)))


@pytest.mark.parametrize("workers", [0, 2])
def test_with_wide_types_elements_keep_their_64_bits(workers: int) -> None:
    with jax.enable_x64(True):
        loader = DataLoader(
            [disk(lambda i: {"n": 2**40 + i, "x": i / 3}), BatchTransform(2)], workers=workers
        )
        (batch, _), *_ = loader.iterate(steps=3)
        assert batch["n"].dtype == np.int64
        assert batch["n"].tolist() == [2**40, 2**40 + 1]
        assert batch["x"].tolist() == [0.0, 1 / 3]
        with pytest.raises((PipelineError, OverflowError), match=r"fit|too large"):
            batches(disk(lambda i: 2**63 + i))


# The spec


def test_without_a_spec_one_element_is_read_and_with_one_none() -> None:
    reads: list[int] = []
    spec = jax.ShapeDtypeStruct((), np.int32)
    assert disk(lambda i: reads.append(i) or i).element_spec() == spec
    assert len(reads) == 1
    reads.clear()
    source = disk(lambda i: reads.append(i) or i, sample_spec=spec)
    DataLoader([source, BatchTransform(2), MapTransform(lambda x: x + 1)]).element_spec()
    assert reads == []


def test_the_spec_is_inferred_from_the_first_element_that_can_be_read() -> None:
    def late(i: int) -> int:
        if i < 3:
            raise OSError(f"no file {i}")
        return i

    loader = DataLoader([disk(late), BatchTransform(4)], workers=1, on_error="skip")
    assert loader.element_spec().dtype == np.int32
    (batch, mask), *_ = loader.iterate(steps=1)
    assert batch[mask].tolist() == [3]
    assert loader.skipped == 3


def test_if_the_first_elements_all_fail_the_error_says_why() -> None:
    def fail(i: int) -> Any:
        raise FileNotFoundError(f"no file {i}")

    pattern = r"DiskSampleSource\(fail.*failed on its first elements: FileNotFoundError: no file 0"
    with pytest.raises(PipelineError, match=pattern) as caught:
        disk(fail)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


WRONG_SPECS: dict[str, Any] = {
    "shape": {"x": jax.ShapeDtypeStruct((3, 2), np.float32), "label": np.int32(0)},
    "dtype": {"x": jax.ShapeDtypeStruct((2, 3), np.int32), "label": np.int32(0)},
    "structure": {"x": jax.ShapeDtypeStruct((2, 3), np.float32)},
    "kind": (jax.ShapeDtypeStruct((2, 3), np.float32), np.int32(0)),
}


@pytest.mark.parametrize("name", WRONG_SPECS)
def test_an_element_that_is_not_as_the_spec_says_is_an_error_with_both(name: str) -> None:
    source = disk(sample_spec=WRONG_SPECS[name])
    pattern = r"an element is \{label: int32\[\], x: float32\[2,3\]\}, where .* was promised"
    with pytest.raises(PipelineError, match=pattern) as caught:
        batches(source, workers=1)
    assert any("element 0 of epoch 0" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("bad", [int, {"a": "x"}, "float32"])
def test_a_spec_that_is_none_is_refused_by_its_name(bad: Any) -> None:
    with pytest.raises(PipelineError, match=r"`sample_spec.*ShapeDtypeStruct"):
        disk(sample_spec=bad)


@pytest.mark.parametrize("name", ["length", "prefetch_size"])
@pytest.mark.parametrize("bad", [0, -1, 2.5, "3", None, True, np.array([1, 2])])
def test_counts_that_are_none_are_refused_by_their_name(name: str, bad: Any) -> None:
    options: Any = {"length": 4, "sample_fn": plain, name: bad}
    with pytest.raises(PipelineError, match=f"`{name}` must be an integer of at least 1"):
        DiskSampleSource(**options)


def test_what_is_no_function_or_no_order_is_refused() -> None:
    for bad in (None, "read", 3, [plain]):
        with pytest.raises(PipelineError, match=r"`sample_fn` must be a function"):
            DiskSampleSource(4, bad)  # type: ignore[arg-type]
    for bad in ("random", np.array([0, N]), np.array([-1]), np.array([0.5])):
        with pytest.raises(PipelineError, match="DiskSampleSource"):
            disk(ordering=bad)


# Reading ahead


@pytest.mark.parametrize(("prefetch_size", "ahead"), [(1, 2), (4, 2), (8, 4), (9, 5)])
def test_prefetch_size_bounds_how_many_elements_are_read_ahead(
    prefetch_size: int, ahead: int
) -> None:
    size, lock = 2, threading.Lock()
    handed, most = 0, 0

    def read(i: int) -> int:
        nonlocal most
        with lock:
            most = max(most, i - handed)
        return i

    source = disk(read, 40, prefetch_size=prefetch_size)
    loader = DataLoader([source, BatchTransform(size)], workers=4)
    assert f"{ahead} batches ahead" in repr(loader)
    for step, (batch, _) in enumerate(loader.iterate()):
        assert batch.tolist() == [2 * step, 2 * step + 1]
        with lock:
            handed = 2 * step + 2
    # One batch is with the user and one on its way to the device.
    assert most < size * (ahead + 2)


# Files that disappear


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_a_file_that_disappears_in_mid_epoch_is_an_error_of_its_batch_only(
    workers: int, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{i}.npy" for i in range(12)]
    for i, path in enumerate(paths):
        np.save(path, np.full(3, i))
    source = DiskSampleSource(12, lambda i: np.load(paths[i]), ordering="sequential")
    loader = DataLoader([source, BatchTransform(2)], workers=workers, prefetch=1)
    iterator = loader.iterate()
    found = [next(iterator)[0][:, 0].tolist() for _ in range(2)]
    paths[9].unlink()
    with pytest.raises(FileNotFoundError, match=r"9\.npy") as caught:
        found.extend(batch[:, 0].tolist() for batch, _ in iterator)
    assert caught.value.element.index == 9  # type: ignore[attr-defined]
    assert found == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert (int(iterator.state.epoch), int(iterator.state.offset)) == (0, 8)
    np.save(paths[9], np.full(3, 9))
    found += [batch[:, 0].tolist() for batch, _ in iterator]
    assert list(itertools.chain(*found)) == list(range(12))


def test_a_file_that_disappears_is_skipped_counted_and_masked_on_every_road(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.npy" for i in range(6)]
    for i, path in enumerate(paths):
        np.save(path, np.array(i))
    source = DiskSampleSource(6, lambda i: np.load(paths[i]), ordering="sequential")
    paths[3].unlink()
    expected = [[0, 1], [2], [4, 5]]
    loader = DataLoader([source, BatchTransform(2)], workers=2, on_error="skip")
    assert [batch[mask].tolist() for batch, mask in loader] == expected
    assert loader.skipped == 1
    _, _, (values, masks) = loader.scan_epoch(loader.init_state(0), 0, keep)
    assert [v[m].tolist() for v, m in zip(values, masks, strict=True)] == expected
    step = jax.jit(lambda loader, state: loader.next_batch(state))
    state = loader.init_state(0)
    for each in expected:
        batch, state, mask = step(loader, state)
        assert batch[mask].tolist() == each
