"""Elements of a source, kept on the host as they are read: in memory, or in files.

    folder/
      <digest of the source>/
        leaf0.npy  leaf1.npy ...    the elements, in place
        filled.npy                  which of them are there

Files have their full size from the beginning, so that a full disk is an error then and there. An
element is written before it is marked, and marks go to the disk after the elements: whatever
stops the process, what is marked is whole. Two processes may fill one cache, with equal values.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..core.digest import digest
from ..core.elements import chunks_of, read_elements
from ..core.errors import PipelineError
from ..core.host import HostData
from ..core.source import IndexedSource

_SYNC_BYTES = 32 * 2**20


class CacheStore(HostData):
    """The elements of `upstream`, read once each. Threads may share it."""

    def __init__(self, upstream: IndexedSource[Any], folder: str | None) -> None:
        super().__init__()
        self.upstream, self.folder = upstream, folder
        specs, self._structure = jax.tree.flatten(_specs(upstream))
        shapes = [((len(upstream), *spec.shape), np.dtype(spec.dtype)) for spec in specs]
        self._lock = threading.Lock()
        self._unsaved = 0
        if folder is None:
            self._arrays = [np.empty(shape, dtype) for shape, dtype in shapes]
            self._marks = None
            self._filled = np.zeros(len(upstream), np.bool_)
            return
        place = Path(folder) / digest(upstream)
        if not place.exists():
            _create(place, shapes, len(upstream))
        self._arrays, self._marks = _open(place, shapes, len(upstream))
        self._filled = np.asarray(self._marks) != 0
        weakref.finalize(self, _save, self._arrays, self._marks, self._filled)

    @property
    def full(self) -> bool:
        """Whether all elements are there."""
        return bool(self._filled.all())

    def take(self, indices: np.ndarray) -> Any:
        """The elements at these indices, stacked; reads those that are missing."""
        if not self._filled[indices].all():
            self._read(np.unique(indices))
        return jax.tree.unflatten(self._structure, [array[indices] for array in self._arrays])

    def fill(self) -> None:
        """Reads all that is missing. In a thread of its own: the caller may be tracing."""
        if self.full:
            return
        failed: list[BaseException] = []

        def run() -> None:
            try:
                self._read(np.arange(len(self._filled)))
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="cereal-cache")
        thread.start()
        thread.join()
        if failed:
            raise failed[0]

    def _read(self, indices: np.ndarray) -> None:
        with self._lock:
            missing = indices[~self._filled[indices]]
            for chunk in chunks_of(self.upstream, missing):
                found = read_elements(self.upstream, chunk)
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
        _save(self._arrays, self._marks, self._filled)
        self._unsaved = 0

    def digest_of(self) -> Any:
        return digest(self.upstream)

    def __reduce__(self) -> tuple[Any, ...]:
        return CacheStore, (self.upstream, self.folder)


def _specs(upstream: IndexedSource[Any]) -> Any:
    spec = upstream.element_spec()
    return (spec, jax.ShapeDtypeStruct((), np.bool_)) if upstream.masks else spec


def _save(arrays: list[Any], marks: Any, filled: np.ndarray) -> None:
    if marks is None:
        return
    done = filled.copy()
    for array in arrays:
        array.flush()
    marks |= done.astype(np.uint8)
    marks.flush()


def _create(place: Path, shapes: list[Any], n: int) -> None:
    """Makes the files under another name and moves them into place when they are whole."""
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=place.parent, prefix=".new-"))
    try:
        for number, (shape, dtype) in enumerate(shapes):
            _allocate(made / f"leaf{number}.npy", shape, dtype)
        _allocate(made / "filled.npy", (n,), np.dtype(np.uint8))
        try:
            os.rename(made, place)
        except OSError:
            if not place.exists():  # else another process was first
                raise
    except OSError as error:
        size = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in shapes)
        raise PipelineError(
            f"CacheTransform: cannot make a cache of {size:,} bytes in {place.parent}: "
            f"{error.strerror or error}; free space there, or pass another folder."
        ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _allocate(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape).flush()
    with open(path, "r+b") as file:
        if hasattr(os, "posix_fallocate"):  # else a full disk would end the process later
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _open(place: Path, shapes: list[Any], n: int) -> tuple[list[Any], Any]:
    try:
        arrays = [
            np.lib.format.open_memmap(place / f"leaf{number}.npy", mode="r+")
            for number in range(len(shapes))
        ]
        marks = np.lib.format.open_memmap(place / "filled.npy", mode="r+")
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"CacheTransform: the cache in {place} cannot be read ({error}); delete that folder, "
            f"and it is made anew."
        ) from error
    whole = [
        (array.shape, array.dtype) == wanted for array, wanted in zip(arrays, shapes, strict=True)
    ]
    if not all(whole) or marks.shape != (n,):
        raise PipelineError(
            f"CacheTransform: the cache in {place} holds other arrays than it should; delete that "
            f"folder, and it is made anew."
        )
    return arrays, marks
