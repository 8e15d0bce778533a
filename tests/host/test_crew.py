"""The threads of a loader: as many as there is work for, and every one of them put to use."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from tests.workers.reading import OwnError, until, within

from cereal.host.crew import Crew


class Jobs:
    """A track whose jobs are functions."""

    def __init__(self, crew: Crew) -> None:
        self.crew, self.closed = crew, False
        self.jobs: deque[Callable[[], Any]] = deque()
        with crew.lock:
            crew.add(self)

    def next_job(self) -> Callable[[], Any] | None:
        return self.jobs.popleft() if self.jobs else None

    def add(self, *jobs: Callable[[], Any]) -> None:
        with self.crew.lock:
            self.jobs.extend(jobs)
            self.crew.wake(len(jobs))

    def close(self) -> None:
        self.closed = True
        self.crew.remove(self)


class Plain:
    """How a thread reads that has no options."""

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
    def settings(self) -> Any:
        return self

    def finish(self) -> None: ...


@pytest.mark.parametrize("size", [1, 2, 5])
def test_there_are_no_more_threads_than_its_size(size: int) -> None:
    crew, names, done = Crew(size), set[str](), threading.Semaphore(0)

    def job() -> None:
        names.add(threading.current_thread().name)
        done.release()

    track = Jobs(crew)
    for _ in range(40):
        track.add(job)
    for _ in range(40):
        assert done.acquire(timeout=60)
    assert 1 <= len(names) <= size
    track.close()
    assert not crew._threads


def test_threads_start_only_when_there_is_work() -> None:
    crew = Crew(4)
    track = Jobs(crew)
    assert not crew._threads
    done = threading.Event()
    track.add(done.set)
    assert done.wait(60)
    assert len(crew._threads) == 1
    track.close()


def test_jobs_that_need_each_other_run_at_once() -> None:
    crew, together = Crew(3), threading.Barrier(4)
    track = Jobs(crew)
    track.add(*[lambda: together.wait(60)] * 3)
    within(lambda: together.wait(30))
    track.close()


def test_an_idle_thread_that_was_woken_is_not_counted_on_twice() -> None:
    crew, together = Crew(2), threading.Barrier(3)
    track, first = Jobs(crew), threading.Event()
    track.add(first.set)
    assert first.wait(60)
    assert until(lambda: crew._idle == 1)

    def job() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(60)

    with crew.lock:
        for _ in range(2):  # two consumers, before the idle thread comes to itself
            track.jobs.append(job)
            crew.wake(1)
    with contextlib.suppress(threading.BrokenBarrierError):
        together.wait(10)
    alone = together.broken
    track.close()
    assert not alone, "the second job waits for the first, beside a place for a thread"


def test_a_thread_that_was_woken_when_its_time_was_up_is_forgotten() -> None:
    crew, done = Crew(1), threading.Event()
    track = Jobs(crew)
    track.add(done.set)
    assert done.wait(60)
    assert until(lambda: crew._idle == 1)
    with crew.lock:
        crew._told = 1  # `notify` reached it, and its `wait` says that it timed out
    assert until(lambda: not crew._threads, 20)
    told = crew._told
    track.close()
    assert told == 0


def test_tracks_take_turns() -> None:
    crew, order, done = Crew(1), list[str](), threading.Semaphore(0)
    gate = threading.Event()
    one, other = Jobs(crew), Jobs(crew)
    one.add(lambda: gate.wait(60))
    for name, track in (("a", one), ("b", other)):
        track.add(*[lambda name=name: (order.append(name), done.release())] * 4)
    gate.set()
    for _ in range(8):
        assert done.acquire(timeout=60)
    assert order in (list("abababab"), list("babababa"))
    one.close()
    other.close()


def test_threads_end_when_they_have_nothing_to_do() -> None:
    crew = Crew(2)
    track, done = Jobs(crew), threading.Event()
    track.add(done.set)
    assert done.wait(60)
    assert until(lambda: not crew._threads, 20)
    again = threading.Event()
    track.add(again.set)
    assert again.wait(60)
    track.close()


def test_the_last_track_takes_the_threads_with_it() -> None:
    crew = Crew(2)
    tracks = [Jobs(crew) for _ in range(2)]
    done = threading.Event()
    tracks[0].add(done.set)
    assert done.wait(60)
    threads = list(crew._threads)
    tracks[0].close()
    assert threads[0].is_alive()
    tracks[1].close()
    assert not threads[0].is_alive()
    tracks[1].close()


def test_a_track_may_be_closed_by_a_worker() -> None:
    crew = Crew(2)
    track, done = Jobs(crew), threading.Event()
    track.add(lambda: (track.close(), done.set()))
    assert done.wait(60)
    assert until(lambda: not crew._threads, 20)


# Helping


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("parts", [0, 1, 2, 7, 50])
def test_what_is_spread_comes_back_in_order(size: int, parts: int) -> None:
    crew = Crew(size)
    track, found, done = Jobs(crew), [], threading.Event()

    def job() -> None:
        found.extend(crew.spread(range(parts), lambda part: part * part, Plain))
        done.set()

    track.add(job)
    assert done.wait(60)
    assert found == [part * part for part in range(parts)]
    assert not crew._shares
    track.close()


def test_the_error_of_the_first_part_that_failed_is_raised() -> None:
    crew = Crew(3)
    track, found, done = Jobs(crew), [], threading.Event()

    def run(part: int) -> int:
        if part in (3, 7):
            raise OwnError(part)
        return part

    def job() -> None:
        try:
            crew.spread(range(10), run, Plain)
        except OwnError as error:
            found.append(error.args)
        done.set()

    track.add(job)
    assert done.wait(60)
    assert found == [(3,)]
    assert not crew._shares
    track.close()


def test_shares_within_shares_end() -> None:
    crew = Crew(3)
    track, found, done = Jobs(crew), [], threading.Event()

    def outer(part: int) -> list[int]:
        return crew.spread(range(5), lambda inner: 10 * part + inner, Plain)

    track.add(lambda: (found.extend(crew.spread(range(6), outer, Plain)), done.set()))
    assert done.wait(60)
    assert found == [[10 * part + inner for inner in range(5)] for part in range(6)]
    track.close()
