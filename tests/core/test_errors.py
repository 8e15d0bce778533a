from __future__ import annotations

import pytest

import cereal


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
