"""The loop over elements: what it writes, what it checks, and what it does about errors."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import cereal
from cereal import (
    BatchTransform,
    DataLoader,
    DatasetSource,
    DiskSampleSource,
    HostFilterTransform,
    HostMapTransform,
    PipelineError,
)
from cereal.base.spec import Spec
from cereal.host.element_spec import form_of, spec_of_element
from cereal.order.rows import host_rows_at
from cereal.reading.element_batch import ElementBatch
from cereal.reading.loop import Link
from cereal.reading.read_context import Pace, ReadContext, read_context, use_read_context

N = 40
Pair = namedtuple("Pair", ["x", "y"])
ROWS = host_rows_at(np.arange(N))


def element(i: int) -> Any:
    return {
        "array": np.full(3, i, np.float32),
        "int": i,
        "float": i / 4,
        "bool": i % 2 == 0,
        "narrow": np.int16(i),
        "wide": np.float64(i),
        "pair": Pair(i, [np.full((), i, np.uint8), None]),
        "keys": {(1, 2): i, (0, 5): {3: i / 2, 2: i}},
    }


def stacked(run: Callable[[int], Any], like: Any = None) -> Any:
    """The elements `run(lane)` as one tree of arrays, and the mask."""
    form = form_of(Spec(spec_of_element(run(0) if like is None else like)))
    taken = ElementBatch(N, [Link("stage", ROWS, lambda _, lane: run(lane))])
    with read_context().step(ROWS):
        found = taken.stack(form, "the end", ROWS, lambda: None, Pace())
    assert found.structure is not None
    return found.structure.unflatten(found.leaves), found.keep


def expected(run: Callable[[int], Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *map(run, range(N)))


def assert_equal(found: Any, wanted: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_numbers_and_arrays_of_all_kinds_are_stacked() -> None:
    found, keep = stacked(element)
    assert keep is None
    assert_equal(found, expected(element))
    assert found["float"].dtype == np.float32
    assert found["narrow"].dtype == np.int16


@pytest.mark.parametrize("columns", [1, 4, 5, 50])
def test_any_number_of_columns_is_stacked(columns: int) -> None:
    def row(i: int) -> Any:
        return {f"c{at:02}": i + at / 2 for at in range(columns)}

    assert_equal(stacked(row)[0], expected(row))


def test_a_function_may_return_the_same_buffer_every_time() -> None:
    room, number = np.zeros(3, np.float32), np.zeros((), np.int32)

    def run(i: int) -> Any:
        room[:] = number[...] = i
        return {"x": room, "n": number}

    found, _ = stacked(run)
    assert found["x"][:, 0].tolist() == found["n"].tolist() == list(range(N))


OTHER_KINDS: dict[str, Callable[[int], Any]] = {
    "int": lambda i: i if i % 3 else np.int64(i),
    "zero axes": lambda i: i if i % 7 else np.array(i),
    "float": lambda i: float(i) if i % 5 else np.float64(i),
    "list": lambda i: [i, i + 1] if i % 4 else np.array([i, i + 1]),
    "wide array": lambda i: np.full(2, i, np.int64 if i % 4 else np.int32),
    "view": lambda i: np.arange(i, i + 6, dtype=np.int32)[:: 2 if i % 2 else -2],
    "in a container": lambda i: {"a": (i, (np.int32(i),))} if i % 9 else {"a": (np.int64(i), (i,))},
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_elements_that_are_alike_but_of_other_types_are_stacked(kind: str) -> None:
    run = OTHER_KINDS[kind]
    found, _ = stacked(run)
    wanted = [jax.tree.leaves(run(i), is_leaf=lambda x: type(x) is list and kind == "list")
              for i in range(N)]  # fmt: skip
    for leaf, column in zip(jax.tree.leaves(found), zip(*wanted, strict=True), strict=True):
        np.testing.assert_array_equal(leaf, np.stack(column))


WRONG: dict[str, tuple[Any, str]] = {
    "too large": (2**40, r"`element\['n'\]`: the integer 1099511627776 does not fit int32"),
    "not even 64 bits": (2**80, r"`element\['n'\]`: the integer .* does not fit int32"),
    "a float": (1.5, r"an element is .*float32\[\].*, where .*int32\[\].* was promised"),
    "a bool": (True, r"an element is .*bool\[\].* was promised"),
    "an array": (np.zeros(2, np.int32), r"an element is .*int32\[2\].* was promised"),
    "missing": (None, r"`element\['n'\]` is None, a missing value"),
    "text": ("x", r"an element is .*object\[\].* was promised"),
}


@pytest.mark.parametrize("at", [0, 1, 17, N - 1])
@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_element_is_an_error_of_its_own(kind: str, at: int) -> None:
    value, words = WRONG[kind]
    run = lambda i: {"x": np.zeros(2), "n": value if i == at else i}  # noqa: E731
    like = {"x": np.zeros(2), "n": 0}
    with pytest.raises(PipelineError, match=words) as raised:
        stacked(run, like)
    error: Any = raised.value
    assert (error.element.stage, error.element.index) == ("the end", at)
    with use_read_context(ReadContext(lambda error: None)):
        found, keep = stacked(run, like)
    assert np.flatnonzero(~keep).tolist() == [at]
    kept = [i for i in range(N) if i != at]
    assert found["n"][kept].tolist() == kept
    with use_read_context(ReadContext(lambda error: {"x": np.ones(2), "n": -7})):
        found, keep = stacked(run, like)
    assert keep is None
    assert found["n"].tolist() == [-7 if i == at else i for i in range(N)]
    assert found["x"][:, 0].tolist() == [float(i == at) for i in range(N)]


def test_of_two_errors_the_first_lane_has_the_first() -> None:
    def run(i: int) -> Any:
        if i == 9:
            raise KeyError("lane 9")
        return 2**40 if i == 5 else i

    with pytest.raises(PipelineError, match="1099511627776") as raised:
        stacked(run)
    assert not isinstance(raised.value.__context__, KeyError)
    asked: list[Any] = []
    with use_read_context(ReadContext(lambda error: asked.append(error.element.index))):  # type: ignore[attr-defined]
        found, keep = stacked(run)
    assert asked == [5, 9]
    assert np.flatnonzero(~keep).tolist() == [5, 9]
    assert found[6:9].tolist() == [6, 7, 8]


def test_what_stands_in_goes_on_with_the_next_stage_and_nothing_runs_twice() -> None:
    calls: list[tuple[str, int]] = []

    def read(i: int) -> int:
        calls.append(("read", i))
        if i == 6:
            raise OSError("lost")
        return i

    def double(x: int) -> int:
        calls.append(("double", x))
        if x == 11:
            raise ValueError("eleven")
        return 2 * x

    def decide(error: Exception) -> int:
        return 100 if isinstance(error, OSError) else 1000

    source = DiskSampleSource(24, read, ordering="sequential")
    stages = [HostMapTransform(double), HostMapTransform(lambda x: x + 1), BatchTransform(12)]
    calls.clear()
    with DataLoader([source, *stages], workers=0, on_error=decide) as loader:
        calls.clear()
        found = [batch.tolist() for batch, _ in loader]
    wanted = [2 * i + 1 for i in range(24)]
    wanted[6], wanted[11] = 201, 1001
    assert [x for batch in found for x in batch] == wanted
    assert [i for name, i in calls if name == "read"] == list(range(24))
    assert [i for name, i in calls if name == "double"] == [100 if i == 6 else i for i in range(24)]


def test_lanes_that_are_left_out_do_not_move_the_numbers_of_others() -> None:
    def read(i: int) -> Any:
        if i % 7 == 3:
            raise OSError("lost")
        return {"n": i, "f": i / 2, "x": np.full(2, i)}

    source = DiskSampleSource(N, read, ordering="sequential")
    stages = [HostFilterTransform(lambda e: e["n"] % 3 != 1), BatchTransform(N)]
    with DataLoader([source, *stages], workers=0, on_error="skip") as loader:
        ((batch, mask),) = list(loader)
    kept = [i for i in range(N) if i % 7 != 3 and i % 3 != 1]
    assert np.flatnonzero(mask).tolist() == kept
    assert batch["n"][mask].tolist() == batch["x"][mask][:, 1].tolist() == kept
    assert (batch["f"][mask] * 2).tolist() == kept


def test_a_thread_writes_where_it_is() -> None:
    seen: list[Any] = []

    def look(x: int) -> int:
        here = read_context()
        place = here.place()
        assert place is not None
        seen.append((here.status[0], here.status[2], place.stage, place.index))
        return x

    source = DatasetSource(list(range(100, 112)))
    stages = [HostMapTransform(look), BatchTransform(3), BatchTransform(2), HostMapTransform(len)]
    loader = DataLoader([source, *stages[:3], HostMapTransform(lambda x: x + 0)], workers=0)
    seen.clear()
    with loader:
        next(iter(loader))
    program: Any = loader.source
    labels = program._program.labels
    assert [each[0] for each in seen] == list(range(6)), "lanes of the whole step"
    assert {labels[each[1]] for each in seen} == {"HostMapTransform(look)"}
    assert [each[2:] for each in seen] == [("HostMapTransform(look)", i) for i in range(6)]


def test_sys_exit_in_a_stage_is_an_error_of_its_element() -> None:
    def leave(x: int) -> int:
        return x if x < 5 else exit_now()

    def exit_now() -> int:
        raise SystemExit(0)

    loader = DataLoader([list(range(8)), HostMapTransform(leave), BatchTransform(8)])
    with loader, pytest.raises(RuntimeError, match=r"called sys\.exit\(0\)") as raised:
        list(loader)
    error: Any = raised.value
    assert error.element.index == 5
    assert isinstance(error.__cause__, SystemExit)
    of_batches = HostMapTransform(lambda x: exit_now() if x.max() > 4 else x)
    collated = BatchTransform(4, collate=lambda e: exit_now() if 5 in e else np.array(e))
    for stages in ([BatchTransform(4), of_batches], [collated]):
        loader = DataLoader([list(range(8)), *stages])
        with loader, pytest.raises(RuntimeError, match=r"called sys\.exit\(0\)"):
            list(loader)


def test_64_bit_types_may_be_switched_on_between_two_batches() -> None:
    found, _ = stacked(lambda i: i)
    assert found.dtype == np.int32
    with jax.enable_x64(True):
        found, _ = stacked(lambda i: i + 2**40)
    assert found.dtype == np.int64
    assert found[3] == 2**40 + 3
    with pytest.raises(cereal.PipelineError, match="does not fit"):
        stacked(lambda i: i + 2**40, 0)


class Slot(ReadContext):
    """A context as a process has it: its place and its memory are shared with others."""

    def __init__(self) -> None:
        super().__init__(lambda error: errors.append(error))
        self.status = memoryview(bytearray(24)).cast("d")
        self.given: list[np.ndarray] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        self.given.append(np.empty(shape, dtype))
        return self.given[-1]


errors: list[Any] = []


def test_a_context_may_have_a_place_and_memory_of_its_own() -> None:
    def read(i: int) -> Any:
        if i == 7:
            raise OSError("lost")
        return {"x": np.full(2, i, np.float32), "n": i}

    errors.clear()
    program = DiskSampleSource(N, read, ordering="sequential")._program
    here = Slot()
    with use_read_context(here):
        leaves, keep = program.read(ROWS)
    assert [id(leaf) for leaf in leaves] == [id(each) for each in here.given]
    assert keep is not None
    assert np.flatnonzero(~keep).tolist() == [7]
    assert [(error.element.index, error.element.loader_index) for error in errors] == [(7, 7)]
    assert here.status[2] == program.labels.index(errors[0].element.stage)
