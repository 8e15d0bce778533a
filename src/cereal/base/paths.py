"""Paths, as users pass them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .errors import PipelineError


def as_path(value: Any, name: str, owner: str) -> Path:
    """A path with its `~` written out, or an error that names the argument."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise PipelineError(
            f"{owner}: `{name}` must be a path, such as {'~/data'!r} or a pathlib.Path, got "
            f"{type(value).__name__} ({value!r:.60})."
        )
    return Path(value).expanduser()


def user_cache() -> Path:
    """The user's cache folder, where the operating system has it."""
    import pooch

    return Path(pooch.os_cache("cereal"))
