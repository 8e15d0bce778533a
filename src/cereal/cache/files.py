"""The files of a cache.

    folder/
      <digest of the source>/
        leaf0.npy  leaf1.npy ...    the elements, in place
        filled.npy                  which of them are there
        witness-7.npz ...           a few elements, computed one by one, for the check (`check`)
        machine-...                 an empty file for every kind of machine that filled a part

Files have their full size from the beginning, so a full disk is an error at once. An element is
written to the disk before its mark: however the process stops, an element with a mark is complete.
Two processes may fill one cache at the same time, since they write equal values.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ..base.atomic import as_usual
from ..base.errors import PipelineError

Shapes = list[tuple[tuple[int, ...], np.dtype[Any]]]


def save(arrays: list[Any], marks: Any, pending: list[np.ndarray]) -> None:
    """Writes the elements to the disk first, and then the marks of the pending chunks."""
    done = list(pending)
    if marks is None or not done:
        return
    for array in arrays:
        array.flush()
    for chunk in done:
        marks[chunk] = 1
    marks.flush()
    del pending[: len(done)]


def create(place: Path, shapes: Shapes, n: int) -> None:
    """Makes the files in a temporary folder, and renames it when they are complete."""
    made = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=place.parent, prefix=".new-"))
        as_usual(made, 0o777)
        for number, (shape, dtype) in enumerate(shapes):
            _allocate(made / f"leaf{number}.npy", shape, _in_files(dtype))
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
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def _allocate(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape).flush()
    with open(path, "r+b") as file:
        if hasattr(os, "posix_fallocate"):  # without this, a full disk would kill the process later
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _in_files(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in the files: `.npy` does not know bfloat16 and similar, so integers hold them."""
    return dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")


def open_files(place: Path, shapes: Shapes, n: int) -> tuple[list[Any], Any]:
    """The arrays and the marks; read-only if the files are."""
    wanted = [(shape, _in_files(dtype)) for shape, dtype in shapes]
    arrays = [_open(place / f"leaf{k}.npy", *each) for k, each in enumerate(wanted)]
    marks = _open(place / "filled.npy", (n,), np.dtype(np.uint8))
    return [a.view(dtype) for a, (_, dtype) in zip(arrays, shapes, strict=True)], marks


def _open(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    fix = "delete that folder, and it is made anew"
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)  # refuses a truncated file
        if (found.shape, found.dtype) != (shape, dtype):
            raise PipelineError(
                f"CacheTransform: the cache in {path.parent} holds, in {path.name}, "
                f"{found.dtype}{list(found.shape)} instead of {dtype}{list(shape)}; {fix}."
            )
        if not os.access(path, os.W_OK):
            return found
        return np.lib.format.open_memmap(path, mode="r+")
    except PipelineError:
        raise
    except (OSError, ValueError, EOFError) as error:
        raise PipelineError(
            f"CacheTransform: the cache in {path.parent} cannot be read ({error}); {fix}."
        ) from error
