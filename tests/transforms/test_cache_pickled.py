"""A loader over a cache that was pickled."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from cereal import CacheTransform, DataLoader, MapTransform, RangeSource


def square(x: Any) -> Any:
    return x * x


@pytest.mark.parametrize("where", ["device", "host"])
def test_a_pickled_loader_gives_the_same(where: str) -> None:
    loader = DataLoader([RangeSource(8), MapTransform(square), CacheTransform(where)])
    again = pickle.loads(pickle.dumps(loader))
    for each in (loader, again):
        np.testing.assert_array_equal([int(x) for x, _ in each], np.arange(8) ** 2)
