"""Whose code it is, and what names it has."""

from __future__ import annotations

import json
import types
from typing import Any

import jax
import numpy as np
import pytest

import cereal
from cereal.core.library import is_library, names_in


class Own:
    """A class of a user."""


def own(x: Any) -> Any:
    def inner(y: Any) -> Any:
        return np.sin(y) + len(x)

    return inner


@pytest.mark.parametrize(
    "thing", [json, jax, cereal, json.dumps, jax.vmap, dict, cereal.DataLoader]
)
def test_what_is_installed_is_a_librarys(thing: Any) -> None:
    assert is_library(thing)


@pytest.mark.parametrize(
    "thing",
    [own, Own, lambda x: x, types.ModuleType("settings")],
    ids=["function", "class", "lambda", "module"],
)
def test_what_is_written_here_is_not(thing: Any) -> None:
    assert not is_library(thing)


def test_names_are_those_of_functions_inside_too() -> None:
    assert {"np", "sin", "len"} <= set(names_in(own.__code__))
