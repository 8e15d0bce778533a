"""`help()` explains every option, and says what it is by default."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import cereal

EXPLAINED = {
    "DataLoader": (cereal.DataLoader, cereal.DataLoader.__init__),
    "iterate": (cereal.DataLoader.iterate, cereal.DataLoader.iterate),
    "scan_epoch": (cereal.DataLoader.scan_epoch, cereal.DataLoader.scan_epoch),
    "preview": (cereal.preview, cereal.preview),
}


def explanations(value: Any) -> dict[str, str]:
    """The text of each argument below `Args:`."""
    text = (inspect.getdoc(value) or "").partition("\nArgs:\n")[2]
    return dict(re.findall(r"^    (\w+): ((?:.|\n     )*)", text, re.M))


@pytest.mark.parametrize("name", EXPLAINED)
def test_every_option_is_explained_in_its_order(name: str) -> None:
    documented, called = EXPLAINED[name]
    parameters = inspect.signature(called).parameters.values()
    hidden = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    options = [each.name for each in parameters if each.name != "self" and each.kind not in hidden]
    assert list(explanations(documented)) == options


@pytest.mark.parametrize("name", ["DataLoader", "iterate", "scan_epoch"])
def test_what_may_be_left_out_says_what_it_is_then(name: str) -> None:
    documented, called = EXPLAINED[name]
    said = explanations(documented)
    for option in inspect.signature(called).parameters.values():
        if option.kind is inspect.Parameter.KEYWORD_ONLY:
            assert "default" in said[option.name].lower(), option.name
