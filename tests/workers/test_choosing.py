"""The choice of who reads, with simulated pipelines: never far from the best fixed setting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cereal.workers.choosing import CALLER, Chooser, Limits, Setting


def gil(compute: float) -> Callable[[Setting], float]:
    """Steps a second of Python code that holds the GIL."""

    def rate(setting: Setting) -> float:
        if setting.kind == "process":
            return setting.count / (compute + 1e-4)
        return (1.0 if setting.count < 2 else 0.85) / compute

    return rate


def free(compute: float, cores: int, share: float = 0.0) -> Callable[[Setting], float]:
    """Steps a second of code that releases the GIL, for all but a share of its time."""

    def rate(setting: Setting) -> float:
        count = min(max(1, setting.count), cores)
        if setting.kind == "process":
            return count / (compute + 1e-4)
        return min(count / compute, 1 / max(compute * share, 1e-9))

    return rate


def waiting(wait: float, compute: float) -> Callable[[Setting], float]:
    """Steps a second of reads that wait for a disk or a network."""
    return lambda setting: max(1, setting.count) / (wait + compute)


def run(rate: Callable[[Setting], float], limits: Limits, compute: float, wall: float) -> Chooser:
    """Lets the chooser see batches at the rate of its settings until it settles."""
    chooser = Chooser(limits)
    for _ in range(100_000):
        if chooser.settled:
            return chooser
        if chooser.pending is not None:
            chooser.started()
        seconds = 1 / rate(chooser.now)
        chooser.read(compute, wall)
        chooser.taken(seconds * 0.9, seconds, 1)
    raise AssertionError("it does not settle")


def best(rate: Callable[[Setting], float], limits: Limits) -> float:
    counts = [1, 2, 4, 8, 16]
    fixed = [Setting("thread", n) for n in counts if n <= limits.most]
    fixed += [Setting("process", n) for n in counts if n <= limits.most]
    return max(map(rate, [CALLER, *fixed]))


@pytest.mark.parametrize("cores", [1, 2, 4, 16])
@pytest.mark.parametrize("compute", [1e-3, 1e-2, 0.2])
@pytest.mark.parametrize("kind", ["gil", "free", "half", "waits"])
@pytest.mark.parametrize("named", [False, True])
def test_the_choice_is_near_the_best(kind: str, compute: float, cores: int, named: bool) -> None:
    rate, wall = {
        "gil": (gil(compute), compute),
        "free": (free(compute, cores), compute),
        "half": (free(compute, cores, 0.3), compute),
        "waits": (waiting(compute, compute / 10), compute * 1.1),
    }[kind]
    limits = Limits(most=cores, first=cores if named else 1, cpus=cores, caller=not named)
    chooser = run(rate, limits, compute if kind != "waits" else compute / 10, wall)
    if kind == "gil" and cores == 1:
        assert chooser.now.kind != "process"
    assert rate(chooser.now) >= 0.9 * best(rate, limits), (chooser.now, chooser.rates)


def test_nothing_is_tried_while_reading_is_fast_enough() -> None:
    chooser = Chooser(Limits(most=8, first=1, cpus=8))
    for _ in range(10_000):
        chooser.taken(0.0001, 0.01, 1)
    assert chooser.now == Setting("thread", 1)
    assert not chooser.settled


def test_processes_are_not_tried_for_quick_steps() -> None:
    rate = gil(5e-5)
    chooser = run(rate, Limits(most=2, first=1, cpus=2), 5e-5, 5e-5)
    assert all(setting.kind != "process" for setting in chooser.rates)


def test_a_pipeline_that_does_not_go_into_processes_is_left_to_threads() -> None:
    chooser, rate = Chooser(Limits(most=4, first=1, cpus=4)), gil(0.01)
    while not chooser.settled:
        if chooser.pending is not None:
            chooser.refused()
            continue
        seconds = 1 / rate(chooser.now)
        chooser.read(0.01, 0.01)
        chooser.taken(seconds, seconds, 1)
    assert chooser.now.kind != "process"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (CALLER, "the caller"),
        (Setting("thread", 1), "1 thread"),
        (Setting("thread", 4), "4 threads"),
        (Setting("process", 1), "1 process"),
        (Setting("process", 2), "2 processes"),
    ],
)
def test_settings_in_words(setting: Any, words: str) -> None:
    assert str(setting) == words
