"""Whole numbers, as users pass them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from cereal import PipelineError, UsageError
from cereal.core.numbers import as_count, as_optional_count, as_whole


@pytest.mark.parametrize(
    "value", [7, np.int8(7), np.uint64(7), jnp.int32(7), np.array(7)], ids=repr
)
def test_integers_of_all_libraries_are_whole(value: Any) -> None:
    assert as_whole(value) == 7
    assert type(as_whole(value)) is int


@pytest.mark.parametrize("value", [True, 7.0, "7", None, [7], np.float32(7), 7j], ids=repr)
def test_nothing_else_is(value: Any) -> None:
    assert as_whole(value) is None


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None], ids=repr)
def test_a_count_is_at_least_one_and_the_error_names_the_argument(value: Any) -> None:
    message = f"^Owner: `size` must be an integer of at least 1, got {value!r}\\.$"
    with pytest.raises(PipelineError, match=message):
        as_count(value, "size", "Owner")


def test_a_count_has_the_limits_the_hint_and_the_error_that_its_caller_gives() -> None:
    assert as_count(np.int64(0), "size", "Owner", 0) == 0
    assert as_count(4, "size", "Owner", 2, 4) == 4
    with pytest.raises(UsageError, match=r"^Owner: `size` must be .* from 2 to 4, got 5; stop\.$"):
        as_count(5, "size", "Owner", 2, 4, hint="stop", error=UsageError)


def test_an_optional_count_may_be_none() -> None:
    assert as_optional_count(None, "size", "Owner") is None
    assert as_optional_count(3, "size", "Owner") == 3
    with pytest.raises(PipelineError, match=r"^Owner: `size` must be an integer of at least 0"):
        as_optional_count(-1, "size", "Owner", 0)
