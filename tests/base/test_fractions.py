"""Fractions are numbers, in an order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cereal import PipelineError, RangeSource, WindowSource, split, split_time


@pytest.mark.parametrize("fractions", ["33", ("3", "3"), b"33", {0.5: 1}, {0.25, 0.75}, 0.5, None])
def test_fractions_that_are_no_numbers_in_an_order_are_refused(fractions: Any) -> None:
    with pytest.raises(PipelineError, match=r"^split: `fractions` must be numbers, got .*; write "):
        split(RangeSource(6), fractions)
    windows = WindowSource(np.arange(40), 4)
    with pytest.raises(PipelineError, match=r"^split_time: `fractions` must be numbers, got .*; w"):
        split_time(windows, fractions)


def test_fractions_may_be_of_numpy() -> None:
    halves: Any = np.array([0.5, 0.5])
    sizes: Any = np.array([3, 5])
    assert [len(part) for part in split(RangeSource(8), halves)] == [4, 4]
    assert [len(part) for part in split(RangeSource(8), sizes)] == [3, 5]
