"""Keeps the elements of a source on the host when they are first read: in memory, or in files."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..base.capture import eager
from ..base.errors import PipelineError
from ..base.spec import Spec
from ..host.settings import current_settings
from ..order.rows import Rows
from ..pipeline.positional import IndexedSource
from ..reading.read_context import ReadContext, raise_it, read_context, use_read_context
from .check import Check, Keeps
from .elements import read_fetched_elements
from .files import create, open_files, save
from .name import Named, name_of
from .pace import Pace

_SYNC_BYTES = 32 * 2**20
_SYNC_SECONDS = 2.0


class CacheStore(Keeps):
    """The elements of `upstream`; each is read once. Thread-safe."""

    def __init__(self, upstream: IndexedSource[Any], named: Named) -> None:
        super().__init__()
        self.upstream, self.named = upstream, named
        element, traits = upstream.element_spec(), upstream.traits
        mask = jax.ShapeDtypeStruct(traits.mask_shape, np.bool_)
        self.spec = Spec((element, mask) if traits.masks else element)
        specs, self._structure = self.spec.leaves, self.spec.structure
        shapes = [((len(upstream), *spec.shape), np.dtype(spec.dtype)) for spec in specs]
        self._lock = threading.Lock()
        self._unsaved, self._saved, self._saving = 0, time.monotonic(), 0.0
        self._pending: list[np.ndarray] = []  # chunks that were read, but are not marked on disk
        self._pace, self._sizes = Pace(upstream), set[int]()
        self._check: Check | None = None
        if named.folder is None:
            self._arrays = [np.empty(shape, dtype) for shape, dtype in shapes]
            self._marks = None
            self._filled = np.zeros(len(upstream), np.bool_)
            return
        place = Path(named.folder).expanduser() / name_of(upstream, named)
        if not place.exists():
            create(place, shapes, len(upstream))
        self._arrays, self._marks = open_files(place, shapes, len(upstream))
        self._filled = np.asarray(self._marks) != 0
        self._check = check = Check(upstream, self.spec, place, named.label)
        if eager():
            check.open(self._arrays, self._filled)
        else:
            apart(lambda stop: check.open(self._arrays, self._filled))
        if self._marks.flags.writeable:
            weakref.finalize(self, save, self._arrays, self._marks, self._pending)

    @property
    def full(self) -> bool:
        return bool(self._filled.all())

    def take(self, indices: np.ndarray) -> Any:
        """The elements at these indices, stacked; reads those that are missing."""
        if not self._filled[indices].all():
            self._read(np.unique(indices), threading.Event())
        return jax.tree.unflatten(self._structure, [array[indices] for array in self._arrays])

    def fill(self) -> None:
        """Reads all that is missing, in another thread, because the caller may be tracing."""
        if not self.full:
            apart(lambda stop: self._read(np.arange(len(self._filled)), stop))

    def _read(self, indices: np.ndarray, stop: threading.Event) -> None:
        # An element that `on_error` leaves out must not be kept in the cache. So here errors are
        # raised, and the caller's policy leaves the element out.
        here = read_context()
        here = here if here.on_error is raise_it else ReadContext(buffers=here.buffers)
        with self._lock, use_read_context(here):
            missing = indices[~self._filled[indices]]
            if len(missing) and self._marks is not None and not self._marks.flags.writeable:
                raise PipelineError(
                    f"{self.named.label}: element {missing[0]} is missing, and its files cannot be "
                    f"written; fill the cache where they can, or pass another folder."
                )
            done = 0
            while done < len(missing) and not stop.is_set():
                rows = self._pace.fetch(missing[done:])
                chunk = missing[done : done + len(rows.index)]
                self._compute(chunk, rows)
                done += len(chunk)
            if len(missing) and self.full:
                self.save()

    def _compute(self, chunk: np.ndarray, rows: Rows) -> None:
        with self._pace.running(len(chunk), known=len(chunk) in self._sizes):
            found = read_fetched_elements(self.upstream, rows, self._sizes)
            kept = jax.tree.leaves(found if self.upstream.traits.masks else found[0])
            for array, leaf in zip(self._arrays, kept, strict=True):
                array[chunk] = np.asarray(leaf)
                self._unsaved += leaf.nbytes
        if self._check is not None:
            self._check.witness(chunk, rows)
        self._filled[chunk] = True
        if self._marks is None:
            return
        self._pending.append(chunk)
        # On a slow disk, saving takes at most half of the time.
        late = time.monotonic() - self._saved >= max(_SYNC_SECONDS, self._saving)
        if self._unsaved >= _SYNC_BYTES or late:
            self.save()

    def save(self) -> None:
        """Writes what was read to the disk."""
        begin = time.monotonic()
        save(self._arrays, self._marks, self._pending)
        self._unsaved, self._saved = 0, time.monotonic()
        self._saving = self._saved - begin

    def before_program(self) -> None:
        self.fill()  # now, since a callback must not run JAX

    def digest_of(self) -> Any:
        return [self.upstream, self.named.version]

    def __reduce__(self) -> tuple[Any, ...]:
        return CacheStore, (self.upstream, self.named)


def apart(work: Callable[[threading.Event], None]) -> None:
    """Runs `work` in a new thread with the caller's settings, because the caller may be tracing."""
    failed: list[BaseException] = []
    stop, done = threading.Event(), threading.Event()
    settings = current_settings()

    def run() -> None:
        try:
            with settings():
                work(stop)
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run, name="cereal-cache")
    try:
        thread.start()
        done.wait()
    finally:  # after Ctrl-C, the current chunk is finished, and all that was read is kept
        stop.set()
        if thread.ident is not None:
            done.wait()
            thread.join()
    if failed:
        raise failed[0]
