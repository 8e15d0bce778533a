"""The faults of worker processes that matter most; the others are in `test_process_faults.py`."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.slowly import quickly
from tests.workers.process_loaders import EXPECTED, N, children, in_processes, nothing_left
from tests.workers.reading import kept, numbers, until, within

from cereal import BatchTransform, DataLoader, DiskSampleSource, HostMapTransform, MemmapSource

pytestmark = pytest.mark.usefixtures(nothing_left.__name__)
_ = nothing_left

WITHOUT_9 = [[x for x in batch if x != 9] for batch in EXPECTED]


def slowly(i: int) -> int:
    time.sleep(0.004)
    return i


@pytest.mark.slow
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


@pytest.mark.parametrize("on_error", quickly(["raise", "skip"], "raise"))
def test_a_hung_element_is_ended(on_error: str, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    note.touch()

    def hang(i: int) -> int:
        if i == 9:
            with note.open("a") as file:
                file.write(f"{os.getpid()} ")
            time.sleep(1000)
        return i

    if on_error == "skip":
        with in_processes(hang, timeout=0.5, on_error="skip") as loader:
            assert within(lambda: kept(loader.iterate()), 20) == WITHOUT_9
        return
    with in_processes(hang, timeout=0.5) as loader:
        batches = loader.iterate()
        assert numbers([next(batches), next(batches)]) == EXPECTED[:2]
        with pytest.raises(TimeoutError) as caught:
            within(lambda: next(batches), 10)
        assert caught.value.element.index == 9  # type: ignore[attr-defined]
        assert note.read_text()
        assert until(lambda: not set(map(int, note.read_text().split())) & set(children()), 5)


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


def test_a_function_may_return_the_same_array_every_time() -> None:
    buffer = np.zeros(2, np.int32)

    def fill(batch: Any) -> Any:
        buffer[...] = batch
        return buffer

    stages = [list(range(12)), BatchTransform(2), HostMapTransform(fill), BatchTransform(3)]
    stages.append(HostMapTransform(lambda batch: batch + 0))
    with DataLoader(stages, workers=1, worker_type="process") as loader:
        first, _ = next(iter(loader.iterate()))
        assert first.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_processes_that_would_read_other_values_are_not_chosen(
    tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    (tmp_path / "with_a_setting.py").write_text(
        "SCALE = 1\ndef read(i):\n    sum(range(10_000))\n    return i * SCALE\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import with_a_setting  # pyright: ignore[reportMissingImports]

    with_a_setting.SCALE = 3  # a process imports the module anew, and does not see it
    caplog.set_level("INFO", "cereal")
    source = DiskSampleSource(10**6, with_a_setting.read, ordering="sequential")
    with DataLoader([source, BatchTransform(4)]) as loader:
        chooser = loader.service.who.chooser
        monkeypatch.setattr(chooser, "limits", chooser.limits._replace(most=2, cpus=2))
        monkeypatch.setattr(chooser, "_worth_processes", lambda rate: True)
        for step, (batch, _) in enumerate(loader.iterate()):
            assert batch.tolist() == [3 * (4 * step + k) for k in range(4)]
            if chooser.settled:
                break
        assert chooser.now.kind != "process"
    assert "reads other values" in caplog.text


@pytest.mark.slow
def test_an_interrupt_while_a_step_waits_for_its_turn_costs_only_that_step() -> None:
    with in_processes(slowly_indeed, workers=1, prefetch=1) as loader:
        state = loader.init_state(0)
        batches, found = loader.iterate(state), []
        found.append(next(batches)[0].tolist())
        rest = threading.Thread(target=lambda: found.extend(numbers(batches)))
        rest.start()
        interrupt = threading.Timer(0.05, lambda: signal.raise_signal(signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            [loader.next_batch(state) for _ in range(100)]
        rest.join(30)
        assert not rest.is_alive()
        assert found == EXPECTED


def slowly_indeed(i: int) -> int:
    time.sleep(0.02)
    return i


@pytest.mark.parametrize("how", quickly(["replaced", "changed in memory"], "changed in memory"))
def test_a_process_reads_the_mapped_array_and_not_what_its_file_has_now(
    how: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "rows.npy", np.arange(12, dtype=np.int32))
    mode = "r" if how == "replaced" else "c"
    rows = np.load(tmp_path / "rows.npy", mmap_mode=mode)
    if how == "replaced":
        np.save(tmp_path / "new.npy", np.zeros(12, np.int32))
        os.replace(tmp_path / "new.npy", tmp_path / "rows.npy")
    else:
        rows[:] = rows + 100
    expected = np.array(rows).reshape(3, 4).tolist()
    source = MemmapSource(rows, ordering="sequential")
    closure = DiskSampleSource(12, lambda i: rows[i], ordering="sequential")
    for first in (source, closure):
        with DataLoader([first, BatchTransform(4)], workers=1, worker_type="process") as loader:
            assert numbers(loader.iterate()) == expected
