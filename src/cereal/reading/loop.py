"""The loop over the elements of a batch: one element goes through all stages, then the next.

    lane 0   read --> map --> random map --> put
    lane 1   read --> ...

The first lane is run slowly, stage by stage. For the others there is one loop (`code`), with one
`try` around it. If a stage fails, the context says what to use instead; the element goes on with
the next stage (`_go_on`), and the loop is entered again for the next lane. No function is called
twice for an element.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .code import loop_of
from .columns import Columns
from .form import Form
from .read_context import SKIPPED, Pace, at_element, read_context


class Link(NamedTuple):
    """A stage in a chain: `run(value, lane)`. The first reads, and its `value` is None.

    Without a label it is no stage of its own: errors in it have been handled before. `code` is an
    expression that gives the same more quickly; it may name `{fn}`, `{many}` and `{run}`.
    """

    label: str
    rows: Any
    run: Callable[[Any, int], Any]
    code: str = "{run}(value, lane)"
    fn: Any = None
    many: Any = None


def stack_elements(
    links: Sequence[Link], keep: np.ndarray | None, form: Form, label: str, rows: Any, pace: Pace
) -> tuple[list[np.ndarray], np.ndarray | None]:
    """The elements of all lanes as arrays, checked; and which lanes have one (None: all)."""
    n = len(rows.index)
    rooms = form.rooms(n)

    def some(lanes: range) -> list[int]:
        left_out: list[int] = []
        columns = Columns(form, rooms, lanes.start, left_out)
        return _Loop(links, keep, columns, (label, rows), left_out).run(lanes)

    left_out = [lane for found in pace.spread(some, n) for lane in found]
    return rooms, _kept(n, left_out)


def list_elements(
    links: Sequence[Link], keep: np.ndarray | None, rows: Any, pace: Pace
) -> tuple[list[Any], np.ndarray | None]:
    """The elements of all lanes, SKIPPED where there is none; and which lanes have one."""
    n = len(rows.index)
    found: list[Any] = [SKIPPED] * n

    def some(lanes: range) -> list[int]:
        return _Loop(links, keep, _List(found), ("", rows), []).run(lanes)

    left_out = [lane for each in pace.spread(some, n) for lane in each]
    return found, _kept(n, left_out)


def run_into(
    links: Sequence[Link],
    keep: np.ndarray | None,
    make_end: Callable[[range], Any],
    place: tuple[str, Any],
    pace: Pace,
) -> list[tuple[Any, list[int]]]:
    """Runs all lanes in parts, each into an end of its own (`make_end(lanes)`); gives the ends, and
    which lanes have no element."""

    def some(lanes: range) -> tuple[Any, list[int]]:
        end = make_end(lanes)
        return end, _Loop(links, keep, end, place, []).run(lanes)

    return pace.spread(some, len(place[1].index))


def _kept(n: int, left_out: list[int]) -> np.ndarray | None:
    if not left_out:
        return None
    keep = np.ones(n, np.bool_)
    keep[left_out] = False
    return keep


class _List:
    """Puts elements into a list, as they are."""

    def __init__(self, found: list[Any]) -> None:
        self.write = self.learn = found.__setitem__
        self.code = ("found[lane] = value",), {"found": found}

    def flush(self, end: int) -> int | None:
        del end

    def check_waiting(self, lane: int, end: int) -> None:
        raise AssertionError(f"lane {lane} of {end} does not wait")


class _Loop:
    """The loop over some lanes, in one thread."""

    def __init__(
        self,
        links: Sequence[Link],
        keep: np.ndarray | None,
        end: Any,  # takes the elements: Columns, a list, ...
        place: tuple[str, Any],
        left_out: list[int],
    ) -> None:
        self._here, self._links, self._end = read_context(), links, end
        self._keep, self._place = keep, place
        self._left_out = left_out

    def run(self, lanes: range) -> list[int]:
        """Runs all lanes; returns those that have no element."""
        here, before = self._here, (self._here.links, self._here.rows)
        places = [*((link.label, link.rows) for link in self._links), self._place]
        numbers = [here.number_of(label) if label else -1 for label, _ in places]
        here.links = [(n, label, rows) for n, (label, rows) in zip(numbers, places, strict=True)]
        lane, here.rows = lanes.start, None
        try:
            while lane < lanes.stop:
                if here.known_to_hang or self._end.code is None:
                    self._begin(lane)
                    self._go_on(lane, None, 0)
                    lane += 1
                else:
                    lane = self._run_until_one_fails(lane, lanes.stop, numbers)
            self._flush(lanes.stop)
        finally:
            here.links, here.rows = before
        return self._left_out

    def _run_until_one_fails(self, lane: int, stop: int, numbers: list[int]) -> int:
        """Runs lanes; if one fails, only up to that one. Returns the next lane to run."""
        here = self._here
        stages = [
            (link.code, number, link.fn, link.many, link.run)
            for link, number in zip(self._links, numbers, strict=False)
        ]
        loop = loop_of(
            stages,
            self._end.code,
            status=here.status,
            now=time.monotonic,
            offset=here.first_lane,
            keep=self._keep,
            leave_out=self._left_out.append,
        )
        failed = loop(lane, stop)
        if failed is None:
            return stop
        error, lane, value, at = failed
        self._failed(error, lane, value, at)
        return lane + 1

    def _failed(self, error: BaseException, lane: int, value: Any, at: int) -> None:
        """Stage number `at` has failed for the element of a lane."""
        self._flush(lane)  # an error of an earlier lane comes first
        here, links = self._here, self._links
        self._begin(lane)
        if at == len(links):
            self._finish(lane, value)
            return
        if not links[at].label:
            raise error
        here.status[2] = here.number_of(links[at].label)
        self._go_on(lane, here.failed(error), at + 1)

    def _begin(self, lane: int) -> None:
        self._here.status[0] = lane + self._here.first_lane

    def _go_on(self, lane: int, value: Any, at: int) -> None:
        """The element of a lane goes through the stages from number `at` on."""
        if self._keep is not None and not self._keep[lane]:
            value = SKIPPED
        for link in self._links[at:] if value is not SKIPPED else ():
            value = run_link(link, value, lane)
            if value is SKIPPED:
                break
        self._finish(lane, value)

    def _finish(self, lane: int, value: Any) -> None:
        """Puts the element of a lane, if there is one, or what the context uses instead."""
        if value is not SKIPPED:
            value = self._put(lane, value)
        if value is SKIPPED:
            self._left_out.append(lane)

    def _put(self, lane: int, value: Any) -> Any:
        """Checks and puts an element; SKIPPED if it is left out, because it is not as promised."""
        end, (label, rows) = self._end, self._place
        with contextlib.suppress(Exception):
            return end.learn(lane, value)
        # It raised: run it again in `at_element`, which notes the place and asks `on_error`.
        again = at_element(label, rows, lane, end.write, lane, value)
        if again is None or again is SKIPPED:
            return again
        return end.write(lane, again)  # the element that `on_error` returned instead

    def _flush(self, stop: int) -> None:
        """Writes the numbers of lanes before `stop`. Those that do not fit are errors."""
        end, (label, rows) = self._end, self._place
        while (lane := end.flush(stop)) is not None:
            self._begin(lane)
            again = at_element(label, rows, lane, end.check_waiting, lane, stop)
            if again is SKIPPED:
                self._left_out.append(lane)
            elif again is not None:
                end.write(lane, again)


def run_link(link: Link, value: Any, lane: int) -> Any:
    """One stage over one element; if it fails, what the context uses instead."""
    if not link.label:
        return link.run(value, lane)
    return at_element(link.label, link.rows, lane, link.run, value, lane)
