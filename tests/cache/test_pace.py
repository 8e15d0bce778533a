"""A cache is filled in chunks of about a second's work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cereal import HostMapTransform, RangeSource
from cereal.cache import pace as cache_pace
from cereal.cache.pace import Pace


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(cache_pace, "time", made)
    return made


def taking(seconds: float, clock: Clock) -> Any:
    def work(x: Any) -> Any:
        clock.now += seconds
        return x

    return HostMapTransform(work)(RangeSource(10_000))


@pytest.mark.parametrize(("seconds", "most"), [(10.0, 4), (1.0, 4), (0.1, 16), (0.01, 160)])
def test_python_reads_for_about_a_second(seconds: float, most: int, clock: Clock) -> None:
    pace = Pace(taking(seconds, clock))
    found = []
    done = 0
    while done < 400:
        rows = pace.fetch(np.arange(done, 400))
        np.testing.assert_array_equal(rows.index, np.arange(done, done + len(rows.index)))
        np.testing.assert_array_equal(rows.below.values, rows.index)
        found.append(len(rows.index))
        done += found[-1]
    assert max(found) <= most
    assert all(count <= max(1, 1.5 / seconds) for count in found[1:])


def test_what_is_quick_is_read_at_once(clock: Clock) -> None:
    assert len(Pace(taking(0.0, clock)).fetch(np.arange(200)).index) == 200


def run(pace: Pace, clock: Clock, seconds: float, *, known: bool = True) -> int:
    """How many elements the next program computes, if each takes so long."""
    n = len(pace.fetch(np.arange(10_000)).index)
    with pace.running(n, known=known):
        clock.now += n * seconds
    return n


def test_programs_grow_or_shrink_to_a_seconds_work(clock: Clock) -> None:
    quick, slow = Pace(RangeSource(10_000)), Pace(RangeSource(10_000))
    assert [run(quick, clock, 1e-4) for _ in range(3)] == [256, 4096, 4096]
    assert [run(slow, clock, 0.1) for _ in range(4)] == [256, 4, 4, 4]


def test_a_program_that_is_being_compiled_says_nothing(clock: Clock) -> None:
    pace = Pace(RangeSource(10_000))
    assert [run(pace, clock, 0.1, known=False) for _ in range(3)] == [256] * 3
