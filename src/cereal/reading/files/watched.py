"""Files that must not change while a loader reads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ...base.errors import PipelineError


class WatchedFile:
    """A file as it was when the source was built: its size, and when it was last written.

    It is pickled with both, so a worker process compares with what the builder saw.
    """

    def __init__(self, path: str | os.PathLike[str], owner: str) -> None:
        self.path, self._owner = os.path.abspath(path), owner
        try:
            self._seen = _status(self.path)
        except OSError as error:
            raise PipelineError(
                f"{owner}: the file {self.path!r} cannot be opened: {error.strerror or error}."
            ) from error

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def size(self) -> int:
        return self._seen[0]

    def check(self) -> None:
        """Raises if the file is not the one that was there at first."""
        try:
            now = _status(self.path)
        except OSError as error:
            raise PipelineError(
                f"{self._owner}: the file {self.path!r} is gone ({error.strerror or error}); it "
                f"must stay where it is while a loader reads it."
            ) from error
        if now != self._seen:
            raise self.changed("size" if now[0] != self._seen[0] else "time")

    def changed(self, what: str) -> PipelineError:
        """The error about a file that is not the same any more."""
        return PipelineError(
            f"{self._owner}: the file {self.path!r} has changed since the source was built (its "
            f"{what} is another), so positions in it are not what they were; build the source and "
            f"the loader again."
        )

    def digest(self) -> Any:
        return [self.path, *self._seen]


def _status(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns
