"""Optional libraries (extras of `pip install`), imported when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import UsageError


def needs(module: str, extra: str, owner: str) -> Any:
    """Imports the module; if it is missing, the error says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{owner} needs {module.partition('.')[0]!r}, which is not installed; write "
            f"`pip install 'cereal-jax[{extra}]'`."
        ) from error
