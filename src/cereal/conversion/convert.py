"""`convert`: the elements of any source, written once to a folder of mapped arrays."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..base.errors import PipelineError
from ..base.paths import as_path
from ..cache.name import check_version
from ..loaders.compose import joined
from ..loaders.progress import progress_bar
from ..pipeline.source import Source
from ..pipeline.stage import Transform
from ..sources.files.array_files import TREE
from ..sources.files.memmap import MemmapSource
from ..workers.options import check_options
from .checks import check_folder, check_source, source_name
from .chunks import Reading
from .column_files import Columns, check_tree
from .staging import Staging

log = logging.getLogger("cereal")
_OWNER = "convert"
_SAVE_SECONDS = 2.0


def convert(
    source: Any,
    folder: str | os.PathLike[str],
    *,
    workers: int | None = None,
    worker_type: Literal["thread", "process"] | None = None,
    on_error: Literal["raise", "skip"] | Callable[[Exception], Any] = "raise",
    version: int | str | None = None,
    overwrite: bool = False,
    progress: bool | str = True,
    ordering: Any = "sequential",
) -> MemmapSource:
    """Writes all elements of a source to a folder, and returns the folder as a `MemmapSource`.

        slow: photos, Parquet, a dataset  --once-->  folder/image.npy, label.npy, tree.json
                                          --every epoch-->  MemmapSource("folder"): mapped, quick

    Element i of the folder is element i of the source, whatever the source's ordering. Elements
    that a filter leaves out are left out. Numbers have the dtypes that a loader would give: 32 bits
    unless `jax_enable_x64` is on. Arrays whose first axis differs between elements (tokens, boxes),
    text and bytes are stored as values and offsets, and read back as they were.

    The folder gets its name only when it is complete. If the process is killed, call `convert`
    again, with the same source: it goes on where it was. (A source that can only be iterated is
    read again from its beginning, and only the writing goes on, unless it has a state of its own.)
    If the folder is there already, and of the same source, it is returned at once. Whether it is
    the same source, a digest decides, as for `CacheTransform`.

    >>> import cereal, numpy as np, tempfile
    >>> texts = [{"id": i, "tokens": np.arange(i)} for i in range(4)]
    >>> folder = tempfile.mkdtemp() + "/texts"
    >>> source = cereal.convert([texts], folder, progress=False)
    >>> batches = cereal.BatchTransform(2, collate=cereal.pad_collate(max_length=3))
    >>> [batch["tokens"].tolist() for batch, mask in cereal.DataLoader([source, batches])]
    [[[0, 0, 0], [0, 0, 0]], [[0, 1, 0], [0, 1, 2]]]

    Args:
        source: A source, a dataset, a frame, arrays; or a list: one of these, then stages that are
            not random and make no batches.
        folder: The folder to write.
        workers: How many threads or processes read, as in `DataLoader`; 0 reads in your own thread.
        worker_type: "thread" or "process"; by default, what is measured to be faster.
        on_error: What to do if an element cannot be read, as in `DataLoader`; "skip" leaves it out.
        version: A number or a word that is part of the digest; change it to convert again.
        overwrite: Whether a folder that exists, and is not of the same source, is replaced.
        progress: False shows no progress bar; a string is its title.
        ordering: The ordering of the source that is returned; by default "sequential".
    """
    options = check_options(workers, None, on_error, None, worker_type, _OWNER)
    check_version(version, _OWNER)
    target = as_path(folder, "folder", _OWNER)
    upstream = check_source(joined(_as_list(source)), _OWNER)
    name = source_name(upstream, options, version, _OWNER)
    if not _is_there(target, name):
        check_folder(target, name, overwrite, _OWNER)
        with Staging(target) as staging:
            if _is_there(target, name):  # another process was quicker
                staging.remove()
            else:
                reading = Reading(upstream, options, _OWNER)
                check_tree(reading.layout, _OWNER)
                _Conversion(reading, staging, name, progress).run(overwrite)
    return MemmapSource(target, ordering)


def _as_list(source: Any) -> Any:
    """What the user gave, as a list of stages."""
    if isinstance(source, list):
        return source
    stages = isinstance(source, tuple) and any(isinstance(x, Source | Transform) for x in source)
    return list(source) if stages else [source]


def _is_there(target: Path, name: str | None) -> bool:
    """Whether the folder is complete, and of the source with this digest."""
    try:
        said = json.loads((target / TREE).read_text())
        return name is not None and said["source"] == name
    except (OSError, ValueError, KeyError, TypeError):
        return False


class _Conversion:
    """One conversion: reads chunks, writes them, and now and then notes how far it is."""

    def __init__(self, reading: Reading, staging: Staging, name: Any, progress: bool | str) -> None:
        self._reading, self._staging, self._progress = reading, staging, progress
        self._what = {"source": name, "layout": _in_words(reading.layout)}
        self._position = self._skipped = 0
        self._saved, self._saving = time.monotonic(), 0.0
        self._columns = self._open()

    def _open(self) -> Columns:
        """The files as far as they are written."""
        staging, layout = self._staging, self._reading.layout
        found = staging.resume(self._what)
        if found:
            try:
                columns = Columns(staging.new, layout, found["columns"], found["count"])
            except (OSError, KeyError, TypeError) as error:
                log.warning("convert: it begins again, since its files are damaged: %s", str(error))
                staging.clear()
            else:
                self._position, self._skipped = found["position"], found["skipped"]
                self._reading.adopt(found.get("bookmark"))
                log.info("convert: it goes on after %d elements", self._position)
                return columns
        return Columns(staging.new, layout, None, 0)

    def run(self, overwrite: bool) -> None:
        title = self._progress if isinstance(self._progress, str) else self._staging.target.name
        bar = progress_bar(self._progress and title, self._reading.length, "element")
        try:
            with contextlib.closing(self._columns):
                if self._position:
                    bar.update(self._position)
                self._write_all(bar)
                self._check_count()
                with self._writing():
                    self._columns.finish(source=self._what["source"])
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
                    bar.update(end - self._position)
                    self._position = end
                    if time.monotonic() - self._saved >= max(_SAVE_SECONDS, self._saving):
                        self._save()
        except BaseException as error:
            with contextlib.suppress(OSError, PipelineError):
                self._save()
                error.add_note(
                    f"cereal: convert has written {self._position} elements; the next call with "
                    f"this source and folder goes on from there"
                )
            raise
        self._skipped += self._reading.skipped
        if self._skipped:
            log.warning("convert: %d elements failed, and are left out", self._skipped)

    def _save(self) -> None:
        """Everything so far is on the disk, and noted."""
        begin = time.monotonic()
        with self._writing():
            states = self._columns.sync()
            self._staging.save(
                {
                    "what": self._what,
                    "position": self._position,
                    "count": self._columns.count,
                    "skipped": self._skipped + self._reading.skipped,
                    "columns": states,
                    "bookmark": self._reading.bookmark(self._position),
                }
            )
        self._saved = time.monotonic()
        self._saving = self._saved - begin  # on a slow disk, at most half of the time

    @contextlib.contextmanager
    def _writing(self) -> Any:
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


def _in_words(layout: Any) -> list[Any]:
    """A layout as JSON has it, to be compared."""
    forms = [[c.kind, str(np.dtype(c.dtype)), len(c.shape), *c.row] for c in layout.columns]
    return [repr(layout.structure), forms]
