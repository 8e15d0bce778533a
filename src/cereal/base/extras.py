"""Libraries that come with an extra, imported on use."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import UsageError


def needs(module: str, extra: str, owner: str) -> Any:
    """The module; an error that says what to install if it is not there."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{owner} needs {module.partition('.')[0]!r}, which is not installed; write "
            f"`pip install 'cereal-jax[{extra}]'`."
        ) from error
