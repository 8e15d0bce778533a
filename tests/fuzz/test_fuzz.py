"""A short fixed run of the fuzzer, and faults that it must find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.fuzz import cases
from tests.fuzz.edits import EDITS, check_edit
from tests.fuzz.mutations import HOLDERS, STYLES, USES, check_change
from tests.fuzz.pipelines import Draw
from tests.fuzz.reference import DifferenceError

from cereal.loaders.iterators.iterator import PositionalIterator
from cereal.order import ordering
from cereal.transforms import filter as filters

# Large batches of small data, the same epoch again: here it is on purpose.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

FIXED = range(40)


@pytest.fixture(autouse=True)
def no_files_left_open() -> None:
    """Not watched here: a dozen loaders over files go at once, and theirs close a moment later."""


@pytest.mark.parametrize("seed", FIXED)
def test_every_way_gives_what_the_reference_expects(seed: int) -> None:
    cases.check_case(seed)


@pytest.mark.parametrize("use", USES)
def test_what_changed_between_epochs_is_seen_or_refused(use: str) -> None:
    styles = list(STYLES)
    for number, holder in enumerate(HOLDERS):
        check_change(holder, styles[number % len(styles)], use)


@pytest.mark.parametrize("seed", range(2 * len(EDITS)))
def test_data_that_is_written_into_or_edited_is_old_or_new_and_never_both(seed: int) -> None:
    check_edit(seed)


def test_the_drawn_pipelines_have_everything() -> None:
    drawn = str([Draw(seed).case() for seed in range(1000)])
    sources = "array range memmap window disk dataset iterable unstacked concat slice repeat zip"
    others = "mix split parts kfold select sequential shuffle indices block weighted balanced boot"
    stages = "map host_map random host_random filter host_filter normalize flatten rename cache"
    rules = "wrap pad drop host device folder"
    for word in f"{sources} {others} {stages} {rules}".split():
        assert f"'{word}'" in drawn, word


def test_a_seed_is_all_that_a_pipeline_depends_on() -> None:
    assert [Draw(seed).case() for seed in range(50)] == [Draw(seed).case() for seed in range(50)]


# Faults that are put in, and must be found


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Puts a fault in; what was compiled before, and with it, does not stay."""
    jax.clear_caches()
    with monkeypatch.context() as patch:
        yield patch
    jax.clear_caches()


def finds_a_difference(seeds: Any) -> bool:
    for seed in seeds:
        try:
            cases.check_case(seed)
        except DifferenceError:
            return True
    return False


def test_an_order_that_is_off_by_one_is_found(fault: pytest.MonkeyPatch) -> None:
    right = ordering.Shuffle.index

    def wrong(self: Any, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Any:
        found = right(self, key, epochs, column, position, n)
        return (found + (position == 0).astype(found.dtype)) % found.dtype.type(n)

    fault.setattr(ordering.Shuffle, "index", wrong)
    shuffled = [s for s in range(60) if Draw(s).case().order == ("shuffle",)]
    assert finds_a_difference(shuffled[:4])


def test_a_filter_that_forgets_is_found(fault: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, values: Any, mask: Any, keys: Any, lanes: Any) -> Any:
        del self, keys, lanes
        return values, mask & jnp.bool_(True)

    fault.setattr(filters.FilterTransform, "apply", wrong)
    filtered = [s for s in range(200) if "'filter'" in str(Draw(s).case().stages)]
    assert finds_a_difference(filtered[:4])


def test_a_way_that_swaps_two_batches_is_found(fault: pytest.MonkeyPatch) -> None:
    right = PositionalIterator.__next__
    held: dict[int, Any] = {}

    def wrong(self: Any) -> Any:
        if id(self) in held:
            return held.pop(id(self))
        first = right(self)
        try:
            second = right(self)
        except StopIteration:
            return first
        held[id(self)] = first
        return second

    fault.setattr(PositionalIterator, "__next__", wrong)
    iterated = [s for s in range(200) if s % 9 == 0 and not Draw(s).case().unbatched]
    assert finds_a_difference(iterated[:8])


def test_a_body_that_stays_old_is_found(fault: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []

    def stale(use: Any, program: Any) -> list[Any]:
        kept[:] = kept or [float(np.float32(program.function()(1.0)))]
        return list(kept)

    fault.setitem(USES, "stale", stale)
    with pytest.raises(DifferenceError, match="the number does not matter"):
        check_change("a global", "a function", "stale")

    def remembers(use: Any, program: Any) -> list[Any]:
        return use.keep(lambda: [float(program.function()(1.0))])

    fault.setitem(USES, "remembers", remembers)
    with pytest.raises(DifferenceError, match="what it was before"):
        check_change("a global", "a function", "remembers")
