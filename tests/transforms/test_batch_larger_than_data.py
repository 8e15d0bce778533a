"""A batch that is larger than the data wraps within itself: said once, when it is built."""

import warnings

import numpy as np
import pytest

from cereal import (
    BatchTransform,
    Bootstrap,
    DataLoader,
    DiskSampleSource,
    IterableSource,
    MixSource,
    RangeSource,
    RepeatSource,
    pad_collate,
)

WORDS = r"BatchTransform\(100.*\) over 10 elements: .* write `BatchTransform\(10\)`, or pass"


@pytest.mark.parametrize(
    "stages",
    [
        [RangeSource(10), BatchTransform(100)],
        [DiskSampleSource(10, np.float32), BatchTransform(100)],
        [[[1], [2]] * 5, BatchTransform(100, collate=pad_collate(2))],
    ],
)
def test_a_batch_larger_than_the_data_warns_where_the_loader_is_built(stages):
    with pytest.warns(UserWarning, match=WORDS) as caught:
        DataLoader(stages)
    assert [warning.filename for warning in caught] == [__file__]


def test_a_batch_of_batches_warns_once():
    with pytest.warns(UserWarning, match=r"BatchTransform\(3\) over 10 elements") as caught:
        DataLoader([RangeSource(10), BatchTransform(4), BatchTransform(3)])
    assert len(caught) == 1
    with pytest.warns(UserWarning, match=r"BatchTransform\(100\) over 10 elements") as caught:
        DataLoader([RangeSource(10), BatchTransform(100), BatchTransform(3)])
    assert len(caught) == 1


@pytest.mark.parametrize(
    "stages",
    [
        [RangeSource(10), BatchTransform(10)],
        [RangeSource(10), BatchTransform(100, pad_last_batch=True)],
        [RangeSource(10, ordering=Bootstrap()), BatchTransform(100)],
        [RepeatSource(RangeSource(10), 10), BatchTransform(100)],
        [IterableSource(lambda: range(10)), BatchTransform(100)],
        [MixSource([RangeSource(1000), RangeSource(2)], weights=(1, 1)), BatchTransform(100)],
    ],
)
def test_what_repeats_nothing_or_is_meant_does_not_warn(stages):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DataLoader(stages)
