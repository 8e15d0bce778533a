"""One conversion: reads chunks, writes them, and now and then notes how far it is."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..base.errors import PipelineError
from ..loaders.progress import progress_bar
from ..reading.packing.pack import Layout
from .chunks import Reading
from .column_files import Columns
from .same import differing
from .staging import Staging

log = logging.getLogger("cereal")
_SAVE_SECONDS = 2.0


class Conversion:
    """From a source to the files of a staging folder; `name` is the digest of the source."""

    def __init__(
        self, reading: Reading, staging: Staging, name: str | None, progress: bool | str
    ) -> None:
        self._reading, self._staging, self._progress = reading, staging, progress
        self._what = {"source": name, "layout": _in_words(reading.layout)}
        self._position = self._skipped = 0
        self._saved, self._saving = time.monotonic(), 0.0
        self._columns = self._open()
        self._whole = self._so_far()

    def _open(self) -> Columns:
        """The files as far as they are written."""
        staging, layout = self._staging, self._reading.layout
        found = staging.resume(self._what)
        if found:
            try:
                columns = Columns(staging.new, layout, found["columns"], found["count"])
            except (OSError, KeyError, TypeError) as error:
                log.warning("convert: it begins again, since its files are damaged: %s", str(error))
            else:
                if self._go_on(columns, found):
                    return columns
            staging.clear()
        return Columns(staging.new, layout, None, 0)

    def _go_on(self, columns: Columns, found: dict[str, Any]) -> bool:
        """Whether it can go on from what was found."""
        wrong = "it was interrupted"
        try:
            wrong = differing(self._reading, columns.leaves, found["count"], found["position"])
        finally:
            if wrong is not None:
                columns.close()
        if wrong is not None:
            log.warning("convert: it begins again: %s is not what the source gives now", wrong)
            return False
        self._reading.adopt(found.get("bookmark"))
        self._position, self._skipped = found["position"], found["skipped"]
        log.info("convert: it goes on after %d elements", self._position)
        return True

    def run(self, *, overwrite: bool) -> None:
        """Converts what is left, and gives the folder its name."""
        title = self._progress if isinstance(self._progress, str) else self._staging.target.name
        bar = progress_bar(self._progress and title, self._reading.length, "element")
        try:
            with contextlib.closing(self._columns):
                if self._position:
                    bar.update(self._position)
                self._write_all(bar)
                self._check_count()
                with self._writing():
                    self._columns.finish(source=self._what["source"], elements=self._position)
            self._staging.finish(overwrite=overwrite)
        finally:
            bar.close()

    def _write_all(self, bar: Any) -> None:
        chunks = self._reading.chunks(self._position, self._staging.parts())
        try:
            with contextlib.closing(chunks):
                for end, chunk in chunks:
                    with self._writing():
                        self._columns.append(chunk)
                    begin, self._position = self._position, end
                    self._whole = self._so_far()
                    bar.update(end - begin)
                    if time.monotonic() - self._saved >= max(_SAVE_SECONDS, self._saving):
                        self._save()
        except BaseException as error:
            with contextlib.suppress(OSError, PipelineError):
                self._save()
                error.add_note(
                    f"cereal: convert has written {self._whole['position']} elements; the next "
                    f"call with this source and folder goes on from there"
                )
            raise
        self._skipped += self._reading.skipped
        if self._skipped:
            log.warning("convert: %d elements failed, and are left out", self._skipped)

    def _so_far(self) -> dict[str, Any]:
        """How far it is. (After an error or an interrupt, some columns may have more.)"""
        return {
            "position": self._position,
            "count": self._columns.count,
            "columns": self._columns.states,
        }

    def _save(self) -> None:
        """All whole chunks so far are on the disk, and noted; the next call cuts off the rest."""
        begin = time.monotonic()
        with self._writing():
            self._columns.sync()
            self._staging.save(
                {
                    "what": self._what,
                    **self._whole,
                    "skipped": self._skipped + self._reading.skipped,
                    "bookmark": self._reading.bookmark(self._whole["position"]),
                }
            )
        self._saved = time.monotonic()
        self._saving = self._saved - begin  # on a slow disk, at most half of the time

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PipelineError(
                f"convert: element {self._position} or one after it cannot be written to "
                f"{str(self._staging.folder)!r}: {error.strerror or error}; make room or give the "
                f"rights to write there, and call `convert` again: it goes on where it was."
            ) from error

    def _check_count(self) -> None:
        if not self._columns.count:
            raise PipelineError(
                f"convert: all {self._position} elements are left out, by a filter or "
                f"`on_error`; there is nothing to write."
            )


def _in_words(layout: Layout) -> list[Any]:
    """A layout as JSON has it, to be compared."""
    forms = [[c.kind, str(np.dtype(c.dtype)), len(c.shape), *c.row] for c in layout.columns]
    return [repr(layout.structure), forms]
