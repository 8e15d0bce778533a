from __future__ import annotations

from typing import Any

import pytest
import tqdm.auto

import cereal
from cereal.monitor.progress import NoBar, progress_bar


class Bar:
    """Notes what a loop does to it."""

    made: list[Bar]

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.count = 0
        self.closed = False
        Bar.made.append(self)

    def update(self) -> None:
        assert not self.closed
        self.count += 1

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[Bar]:
    Bar.made = []
    monkeypatch.setattr(tqdm.auto, "tqdm", Bar)
    return Bar.made


def keep(batch: Any, mask: Any) -> None: ...


INDEXED = cereal.DataLoader([cereal.RangeSource(10), cereal.BatchTransform(4)])
ORDERED = cereal.DataLoader(
    [cereal.RangeSource(10), cereal.BatchTransform(4), cereal.HostCallbackTransform(keep)]
)


@pytest.mark.parametrize("loader", [INDEXED, ORDERED])
def test_the_bar_of_an_iterator_counts_batches_and_closes_at_the_end(
    loader: cereal.DataLoader[Any], bars: list[Bar]
) -> None:
    iterator = loader.iterate(progress=True)
    (bar,) = bars
    assert bar.options["total"] == 3
    assert bar.options["unit"] == "batch"
    for count, _ in enumerate(iterator, start=1):
        assert bar.count == count
        assert not bar.closed
    assert (bar.count, bar.closed) == (3, True)


def test_a_string_is_the_title_and_the_total_is_what_is_left(bars: list[Bar]) -> None:
    state = INDEXED.state_at(0, 2)
    list(INDEXED.iterate(state, progress="evaluation"))
    assert bars[0].options["desc"] == "evaluation"
    assert bars[0].options["total"] == 1
    INDEXED.iterate(progress=True, epochs=None)
    assert bars[1].options["total"] is None
    assert bars[1].options["desc"] is None


def test_without_progress_there_is_no_bar(bars: list[Bar]) -> None:
    list(INDEXED.iterate())
    assert bars == []
    assert isinstance(progress_bar(False, 3), NoBar)


def test_a_real_bar_is_written_to_the_terminal_and_closed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    list(INDEXED.iterate(progress="digits"))
    shown = capsys.readouterr().err
    assert "digits: 100%" in shown
    assert "3/3" in shown
    assert shown.endswith("\n")
