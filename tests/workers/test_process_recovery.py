"""The faults of worker processes that matter most; the others are in `test_process_faults.py`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.workers.process_loaders import EXPECTED, N, children, in_processes, nothing_left
from tests.workers.reading import kept, numbers, until, within

pytestmark = pytest.mark.usefixtures(nothing_left.__name__)
_ = nothing_left

WITHOUT_9 = [[x for x in batch if x != 9] for batch in EXPECTED]


def slowly(i: int) -> int:
    time.sleep(0.004)
    return i


@pytest.mark.parametrize("how_many", [1, 2])
def test_killed_workers_are_replaced_and_nothing_is_lost(how_many: int) -> None:
    with in_processes(slowly) as loader:
        found = []
        for step, (batch, _) in enumerate(loader.iterate()):
            found.append(batch.tolist())
            if step in (1, 4):
                for pid in children()[:how_many]:
                    os.kill(pid, signal.SIGKILL)
        assert found == EXPECTED
        assert len(children()) <= 2


def test_an_element_that_ends_its_worker_twice_is_skipped_if_asked() -> None:
    with in_processes(lambda i: os._exit(3) if i == 9 else i, on_error="skip") as loader:
        assert kept(loader.iterate()) == WITHOUT_9
        assert loader.skipped == 1


def test_a_hung_element_is_ended(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    note.touch()

    def hang(i: int) -> int:
        if i == 9:
            with note.open("a") as file:
                file.write(f"{os.getpid()} ")
            time.sleep(1000)
        return i

    with in_processes(hang, timeout=0.5) as loader:
        batches = loader.iterate()
        assert numbers([next(batches), next(batches)]) == EXPECTED[:2]
        with pytest.raises(TimeoutError) as caught:
            within(lambda: next(batches), 10)
        assert caught.value.element.index == 9  # type: ignore[attr-defined]
        assert note.read_text()
        assert until(lambda: not set(map(int, note.read_text().split())) & set(children()), 5)
    with in_processes(hang, timeout=0.5, on_error="skip") as loader:
        assert within(lambda: kept(loader.iterate()), 20) == WITHOUT_9


def test_on_error_runs_in_the_loaders_process_and_may_return_an_element() -> None:
    seen: list[Any] = []

    def instead(error: Exception) -> int:
        seen.append((type(error), error.element.index))  # type: ignore[attr-defined]
        return -1

    def odd(i: int) -> int:
        if i % 2:
            raise KeyError(i)
        return i

    with in_processes(odd, on_error=instead) as loader:
        found = numbers(loader.iterate())
    assert found == [[x if x % 2 == 0 else -1 for x in batch] for batch in EXPECTED]
    assert sorted(at for _, at in seen) == list(range(1, N, 2))
