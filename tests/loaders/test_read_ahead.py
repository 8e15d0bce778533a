"""Whether one call makes many batches is decided once per loader, at the beginning."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from cereal import BatchTransform, DataLoader, MapTransform, RangeSource
from cereal.loaders.iterators import iterator as iterator_module

N, STEPS, MANY = 600, 200, 16
INFINITE = float("inf")


def same(x: Any) -> Any:
    return x


def make_loader() -> DataLoader[Any]:
    return DataLoader([RangeSource(N), MapTransform(same), BatchTransform(3)])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches each call makes."""
    found: list[int] = []
    read_many = iterator_module.read_many

    def counted(source: Any, words: Any, count: int) -> Any:
        found.append(count)
        return read_many(source, words, count)

    monkeypatch.setattr(iterator_module, "read_many", counted)
    return found


def run(loader: DataLoader[Any], **options: Any) -> None:
    assert len(list(loader.iterate(**options))) == options.get("steps", STEPS)


@pytest.mark.parametrize(("worth", "ahead"), [(0.0, False), (INFINITE, True)])
def test_what_the_first_iteration_saw_holds_for_all(
    worth: float, ahead: bool, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make_loader()
    monkeypatch.setattr(iterator_module, "_WORTH_READING_AHEAD", worth)
    run(loader)
    first = set(calls)
    # From now on a batch costs the other thing, and nothing is compiled for that.
    monkeypatch.setattr(iterator_module, "_WORTH_READING_AHEAD", INFINITE if worth == 0 else 0.0)
    for _ in range(3):
        calls.clear()
        run(loader)
        assert set(calls) <= first
    assert (max(calls) > 1) is ahead
    assert first == ({1, max(calls)} if ahead else {1})


def test_a_late_batch_does_not_decide_alone(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first call is not judged; two are late, and the third is not.
    seen = itertools.chain([0.0], [0.0, 9.0], [0.0, 9.0], itertools.repeat(0.0))
    clock = SimpleNamespace(perf_counter=lambda: next(seen))
    monkeypatch.setattr(iterator_module, "time", clock)
    loader = make_loader()
    run(loader)
    assert loader.learnt.ahead is True
    assert calls[:4] == [1, 1, 1, 1]
    assert calls[4] > 1


def test_a_look_at_a_few_batches_compiles_nothing_and_decides_nothing(calls: list[int]) -> None:
    loader = make_loader()
    run(loader, steps=10)
    assert set(calls) == {1}
    assert loader.learnt.ahead is None


def test_a_run_resumed_near_the_end_of_an_epoch_decides_as_whole_epochs_do(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iterator_module, "_WORTH_READING_AHEAD", INFINITE)
    loader = make_loader()
    assert len(list(loader.iterate(loader.state_at(0, STEPS - 40)))) == 40
    assert loader.learnt.ahead is True
    assert max(calls) > 1
