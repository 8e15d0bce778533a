"""Datasets: by index, by many indices, bare in a loader's list, and what is none."""

from __future__ import annotations

import collections
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import BatchTransform, DataLoader, DatasetSource, HostMapTransform, PipelineError
from cereal.testing import check_loader, check_resume, check_source

N = 10


class ByIndex:
    """Like a torch dataset: a length, and elements by index. Notes every read."""

    def __init__(self, n: int = N, bad: tuple[int, ...] = ()) -> None:
        self.n, self.bad = n, bad
        self.reads: list[Any] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        self.reads.append(index)
        if index in self.bad:
            raise KeyError(f"row {index}")
        return self.element(index)

    @staticmethod
    def element(index: int) -> Any:
        return np.full(2, index, np.float32), index * 10


class ByMany(ByIndex):
    """With `__getitems__` too, which may answer in some container."""

    def __init__(self, answer: Callable[[Any], Any] = list, **options: Any) -> None:
        super().__init__(**options)
        self.many: list[list[int]] = []
        self.answer = answer

    def __getitems__(self, indices: list[int]) -> Any:
        assert all(type(index) is int for index in indices)
        self.many.append(list(indices))
        for index in indices:
            if index in self.bad:
                raise KeyError(f"row {index}")
        return self.answer([self.element(index) for index in indices])


def labels(loader: DataLoader[Any], steps: int | None = None) -> list[list[int]]:
    return [batch[1][mask].tolist() for batch, mask in loader.iterate(steps=steps)]


def in_order(size: int) -> list[list[int]]:
    numbers = [10 * i for i in range(N)]
    return [numbers[k : k + size] for k in range(0, N, size)]


# Batches


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("kind", [ByIndex, ByMany])
def test_batches_are_what_a_loop_over_the_dataset_gives(kind: Any, workers: int) -> None:
    stages = [DatasetSource(kind()), BatchTransform(4, pad_last_batch=True)]
    loader = DataLoader(stages, workers=workers)
    assert labels(loader) == in_order(4)
    rows = np.concatenate([batch[0][mask] for batch, mask in loader])
    np.testing.assert_array_equal(rows, np.stack([ByIndex.element(i)[0] for i in range(N)]))


@pytest.mark.slow
def test_a_dataset_keeps_the_contract(strict_jax: None) -> None:
    source = DatasetSource(ByMany(n=7), ordering="shuffle")
    check_source(source)
    check_loader(DataLoader([source, BatchTransform(3, pad_last_batch=True)]))
    check_resume(DataLoader([source, BatchTransform(3)]))


@pytest.mark.parametrize("order", ["shuffle", [3, 3, 0], cereal.BlockShuffle(4)])
def test_every_order_reads_the_indices_that_the_loader_says(order: Any) -> None:
    loader = DataLoader([DatasetSource(ByIndex(), ordering=order), BatchTransform(3)], workers=2)
    found = [batch[1].tolist() for batch, _ in loader.iterate(loader.init_state(2), steps=8)]
    assert found == [(10 * loader.indices_at(2, step)).tolist() for step in range(8)]


def test_a_loader_over_a_dataset_can_be_pickled() -> None:
    loader = DataLoader([ByIndex(), BatchTransform(5)], workers=1)
    again = pickle.loads(pickle.dumps(loader))
    assert labels(again) == labels(loader) == in_order(5)


# Many at once


def test_with_getitems_a_batch_is_one_call() -> None:
    dataset = ByMany()
    loader = DataLoader([dataset, BatchTransform(5)], workers=2)
    dataset.reads.clear()
    assert labels(loader) == in_order(5)
    assert sorted(dataset.many) == [list(range(5)), list(range(5, 10))]
    assert dataset.reads == []


def test_with_getitems_every_road_gives_the_same() -> None:
    loader = DataLoader([ByMany(), BatchTransform(5)], workers=2)
    state = loader.init_state(0)
    scanned = loader.scan_epoch(state, 0, lambda carry, batch, mask: (carry, batch[1]))[2]
    assert scanned.tolist() == in_order(5)
    step = jax.jit(lambda loader, state: loader.next_batch(state))
    batch, state, _ = step(loader, state)
    assert batch[1].tolist() == in_order(5)[0]
    assert loader.next_batch(state)[0][1].tolist() == in_order(5)[1]


@pytest.mark.parametrize("answer", [tuple, iter, collections.deque])
def test_getitems_may_answer_in_any_container(answer: Any) -> None:
    assert labels(DataLoader([ByMany(answer), BatchTransform(5)], workers=1)) == in_order(5)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("answer", [lambda x: x[:-1], lambda x: [*x, x[0]], lambda x: []])
