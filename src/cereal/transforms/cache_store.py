"""Elements of a source, kept on the host as they are read: in memory, or in files."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..core.digest import digest
from ..core.elements import chunks_of, read_elements
from ..core.host import HostData
from ..core.positional import IndexedSource
from ..core.spec import Spec
from .cache_files import create, open_files, save

_SYNC_BYTES = 32 * 2**20


class CacheStore(HostData):
    """The elements of `upstream`, read once each. Threads may share it."""

    def __init__(self, upstream: IndexedSource[Any], folder: str | None) -> None:
        super().__init__()
        self.upstream, self.folder = upstream, folder
        self.spec = Spec(_kept(upstream))
        specs, self._structure = self.spec.leaves, self.spec.structure
        shapes = [((len(upstream), *spec.shape), np.dtype(spec.dtype)) for spec in specs]
        self._lock = threading.Lock()
        self._unsaved = 0
        self._sizes: set[int] = set()
        if folder is None:
            self._arrays = [np.empty(shape, dtype) for shape, dtype in shapes]
            self._marks = None
            self._filled = np.zeros(len(upstream), np.bool_)
            return
        place = Path(folder).expanduser() / digest(upstream)
        if not place.exists():
            create(place, shapes, len(upstream))
        self._arrays, self._marks = open_files(place, shapes, len(upstream))
        self._filled = np.asarray(self._marks) != 0
        if self._marks.flags.writeable:
            weakref.finalize(self, save, self._arrays, self._marks, self._filled)

    @property
    def full(self) -> bool:
        """Whether all elements are there."""
        return bool(self._filled.all())

    def take(self, indices: np.ndarray) -> Any:
        """The elements at these indices, stacked; reads those that are missing."""
        if not self._filled[indices].all():
            self._read(np.unique(indices), threading.Event())
        return jax.tree.unflatten(self._structure, [array[indices] for array in self._arrays])

    def fill(self) -> None:
        """Reads all that is missing. In a thread of its own: the caller may be tracing."""
        if self.full:
            return
        failed: list[BaseException] = []
        stop, done = threading.Event(), threading.Event()
        config: Any = jax.config
        wide, device = config.jax_enable_x64, config.jax_default_device

        def run() -> None:
            try:  # JAX's settings belong to a thread
                with jax.enable_x64(wide), jax.default_device(device):
                    self._read(np.arange(len(self._filled)), stop)
            except BaseException as error:
                failed.append(error)
            finally:
                done.set()

        thread = threading.Thread(target=run, name="cereal-cache")
        try:
            thread.start()
            done.wait()
        finally:  # Ctrl-C: the chunk at hand is finished, what was read stays
            stop.set()
            if thread.ident is not None:
                done.wait()
                thread.join()
        if failed:
            raise failed[0]

    def _read(self, indices: np.ndarray, stop: threading.Event) -> None:
        with self._lock:
            missing = indices[~self._filled[indices]]
            for chunk in chunks_of(self.upstream, missing):
                if stop.is_set():
                    return
                found = read_elements(self.upstream, chunk, self._sizes)
                found = found if self.upstream.masks else found[0]
                for array, leaf in zip(self._arrays, jax.tree.leaves(found), strict=True):
                    array[chunk] = np.asarray(leaf)
                    self._unsaved += leaf.nbytes
                self._filled[chunk] = True
                if self._unsaved >= _SYNC_BYTES:
                    self.save()
            if len(missing) and self.full:
                self.save()

    def save(self) -> None:
        """Brings what was read to the disk."""
        save(self._arrays, self._marks, self._filled)
        self._unsaved = 0

    def before_program(self) -> None:
        self.fill()  # a callback must not run JAX

    def digest_of(self) -> Any:
        return digest(self.upstream)

    def __reduce__(self) -> tuple[Any, ...]:
        return CacheStore, (self.upstream, self.folder)


def _kept(upstream: IndexedSource[Any]) -> Any:
    """What is kept of an element: itself, and its mask where stages change masks."""
    spec = upstream.element_spec()
    return (spec, jax.ShapeDtypeStruct((), np.bool_)) if upstream.masks else spec
