"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_atomically(path: Path, write: Callable[[Any], Any]) -> None:
    """Writes a temporary file beside `path`, and renames it to `path` when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(number, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        as_usual(Path(name), 0o666)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def as_usual(path: Path, mode: int) -> None:
    """Gives a temporary file or folder the rights of any new one; `tempfile` gives it fewer."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(mode & ~mask)
