from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stderr
from typing import Any

import pytest
import tqdm.auto

import cereal
from cereal.loaders.progress import LogLines, MovingBar, NoBar, progress_bar


class Terminal(io.StringIO):
    """Text that says it is written to a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The bars of tqdm that were made, in order."""
    made: list[Any] = []

    class Noted(tqdm.auto.tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(tqdm.auto, "tqdm", Noted)
    yield made
    for bar in made:  # one that is open would push those of other tests a line down
        bar.close()


def keep(batch: Any, mask: Any) -> None: ...


INDEXED = cereal.DataLoader([cereal.RangeSource(10), cereal.BatchTransform(4)])
ORDERED = cereal.DataLoader(
    [cereal.RangeSource(10), cereal.BatchTransform(4), cereal.HostCallbackTransform(keep)]
)


@pytest.mark.parametrize("loader", [INDEXED, ORDERED])
def test_the_bar_of_an_iterator_counts_batches_and_closes_at_the_end(
    loader: cereal.DataLoader[Any], bars: list[Any]
) -> None:
    iterator = loader.iterate(progress=True)
    (bar,) = bars
    assert bar.total == 3
    assert bar.unit == "batch"
    for count, _ in enumerate(iterator, start=1):
        assert bar.n == count
        assert not bar.disable
    assert bar.n == 3
    assert bar.disable  # what tqdm calls closed


def test_a_string_is_the_title_and_the_total_is_what_is_left(bars: list[Any]) -> None:
    state = INDEXED.state_at(0, 2)
    list(INDEXED.iterate(state, progress="evaluation"))
    assert bars[0].desc == "evaluation"
    assert bars[0].total == 1
    INDEXED.iterate(progress=True, epochs=None)
    assert bars[1].total is None
    assert bars[1].desc == ""


def test_without_progress_there_is_no_bar(bars: list[Any]) -> None:
    list(INDEXED.iterate())
    assert bars == []
    assert isinstance(progress_bar(False, 3), NoBar)


def test_a_bar_in_a_terminal_is_drawn_over_itself_and_closed() -> None:
    with redirect_stderr(Terminal()) as terminal:
        list(INDEXED.iterate(progress="digits"))
    shown = terminal.getvalue()
    assert "\rdigits:   0%" in shown
    assert "\rdigits: 100%" in shown
    assert "3/3" in shown
    assert shown.count("\n") == 1
    assert shown.endswith("\n")


def test_a_log_file_gets_a_line_for_the_first_batch_and_each_quarter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    loader = cereal.DataLoader([cereal.RangeSource(1000), cereal.BatchTransform(1)])
    list(loader.iterate(progress="digits"))
    shown = capsys.readouterr().err
    assert "\r" not in shown
    counts = [line.split("|")[-1].split()[0] for line in shown.splitlines()]
    assert counts == ["1/1000", "250/1000", "500/1000", "750/1000", "1000/1000"]
    assert shown.splitlines()[-1].startswith("digits: 100%")


@pytest.mark.parametrize(
    ("total", "steps", "counts"),
    [
        (3, [1, 1, 1], [1, 2, 3]),
        (10, [1] * 10, [1, 3, 5, 8, 10]),
        (40, [16, 16, 8], [16, 32, 40]),  # a scan in parts
        (100, [1] * 30, [1, 25, 30]),  # left early
        (None, [1] * 345, [1, 10, 100, 345]),
        (0, [], []),
    ],
)
def test_a_log_file_gets_few_lines_however_many_batches_there_are(
    total: int | None, steps: list[int], counts: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    bar = progress_bar(True, total)
    assert isinstance(bar, LogLines)
    for step in steps:
        bar.update(step)
    bar.close()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(counts)
    for line, count in zip(lines, counts, strict=True):
        assert f"{count}/{total}" in line if total else f"{count}batch" in line


def test_a_bar_that_tqdm_was_told_to_leave_out_writes_no_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bar = LogLines(tqdm.auto.tqdm(total=3, delay=float("inf"), disable=True))
    for _ in range(3):
        bar.update()
    bar.close()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("moving", [True, False])
def test_the_time_of_compiling_the_pipeline_and_the_step_is_not_in_the_rate(
    moving: bool, bars: list[Any]
) -> None:
    with redirect_stderr(Terminal() if moving else io.StringIO()):
        bar = progress_bar(True, 100)
    assert isinstance(bar, MovingBar if moving else LogLines)
    (shown,) = bars
    for count in (10, 20):
        shown.start_t -= 3600  # compiling took an hour
        shown.last_print_t -= 3600
        bar.update(10)
        timed = shown.format_dict
        assert timed["elapsed"] < 60
        assert (timed["n"], timed["initial"]) == (count, count)
    for _ in range(5):
        bar.update(2)
    assert shown.format_dict["elapsed"] < 60
    assert (shown.n, shown.initial) == (30, 20)
    bar.close()
