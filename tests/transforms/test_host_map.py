"""Python functions over elements and batches: what they see, give, and must not spoil."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DatasetSource,
    DiskSampleSource,
    HostFilterTransform,
    HostMapTransform,
    MapTransform,
    PipelineError,
    RangeSource,
)
from cereal.testing import check_loader, check_resume, check_source

N, SIZE = 10, 4
WORKERS = [0, 1, 4]


def some(loader: DataLoader[Any], steps: int = 3, key: int = 0) -> list[Any]:
    with loader:
        return list(loader.iterate(loader.init_state(key), steps=steps))


def values(stages: list[Any], steps: int = 3, **options: Any) -> list[Any]:
    return [
        jax.tree.map(lambda x: np.asarray(x).tolist(), batch)
        for batch, _ in some(DataLoader(stages, **options), steps)
    ]


def lanes(steps: int = 3, n: int = N) -> list[list[int]]:
    return [[(step * SIZE + lane) % n for lane in range(SIZE)] for step in range(steps)]


# What goes in and what comes out


@pytest.mark.parametrize("workers", WORKERS)
def test_before_batching_it_sees_one_element(workers: int) -> None:
    words = [chr(97 + i) * (i + 1) for i in range(N)]
    found = values([words, HostMapTransform(len), BatchTransform(SIZE)], workers=workers)
    assert found == [[len(words[i]) for i in step] for step in lanes()]


@pytest.mark.parametrize("workers", WORKERS)
def test_after_batching_it_sees_the_batch(workers: int) -> None:
    def centred(batch: Any) -> Any:
        assert type(batch) is np.ndarray
        return {"x": batch - batch.mean(), "sum": batch.sum(), "pairs": batch.reshape(2, 2)}

    stages = [list(range(N)), BatchTransform(SIZE), HostMapTransform(centred)]
    for found, step in zip(values(stages, workers=workers), lanes(), strict=True):
        batch = np.array(step)
        assert found["x"] == (batch - batch.mean()).tolist()
        assert found["sum"] == batch.sum()
        assert found["pairs"] == batch.reshape(2, 2).tolist()


RULES: list[dict[str, Any]] = [{}, {"pad_last_batch": True}, {"drop_last": True}]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("filtered", [False, True], ids=["", "filtered"])
def test_with_a_second_argument_it_sees_the_mask(rule: dict[str, Any], filtered: bool) -> None:
    def fn(batch: Any, mask: Any) -> Any:
        assert mask.dtype == np.bool_
        assert not mask.flags.writeable
        return {"seen": mask.copy(), "real": np.where(mask, batch, -1), "count": mask.sum()}

    odd = [HostFilterTransform(lambda x: x % 2 == 1)] if filtered else []
    loader = DataLoader([list(range(N)), *odd, BatchTransform(SIZE, **rule), HostMapTransform(fn)])
    for step, (batch, mask) in enumerate(some(loader, loader.steps_per_epoch)):
        at = [step * SIZE + lane for lane in range(SIZE)]
        padded = [rule.get("pad_last_batch", False) and place >= N for place in at]
        expected = [
            not pad and (not filtered or place % N % 2 == 1)
            for place, pad in zip(at, padded, strict=True)
        ]
        assert np.asarray(mask).tolist() == expected
        assert np.asarray(batch["seen"]).tolist() == expected
        real = [place % N if yes else -1 for place, yes in zip(at, expected, strict=True)]
        assert np.asarray(batch["real"]).tolist() == real
        assert int(batch["count"]) == sum(expected)


def test_keys_are_added_and_dropped_on_both_sides_of_the_batching() -> None:
    data = [{"a": i, "name": f"file {i}"} for i in range(N)]
    add = HostMapTransform(lambda e: {"a": e["a"], "digits": len(e["name"])})
    swap = HostMapTransform(lambda b: {"b": b["a"] * 2, "top": b["digits"].max()})
    found = values([data, add, BatchTransform(SIZE), swap])
    assert found == [{"b": [2 * i for i in step], "top": 6} for step in lanes()]


@dataclasses.dataclass
class Record:
    text: str
    numbers: set[int]


ANYTHING: dict[str, Callable[[int], Any]] = {
    "text": str,
    "a set": lambda i: {i, "x"},
    "a dataclass": lambda i: Record(str(i), {i}),
    "an empty list": lambda i: [],
    "an array of objects": lambda i: np.array([i, "a", None], object),
    "text and numbers": lambda i: [i, "a"],
    "a ragged list": lambda i: [[i], [i, i]],
    "a date": lambda i: np.datetime64("2024-01-01") + np.timedelta64(i, "D"),
    "a large integer": lambda i: 1 << (40 + i),
    "a time stamp in a dict": lambda i: {"ms": 1_700_000_000_000 + i},
    "a lock": lambda i: threading.Lock(),
}


@pytest.mark.parametrize("name", ANYTHING)
def test_anything_goes_between_host_stages(name: str) -> None:
    make = ANYTHING[name]
    seen: list[Any] = []

    def look(pair: Any) -> int:
        seen.append(pair[1])
        return pair[0]

    stages = [HostMapTransform(lambda i: (i, make(i))), HostMapTransform(look)]
    found = values([list(range(N)), *stages, BatchTransform(SIZE)])
    assert found == lanes()
    assert {type(each) for each in seen} == {type(make(0))}


@pytest.mark.parametrize("name", ANYTHING)
def test_anything_may_be_in_a_dataset(name: str) -> None:
    data = [ANYTHING[name](i) for i in range(N)]
    numbers = iter(range(1, 1000))
    source = DatasetSource(data)
    loader = DataLoader(
        [source, HostMapTransform(lambda e: next(numbers)), BatchTransform(SIZE)], workers=0
    )
    begin = next(numbers)
    assert [np.asarray(b).tolist() for b, _ in some(loader, 2)] == [
        [begin + 1 + step * SIZE + lane for lane in range(SIZE)] for step in range(2)
    ]


# Types

TYPES: list[tuple[Any, Any]] = [
    (lambda i: i, jnp.int32),
    (lambda i: i / 3, jnp.float32),
    (lambda i: i > 3, jnp.bool_),
    (lambda i: complex(i, 1), jnp.complex64),
    (lambda i: np.float16(i), jnp.float16),
    (lambda i: np.int64(-i), jnp.int32),
    (lambda i: np.full((2, 1), i, ">i2"), jnp.int16),
    (lambda i: [[i, 1.5]], jnp.float32),
    (lambda i: jnp.full(2, i, jnp.bfloat16), jnp.bfloat16),
]


@pytest.mark.parametrize("number", range(len(TYPES)))
@pytest.mark.parametrize("batched", [False, True], ids=["before", "after batching"])
def test_results_have_the_types_of_jax(number: int, batched: bool) -> None:
    make, dtype = TYPES[number]
    stages: list[Any] = [HostMapTransform(make), BatchTransform(SIZE)]
    if batched:
        each = lambda batch: np.stack([np.asarray(make(int(i))) for i in batch])  # noqa: E731
        stages = [BatchTransform(SIZE), HostMapTransform(each)]
    loader = DataLoader([list(range(N)), *stages], workers=0)
    for (batch, _), step in zip(some(loader, 2), lanes(2), strict=True):
        assert batch.dtype == dtype
        expected = np.stack([np.asarray(make(i)).astype(dtype) for i in step])
        np.testing.assert_array_equal(batch, expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_wide_types_are_kept_where_jax_has_them(workers: int) -> None:
    def fn(i: int) -> Any:
        return {"i": i + (1 << 40), "f": i / 3}

    with jax.enable_x64(True):
        loader = DataLoader([list(range(N)), HostMapTransform(fn), BatchTransform(5)],
                            workers=workers)  # fmt: skip
        found = [batch for batch, _ in some(loader, 2)]
        found += [jax.jit(loader.next_batch)(loader.init_state(0))[0]]
        for batch, step in zip(found, (range(5), range(5, 10), range(5)), strict=True):
            assert (batch["i"].dtype, batch["f"].dtype) == (jnp.int64, jnp.float64)
            assert batch["i"].tolist() == [i + (1 << 40) for i in step]
            assert batch["f"].tolist() == [i / 3 for i in step]
        loader.close()


@pytest.mark.parametrize("large", [lambda i: i + (1 << 40), lambda i: [i + (1 << 40)]])
def test_an_integer_that_jax_cannot_hold_is_an_error_and_not_another_number(large: Any) -> None:
    with pytest.raises(PipelineError, match=r"does not fit int32|number that fits"):
        some(DataLoader([list(range(N)), HostMapTransform(large), BatchTransform(SIZE)]))


# What is wrong


@pytest.mark.parametrize("batched", [False, True], ids=["before", "after batching"])
def test_a_function_that_forgets_to_return_is_told_so(batched: bool) -> None:
    stages = [HostMapTransform(lambda x: None), BatchTransform(SIZE)]
    with pytest.raises(PipelineError, match="returned None; did `fn` forget to `return`"):
        DataLoader([list(range(N)), *stages[:: -1 if batched else 1]])


CHANGES: dict[str, tuple[Any, str]] = {
    "shape": (lambda i: np.zeros(2 if i < 6 else 3), r"float32\[3\], where float32\[2\]"),
    "dtype": (lambda i: i if i < 6 else float(i), r"float32\[\], where int32\[\]"),
    "keys": (lambda i: {"a": i} if i < 6 else {"b": i}, r"{b: int32\[\]}, where {a: int32\[\]}"),
    "None": (lambda i: i if i < 6 else None, r"None, where int32\[\]"),
    "text": (lambda i: i if i < 6 else "x", r"object\[\], where int32\[\]"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("workers", [0, 2])
def test_an_element_unlike_the_first_is_named(name: str, workers: int) -> None:
    fn, message = CHANGES[name]
    loader = DataLoader(
        [list(range(N)), HostMapTransform(fn), BatchTransform(SIZE)], workers=workers
    )
    iterator = loader.iterate()
    next(iterator)
    with pytest.raises(PipelineError, match=message) as caught:
        next(iterator)
    assert caught.value.element.index == 6  # type: ignore[attr-defined]
    loader.close()


@pytest.mark.parametrize("fn", [3, None, "len", [len]])
def test_what_cannot_be_called_is_refused(fn: Any) -> None:
    with pytest.raises(PipelineError, match="HostMapTransform: `fn` must be callable"):
        HostMapTransform(fn)


def test_an_error_when_the_pipeline_is_built_names_stage_and_cause() -> None:
    with pytest.raises(PipelineError, match=r"stage 1: HostMapTransform\(.*KeyError: 'b'") as info:
        DataLoader([[{"a": 1}], HostMapTransform(lambda e: e["b"]), BatchTransform(1)])
    assert isinstance(info.value.__cause__, KeyError)


# Functions that write


def test_containers_are_fresh_so_that_writing_into_them_changes_no_data() -> None:
    kinds: list[Any] = [
        [{"x": i, "l": [i]} for i in range(N)],
        [collections.OrderedDict(x=i, l=[i]) for i in range(N)],
        [collections.defaultdict(list, {"x": i, "l": [i]}) for i in range(N)],
    ]
    for data in kinds:
        before = copy.deepcopy(data)

        def write(element: Any) -> int:
            element["x"] += 1
            element["l"].append(0)
            return element["x"] * 10 + len(element["l"])

        found = values([data, HostMapTransform(write), BatchTransform(SIZE)], 6)
        assert data == before
        assert found == [[(i + 1) * 10 + 2 for i in step] for step in lanes(6)]


@pytest.mark.parametrize("kind", ["list", "array", "disk"])
@pytest.mark.parametrize("batched", [False, True], ids=["before", "after batching"])
def test_writing_into_an_array_is_an_error_that_says_what_to_do(kind: str, batched: bool) -> None:
    array = np.arange(N * 2.0, dtype=np.float32).reshape(N, 2)
    rows = list(array)
    source: Any = {
        "list": rows,
        "array": ArraySampleSource(array, ordering="sequential"),
        "disk": DiskSampleSource(N, rows.__getitem__, ordering="sequential"),
    }[kind]

    def write(x: Any) -> Any:
        x += 1
        return x

    stages = [HostMapTransform(write), BatchTransform(SIZE)]
    before = array.copy()
    with pytest.raises(Exception, match="read-only") as caught:
        some(DataLoader([source, *stages[:: -1 if batched else 1]]))
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "copy()" in told
    np.testing.assert_array_equal(array, before)


def test_writing_into_a_late_element_says_what_to_do_too() -> None:
    data = [np.full(2, i) for i in range(N)]

    def write(x: Any) -> Any:
        if x[0] == 6:
            x[:] = 0
        return x

    with pytest.raises(ValueError, match="read-only") as caught:
        some(DataLoader([data, HostMapTransform(write), BatchTransform(SIZE)]))
    assert "copy()" in "".join(caught.value.__notes__)
    assert data[6].tolist() == [6, 6]


# All roads, and more kinds of functions


@pytest.mark.parametrize("batched", [False, True], ids=["before", "after batching"])
def test_every_road_is_the_same(batched: bool) -> None:
    stages = [HostMapTransform(lambda x: {"a": x * 2}), BatchTransform(SIZE, pad_last_batch=True)]
    loader = DataLoader(
        [RangeSource(N, ordering="shuffle"), *stages[:: -1 if batched else 1],
         MapTransform(lambda b: {**b, "c": b["a"] + 1})]
    )  # fmt: skip
    (check_source(loader.source), check_loader(loader)) if batched else check_resume(loader)
    for step in range(3):
        batch, mask = loader.batch_at(0, step)
        at = loader.indices_at(0, step)
        np.testing.assert_array_equal(np.asarray(batch["c"])[np.asarray(mask)], at * 2 + 1)
    loader.close()


class Scale:
    def __call__(self, x: Any, by: int = 3) -> Any:
        return x * by

    def twice(self, x: Any) -> Any:
        return x * 2


@pytest.mark.parametrize(
    ("fn", "factor"),
    [(Scale(), 3), (Scale().twice, 2), (functools.partial(Scale().__call__, by=5), 5), (np.abs, 1)],
)
def test_any_callable_will_do(fn: Any, factor: int) -> None:
    for stages in ([HostMapTransform(fn), BatchTransform(SIZE)],
                   [BatchTransform(SIZE), HostMapTransform(fn)]):  # fmt: skip
        expected = [[i * factor for i in step] for step in lanes()]
        assert values([list(range(N)), *stages]) == expected


def test_one_stage_may_serve_several_pipelines() -> None:
    stage = HostMapTransform(lambda x: x)
    texts = DataLoader([["a", "b"], stage, HostMapTransform(ord), BatchTransform(2)])
    numbers = DataLoader([[1, 2], stage, BatchTransform(2)])
    arrays = DataLoader([np.ones((2, 3)), stage, BatchTransform(2), stage])
    assert some(texts, 1)[0][0].tolist() == [97, 98]
    assert some(numbers, 1)[0][0].tolist() == [1, 2]
    assert some(arrays, 1)[0][0].tolist() == [[1.0] * 3] * 2
