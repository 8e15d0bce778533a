"""Where a conversion is made: a hidden folder beside the one that it will be.

    .photos.converting/
      lock            held while a process works here
      manifest.json   what is converted, and how much of it is on the disk
      new/            the files; in the end this folder becomes `photos`
      old/            what was called `photos` before, while the names change
      parts-.../      chunks from worker processes

If the process is killed, the folder stays, and the next call goes on from what the manifest says:
what the files have beyond it is cut off.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ..base.atomic import write_atomically
from ..base.errors import PipelineError
from ..sources.files.array_files import put_in_place

log = logging.getLogger("cereal")
_VERSION = 1


class Staging:
    """The hidden folder of one conversion; a context manager that holds its lock."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target.parent / f".{target.name}.converting"
        self.new, self._old = self.folder / "new", self.folder / "old"
        self._manifest = self.folder / "manifest.json"
        self._lock: Any = None

    def __enter__(self) -> Staging:
        self._lock = _locked(self.folder, self.target)
        if self._old.exists() and not self.target.exists():  # killed while the names changed
            os.rename(self._old, self.target)
        return self

    def __exit__(self, *_: object) -> None:
        for parts in self.folder.glob("parts-*"):
            shutil.rmtree(parts, ignore_errors=True)
        self._lock.close()

    def parts(self) -> str:
        """A new folder for chunks from worker processes."""
        return tempfile.mkdtemp(dir=self.folder, prefix="parts-")

    def resume(self, what: dict[str, Any]) -> dict[str, Any]:
        """The manifest of what is here, if it is a part of this conversion; else everything is
        removed, and it is {}. `what` says which conversion this is."""
        try:
            found = json.loads(self._manifest.read_text())
        except (OSError, ValueError):
            found = {}
        known = isinstance(found, dict) and found.get("what")
        if known and known == what and what["source"] is not None:
            return found
        if known and found.get("position"):
            why = "of another source" if what["source"] else "of a source that has no digest"
            log.warning(
                "convert: %s holds a part of a conversion %s, which is thrown away",
                str(self.folder),
                why,
            )
        self.clear()
        return {}

    def clear(self) -> None:
        """Removes all that was converted."""
        self._manifest.unlink(missing_ok=True)
        shutil.rmtree(self.new, ignore_errors=True)
        self.new.mkdir()

    def save(self, manifest: dict[str, Any]) -> None:
        """Writes the manifest. What it says must be on the disk already."""
        text = json.dumps({"format": "cereal conversion", "version": _VERSION, **manifest})
        write_atomically(self._manifest, lambda file: file.write(text.encode()))

    def finish(self, *, overwrite: bool) -> None:
        """Gives the folder its name, and removes the hidden one."""
        exists = PipelineError(f"convert: {str(self.target)!r} exists; pass `overwrite=True`.")
        put_in_place(self.new, self._old, self.target, exists, overwrite=overwrite)
        self.remove()

    def remove(self) -> None:
        """Removes the hidden folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _locked(folder: Path, target: Path) -> Any:
    """An open file whose lock lets one process at a time work in the folder."""
    try:
        import fcntl
    except ImportError:  # such systems have no such locks
        folder.mkdir(parents=True, exist_ok=True)
        return contextlib.ExitStack()
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = open(folder / "lock", "a")  # noqa: SIM115
        except FileNotFoundError:  # another process has just removed the folder
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            raise PipelineError(
                f"convert: another process is converting to {str(target)!r}; wait for it, and call "
                f"`convert` again, or pass another folder."
            ) from None
        except OSError:  # some network drives have no locks
            return handle
        if _is_at(handle, folder / "lock"):
            return handle
        handle.close()  # another process has finished, and removed the folder


def _is_at(handle: Any, path: Path) -> bool:
    try:
        return os.stat(path).st_ino == os.fstat(handle.fileno()).st_ino
    except FileNotFoundError:
        return False
