"""Whose code it is, and what names it has."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import cereal
from cereal.functions.library import imported_in, is_library, names_in


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


def test_the_users_modules_that_a_function_imports_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_package").mkdir()
    (tmp_path / "a_package" / "__init__.py").touch()
    (tmp_path / "a_package" / "inner.py").write_text("def h(x): return x")
    monkeypatch.syspath_prepend(tmp_path)

    def absolute() -> Any:
        import json  # noqa: F401

        import a_package.inner  # type: ignore  # noqa: F401

    def from_inside() -> Any:
        from .inner import h  # type: ignore  # noqa: F401

    (tmp_path / "a_script.py").write_text("raise SystemExit('usage: ...')")

    def script() -> Any:
        import a_script  # type: ignore  # noqa: F401

    assert imported_in(script.__code__, None) == []

    def missing() -> Any:
        import no_such_package  # type: ignore  # noqa: F401

    found = [imported_in(each.__code__, "a_package") for each in (absolute, from_inside, missing)]
    assert [[module.__name__ for module in each] for each in found] == [
        ["a_package.inner"],
        ["a_package.inner"],
        [],
    ]
    for name in ("a_package", "a_package.inner"):
        monkeypatch.delitem(sys.modules, name)
