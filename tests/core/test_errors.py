from __future__ import annotations

import pytest

import cereal
from cereal.core.errors import first_line, in_one_line


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (cereal.PipelineError, ValueError),
        (cereal.UsageError, TypeError),
        (cereal.StateError, ValueError),
    ],
)
def test_errors_are_one_family_and_what_python_would_raise(
    error: type[Exception], builtin: type[Exception]
) -> None:
    assert issubclass(error, cereal.CerealError)
    assert issubclass(error, builtin)


def test_the_warning_is_a_warning_of_users() -> None:
    for warning in (cereal.CaptureWarning, cereal.OptionWarning):
        assert issubclass(warning, UserWarning)
        assert not issubclass(warning, cereal.CerealError)


def test_an_error_of_many_lines_is_told_in_one() -> None:
    error = TypeError("\n  what was wrong\nand where\nand more")
    assert first_line(error) == "what was wrong"
    assert in_one_line(error) == "TypeError: what was wrong"
    assert in_one_line(KeyError()) == "KeyError: "
