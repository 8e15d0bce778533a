"""Whole numbers, as users pass them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from cereal.core.numbers import as_whole


@pytest.mark.parametrize(
    "value", [7, np.int8(7), np.uint64(7), jnp.int32(7), np.array(7)], ids=repr
)
def test_integers_of_all_libraries_are_whole(value: Any) -> None:
    assert as_whole(value) == 7
    assert type(as_whole(value)) is int


@pytest.mark.parametrize("value", [True, 7.0, "7", None, [7], np.float32(7), 7j], ids=repr)
def test_nothing_else_is(value: Any) -> None:
    assert as_whole(value) is None
