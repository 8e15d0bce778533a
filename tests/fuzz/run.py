"""Checks the pipelines of many seeds, in several processes, up to the first difference."""

from __future__ import annotations

import itertools
import multiprocessing
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.fuzz.cases import check_case
from tests.fuzz.edits import check_edit
from tests.fuzz.mutations import check_mutation

EVERY_MUTATION = 3  # of so many seeds, one is for a change between epochs
EVERY_EDIT = 20


class Outcome(NamedTuple):
    """What came of a seed."""

    seed: int
    what: str
    problem: str = ""


def check(seed: int) -> str:
    """Checks what belongs to a seed, and says what that was."""
    warnings.simplefilter("ignore")  # large batches of small data, epochs again: on purpose
    if seed % EVERY_EDIT == EVERY_EDIT - 1:
        return f"edit {check_edit(seed // EVERY_EDIT)}"
    if seed % EVERY_MUTATION == EVERY_MUTATION - 1:
        return f"mutation {check_mutation(seed)}"
    return str(check_case(seed))


def outcome_of(seed: int) -> Outcome:
    try:
        return Outcome(seed, check(seed))
    except Exception:
        return Outcome(seed, "", traceback.format_exc())


def outcomes(seeds: Any, processes: int) -> Iterator[Outcome]:
    if processes == 1:
        yield from map(outcome_of, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(outcome_of, seeds)


def seeds_until(first: int, count: int | None, end: float | None) -> Iterator[int]:
    for seed in itertools.count(first) if count is None else range(first, first + count):
        if end is not None and time.monotonic() > end:
            return
        yield seed


def fuzz(first: int, count: int | None, minutes: float | None, processes: int) -> int:
    """The exit code: 0 if there was no difference."""
    end = None if minutes is None else time.monotonic() + 60 * minutes
    print(f"from seed {first}, in {processes} processes", flush=True)
    done = 0
    for outcome in in_slices(first, count, end, processes):
        done += 1
        if outcome.problem:
            print(outcome.problem)
            print(f"{done} pipelines, 1 difference; again: make fuzz SEED={outcome.seed} COUNT=1")
            return 1
        if done % 100 == 0:
            print(f"{done} pipelines", flush=True)
    print(f"{done} pipelines, 0 differences")
    return 0


def in_slices(
    first: int, count: int | None, end: float | None, processes: int
) -> Iterator[Outcome]:
    """By a few hundred: what they compiled leaves the memory with the processes that did."""
    size = 1 if count == 1 else 250
    for start in itertools.count(first, size):
        left = size if count is None else min(size, first + count - start)
        if left <= 0 or (end is not None and time.monotonic() > end):
            return
        yield from outcomes(seeds_until(start, left, end), 1 if left == 1 else processes)