def test_getitems_with_a_wrong_count_is_an_error_that_says_so(answer: Any, on_error: Any) -> None:
    loader = DataLoader([ByMany(answer), BatchTransform(5)], workers=1, on_error=on_error)
    with pytest.raises(PipelineError, match=r"`__getitems__` was asked for 5 elements and gave"):
        labels(loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [ByIndex, ByMany])
def test_an_element_that_raises_is_found_among_many(kind: Any, workers: int) -> None:
    dataset = kind(bad=(7,))
    loader = DataLoader([dataset, BatchTransform(5)], workers=workers)
    iterator = loader.iterate()
    assert next(iterator)[0][1].tolist() == in_order(5)[0]
    for _ in range(2):
        with pytest.raises(KeyError, match="row 7") as caught:
            next(iterator)
        assert caught.value.element.index == 7  # type: ignore[attr-defined]
    dataset.bad = ()
    assert next(iterator)[0][1].tolist() == in_order(5)[1]


@pytest.mark.parametrize("kind", [ByIndex, ByMany])
def test_an_element_that_raises_is_skipped_alone(kind: Any) -> None:
    loader = DataLoader([kind(bad=(0, 7)), BatchTransform(5)], workers=2, on_error="skip")
    assert labels(loader) == [[10, 20, 30, 40], [50, 60, 80, 90]]
    assert loader.skipped == 2


def test_a_length_that_promises_too_much_is_an_error_of_the_element() -> None:
    class Short(ByIndex):
        def __getitem__(self, index: int) -> Any:
            return [0, 1, 2][index]

    loader = DataLoader([Short(4), BatchTransform(2)], workers=1)
    iterator = loader.iterate()
    assert next(iterator)[0].tolist() == [0, 1]
    with pytest.raises(IndexError) as caught:
        next(iterator)
    assert caught.value.element.index == 3  # type: ignore[attr-defined]


# Bare data, first in the list


def mapped(folder: Path) -> np.memmap:
    np.arange(12, dtype=np.int32).tofile(folder / "numbers.bin")
    return np.memmap(folder / "numbers.bin", np.int32, mode="r", shape=(6, 2))


class Called(ByIndex):
    def __call__(self) -> None: ...


ROWS = np.arange(12, dtype=np.int32).reshape(6, 2)
BARE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a dataset": (lambda _: type("Mine", (ByIndex,), {"element": lambda self, i: ROWS[i]})(6), "D"),
    "a dataset that can be called": (
        lambda _: type("Mine", (Called,), {"element": lambda self, i: ROWS[i]})(6),
        "D",
    ),
    "a list of arrays": (lambda _: list(ROWS), "D"),
    "a list of lists": (lambda _: ROWS.tolist(), "D"),
    "a tuple of lists": (lambda _: tuple(ROWS.tolist()), "D"),
    "a deque": (lambda _: collections.deque(ROWS), "D"),
    "a user's list": (lambda _: collections.UserList(list(ROWS)), "D"),
    "an array": (lambda _: ROWS, "A"),
    "a jax array": (lambda _: jnp.asarray(ROWS), "A"),
    "an array subclass": (lambda _: np.ma.masked_array(ROWS).data, "A"),
    "a file": (mapped, "M"),
}


@pytest.mark.parametrize("name", BARE)
def test_bare_data_is_wrapped_and_read_in_order(name: str, tmp_path: Path) -> None:
    make, kind = BARE[name]
    names = {"D": "DatasetSource", "A": "ArraySampleSource", "M": "MemmapSource"}
    loader = DataLoader([make(tmp_path), BatchTransform(3)])
    assert names[kind] in repr(loader)
    found = [batch.tolist() for batch, mask in loader]  # sequential, so it needs no state
    assert found == [ROWS[:3].tolist(), ROWS[3:].tolist()]


@pytest.mark.parametrize("in_file", [False, True])
def test_bare_trees_of_arrays_are_rows_of_each(in_file: bool, tmp_path: Path) -> None:
    rows = mapped(tmp_path) if in_file else ROWS
    trees: list[Any] = [{"a": rows, "b": {"c": ROWS[:, 0]}}, (rows, ROWS[:, 0])]
    for tree in trees:
        loader = DataLoader([tree, BatchTransform(2)])
        assert ("MemmapSource" in repr(loader)) == in_file
        for step, (batch, _) in enumerate(loader):
            a, b = jax.tree.leaves(batch)
            assert a.tolist() == ROWS[2 * step : 2 * step + 2].tolist()
            assert b.tolist() == ROWS[2 * step : 2 * step + 2, 0].tolist()


