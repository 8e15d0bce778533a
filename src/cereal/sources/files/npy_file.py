"""One `.npy` file, written from front to back; how many rows it has is known at the end.

    header, filled in at the end | rows ... | rows ...        NumPy's own format

The header has room for any number of rows, and ends at a multiple of 64 bytes, so JAX on the CPU
can use the mapped file without a copy.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

_DIGITS = 20  # of the largest axis


def is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether the `.npy` format can name this dtype; it cannot name bfloat16, for example."""
    return npy.descr_to_dtype(npy.dtype_to_descr(dtype)) == dtype


class NpyFile:
    """A `.npy` file that is being written. `most_axes`: its shape will not have more.

    With `kept`, the file is there already, and all but so many bytes of rows is cut off.
    """

    def __init__(self, path: Path, dtype: Any, most_axes: int, *, kept: int | None = None) -> None:
        self.path, self.dtype = path, np.dtype(dtype)
        text = len(_header_text(self.dtype, ()))
        self._header = 64 * -(-(13 + text + (_DIGITS + 2) * most_axes) // 64)
        self._file = open(path, "wb" if kept is None else "r+b")  # noqa: SIM115
        try:
            if kept is None:
                self._file.write(b"\0" * self._header)
            elif os.fstat(self._file.fileno()).st_size < self._header + kept:
                raise OSError(f"{path} is shorter than it was")
            else:
                self._file.truncate(self._header + kept)
                self._file.seek(0, os.SEEK_END)
        except BaseException:
            self._file.close()
            raise

    def append(self, array: np.ndarray) -> None:
        """Writes the rows of an array."""
        self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def rows(self, begin: int, end: int, row: tuple[int, ...]) -> np.ndarray:
        """Some of its rows, which have this shape."""
        size = self.dtype.itemsize * int(np.prod(row, dtype=np.int64))
        self._file.flush()
        with open(self.path, "rb") as file:
            file.seek(self._header + begin * size)
            return np.frombuffer(file.read((end - begin) * size), self.dtype).reshape(-1, *row)

    def sync(self) -> None:
        """What was written is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self, shape: tuple[int, ...]) -> None:
        """Writes the header: the file is complete."""
        text = _header_text(self.dtype, shape).encode("latin1")
        magic = b"\x93NUMPY\x02\x00" + struct.pack("<I", self._header - 12)
        self._file.flush()
        self._file.seek(0)
        self._file.write(magic + text.ljust(self._header - 13) + b"\n")
        self.sync()
        self.close()

    def close(self) -> None:
        """Closes the file. If it is not finished, what `sync` has not written may be lost."""
        with contextlib.suppress(OSError):  # the disk is full, and has said so already
            self._file.close()


def _header_text(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    stored = dtype if is_plain(dtype) else np.dtype(f"V{dtype.itemsize}")
    descr = npy.dtype_to_descr(stored)
    return f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
