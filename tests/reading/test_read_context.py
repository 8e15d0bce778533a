"""Reading: where a thread is, what happens to errors, and whose settings hold."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from cereal.order.rows import host_rows_at
from cereal.reading.buffers import Buffers
from cereal.reading.read_context import (
    SKIPPED,
    Failed,
    ReadContext,
    annotate,
    at_element,
    for_each,
    raise_it,
    read_context,
    use_read_context,
)


class OwnError(Exception):
    pass


def rows_of(*indices: int, epoch: int = 3) -> Any:
    return host_rows_at(np.array(indices), np.array([1, 2], np.uint32), epoch)


def each(stage: str, rows: Any, run: Any, n: int) -> list[Any]:
    """`run(lane)` for every lane, as a stage does it."""
    return for_each(rows, lambda lane: at_element(stage, rows, lane, lambda: run(lane)), n)


def fails_at(*bad: int) -> Any:
    def run(lane: int) -> int:
        if lane in bad:
            raise OwnError(f"lane {lane}")
        return lane * 10

    return run


def test_results_come_in_order() -> None:
    assert each("stage", rows_of(5, 6, 7), fails_at(), 3) == [0, 10, 20]
    assert each("stage", rows_of(), fails_at(), 0) == []


def test_an_error_carries_the_place_of_its_element() -> None:
    with pytest.raises(OwnError) as raised:
        each("decode", rows_of(5, 6, 7), fails_at(1), 3)
    error: Any = raised.value
    place = error.element
    assert (place.stage, place.index, place.epoch, place.key) == ("decode", 6, 3, (1, 2))
    seed = (1 << 32) | 2
    assert error.__notes__ == [f"cereal: in {error.element}"]
    assert f"loader.read_element(6, key={seed}, epoch=3)" in error.__notes__[0]
    assert read_context().place() is None, "the thread is nowhere afterwards"


@pytest.mark.parametrize(
    ("answer", "expected"), [(None, SKIPPED), (0, 0), ([], []), (False, False)]
)
def test_a_policy_answers_with_a_value_or_none(answer: Any, expected: Any) -> None:
    with use_read_context(ReadContext(lambda error: answer)):
        assert each("stage", rows_of(5, 6, 7), fails_at(1), 3) == [0, expected, 20]


def test_a_reading_that_may_skip_gives_masks() -> None:
    assert not ReadContext().masked
    assert not ReadContext(raise_it).masked
    assert ReadContext(lambda error: None).masked
    assert ReadContext(masked=True).masked


def test_a_stage_within_a_stage_notes_its_own_place_and_comes_back() -> None:
    seen: list[Any] = []

    def inner(lane: int) -> None:
        seen.append(read_context().place())

    def outer(lane: int) -> None:
        each("inner", rows_of(100 + lane), inner, 1)
        seen.append(read_context().place())

    each("outer", rows_of(5, 6), outer, 2)
    assert [(place.stage, place.index) for place in seen] == [
        ("inner", 100),
        ("outer", 5),
        ("inner", 101),
        ("outer", 6),
    ]


def test_the_place_is_given_back_after_an_error() -> None:
    def outer(lane: int) -> None:
        with pytest.raises(OwnError):
            each("inner", rows_of(100), fails_at(0), 1)
        place = read_context().place()
        assert place is not None
        assert place.stage == "outer"

    each("outer", rows_of(5), outer, 1)


def test_the_innermost_place_is_written_once() -> None:
    error: Any = OwnError()
    annotate(error, Failed("inner", 1, 0, (0, 0)))
    annotate(error, Failed("outer", 2, 0, (0, 0)))
    annotate(error, None)
    assert error.element.stage == "inner"
    assert len(error.__notes__) == 1


def test_writing_into_a_read_only_array_is_explained() -> None:
    def write(lane: int) -> None:
        array = np.zeros(2)
        array.flags.writeable = False
        array[0] = 1

    with pytest.raises(ValueError, match="read-only") as raised:
        each("stage", rows_of(5), write, 1)
    assert any("element.copy()" in note for note in raised.value.__notes__)


def test_no_policy_swallows_an_interrupt() -> None:
    def run(lane: int) -> None:
        raise KeyboardInterrupt

    with use_read_context(ReadContext(lambda error: None)), pytest.raises(KeyboardInterrupt):
        each("stage", rows_of(5), run, 1)


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (SystemExit, r"called sys\.exit\(\)"),
        (SystemExit(0), r"called sys\.exit\(0\)"),
        (SystemExit("no"), r"called sys\.exit\('no'\)"),
        (GeneratorExit, "raised GeneratorExit"),
        (StopIteration, "raised StopIteration"),
    ],
)
def test_a_function_that_ends_the_program_has_failed_for_its_element(
    raised: Any, words: str
) -> None:
    def run(lane: int) -> None:
        raise raised

    with pytest.raises(RuntimeError, match=words) as caught:
        each("stage", rows_of(5), run, 1)
    error: Any = caught.value
    assert error.element.index == 5
    assert isinstance(error.__cause__, BaseException)
    with use_read_context(ReadContext(lambda error: None)):
        assert each("stage", rows_of(5), run, 1) == [SKIPPED]


def test_stop_iteration_does_not_pass_as_the_end_of_something() -> None:
    with pytest.raises(RuntimeError):
        each("stage", rows_of(5), lambda lane: next(iter(())), 1)


def test_a_thread_has_a_reading_of_its_own() -> None:
    mine, theirs = ReadContext(lambda error: None), []
    with use_read_context(mine):
        thread = threading.Thread(target=lambda: theirs.append(read_context()))
        thread.start()
        thread.join()
        assert read_context() is mine
    assert theirs[0] is not mine
    assert read_context() is not mine


def test_readings_nest_and_are_given_back_after_errors() -> None:
    before, one, two = read_context(), ReadContext(), ReadContext()

    def nested() -> None:
        with use_read_context(one):
            with use_read_context(two):
                assert read_context() is two
            assert read_context() is one
            raise OwnError

    with pytest.raises(OwnError):
        nested()
    assert read_context() is before


def test_elements_known_to_hang_fail_without_being_run() -> None:
    here, ran = ReadContext(lambda error: None), []
    here.known_to_hang["stage", 6, 3] = TimeoutError("it hangs")
    with use_read_context(here):
        values = each("stage", rows_of(5, 6, 7), lambda lane: ran.append(lane) or lane, 3)
    assert ran == [0, 2]
    assert values == [0, SKIPPED, 2]


def test_an_array_that_is_not_ours_is_copied() -> None:
    here, array = ReadContext(buffers=Buffers(4)), np.arange(1 << 15, dtype=np.int32)
    owned = here.own(array)
    assert owned is not array
    assert not np.shares_memory(owned, array)
    assert owned.tolist() == array.tolist()
    assert here.own(owned) is owned