def test_bare_numbers_are_elements() -> None:
    for data in (range(6), (0, 1, 2, 3, 4, 5), [0, 1, 2, 3, 4, 5]):
        found = [batch.tolist() for batch, _ in DataLoader([data, BatchTransform(2)])]
        assert found == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    "data",
    [
        ["a", "bb", "ccc", "dddd"],
        ("a", "bb", "ccc", "dddd"),
        np.array(["a", "bb", "ccc", "dddd"]),
        np.array(["a", "bb", "ccc", "dddd"], object),
        [{1: 0}, {1: 0, "a": 0}, {1: 0, "a": 0, None: 0}, dict.fromkeys("abcd")],
    ],
    ids=["list", "tuple", "array", "objects", "dicts of unsortable keys"],
)
def test_bare_objects_are_elements_for_host_stages(data: Any) -> None:
    loader = DataLoader([data, HostMapTransform(len), BatchTransform(2)])
    assert [batch.tolist() for batch, _ in loader] == [[1, 2], [3, 4]]


# What is no dataset


def numbers() -> Iterator[int]:
    yield from range(3)


NO_DATA: list[Any] = ["text", b"bytes", {"x": [1, 2]}, {"x": "text"}, {}, {1, 2}, 5, None, numbers]


@pytest.mark.parametrize("bad", NO_DATA)
def test_what_is_no_data_is_refused_first_in_a_list_with_what_it_is(bad: Any) -> None:
    with pytest.raises(PipelineError, match=r"stage 0 must be a source, arrays, or a dataset"):
        DataLoader([bad, BatchTransform(2)])


@pytest.mark.parametrize("bad", ["text", b"bytes", {"x": np.zeros(3)}, {1, 2}, 5, None], ids=repr)
def test_what_is_no_dataset_is_refused_by_name(bad: Any) -> None:
    with pytest.raises(PipelineError, match=r"`dataset` must have `__len__` and `__getitem__`"):
        DatasetSource(bad)


def test_what_only_iterates_is_told_where_to_go() -> None:
    with pytest.raises(PipelineError, match="IterableSource"):
        DatasetSource(numbers())


def test_a_class_is_told_to_be_an_instance() -> None:
    with pytest.raises(PipelineError, match=r"class ByIndex, not an instance; write `ByIndex\("):
        DatasetSource(ByIndex)
    with pytest.raises(PipelineError, match=r"stage 0 is the class ByIndex"):
        DataLoader([ByIndex, BatchTransform(2)])


@pytest.mark.parametrize("empty", [[], (), ByIndex(0), range(0)], ids=["list", "tuple", "own", "r"])
def test_an_empty_dataset_is_refused(empty: Any) -> None:
    with pytest.raises(PipelineError, match="the dataset has 0 elements"):
        DataLoader([empty, BatchTransform(2)])


@pytest.mark.parametrize(
    "error", [TypeError("no length"), NotImplementedError(), RuntimeError("gone")], ids=repr
)
def test_a_length_that_raises_is_an_error_that_names_the_dataset(error: Exception) -> None:
    class Unknown(ByIndex):
        def __len__(self) -> int:
            raise error

    for make in (DatasetSource, lambda data: DataLoader([data, BatchTransform(2)])):
        with pytest.raises(PipelineError, match="length of a Unknown is not known") as caught:
            make(Unknown())
        assert caught.value.__cause__ is error


def test_a_dataset_whose_elements_all_fail_says_why() -> None:
    with pytest.raises(PipelineError, match=r"first elements: KeyError: 'row 0'") as caught:
        DatasetSource(ByIndex(3, bad=(0, 1, 2)))
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_element_that_changes_its_shape_is_an_error_of_that_element() -> None:
    data = [np.zeros(2), np.zeros(2), np.zeros(3), np.zeros(2)]
    iterator = DataLoader([data, BatchTransform(2)], workers=1).iterate()
    next(iterator)
    pattern = r"an element is float32\[3\], where float32\[2\] was promised"
    with pytest.raises(PipelineError, match=pattern) as caught:
        next(iterator)
    assert caught.value.element.index == 2  # type: ignore[attr-defined]


def test_a_function_cannot_write_into_the_dataset() -> None:
    data = [np.zeros(2, np.float32) for _ in range(4)]

    def double(row: np.ndarray) -> np.ndarray:
        row += 1
        return row

    with pytest.raises((PipelineError, ValueError), match="read-only"):
        list(DataLoader([data, HostMapTransform(double), BatchTransform(2)]))
    assert all((row == 0).all() for row in data)
