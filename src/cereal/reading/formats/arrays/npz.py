"""`.npz` archives, mapped into memory: arrays that are stored in them as they are.

    header of the zip | header of x.npy | the numbers of x | header of the zip | ...
                                        ^ mapped from here on

No array is unpickled. What `np.savez_compressed` wrote cannot be mapped, and is refused.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from ....base.errors import PipelineError
from .chosen import chosen, mapped_tree

_LOCAL = struct.Struct("<4s5H3I2H")  # the header before every member
_MOST_HEADER = 1 << 20  # bytes of the header of an array
_READERS: dict[tuple[int, int], Callable[..., Any]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}


def open_npz(path: Path, keys: Any, owner: str) -> Any:
    """The arrays of an archive, mapped into memory: a dict by their names."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
        raise PipelineError(
            f"{owner}: {str(path)!r} is no .npz archive, or it is damaged: {error}."
        ) from error
    named: dict[str, Any] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name in named:
            raise PipelineError(f"{owner}: {str(path)!r} has two arrays called {name!r}.")
        named[name] = member
    if not named:
        raise PipelineError(f"{owner}: {str(path)!r} has no arrays.")
    whole = np.memmap(path, np.uint8, "r")
    found = chosen(named, keys, owner, repr(path.name))
    return mapped_tree(partial(_array, whole, path, owner), found)


def _array(whole: np.ndarray, path: Path, owner: str, member: zipfile.ZipInfo) -> np.ndarray:
    """One member, as a part of the mapped file."""
    name = f"{owner}: {member.filename!r} of {str(path)!r}"
    if member.compress_type != zipfile.ZIP_STORED:
        raise PipelineError(
            f"{name} is compressed, so it cannot be mapped into memory. If all of it fits into "
            f"memory, write `ArraySampleSource(dict(np.load(path)))`. Otherwise write it once as a "
            f"folder, by `save_arrays(folder, dict(np.load(path)))`, and map that: "
            f"`MemmapSource(folder)`."
        )
    if member.flag_bits & 1:
        raise PipelineError(f"{name} is encrypted; write the arrays again, by `np.savez`.")
    data = _stored(whole, member, name)
    begin = io.BytesIO(bytes(data[:_MOST_HEADER]))
    try:
        version = npy.read_magic(begin)
        shape, fortran, dtype = _READERS[version](begin)
    except Exception as error:  # the header is Python code, which NumPy parses: many may come
        raise PipelineError(
            f"{name} is no array that NumPy wrote ({error}); leave it out by `keys=`."
        ) from error
    if dtype.hasobject:
        raise PipelineError(
            f"{name} holds Python objects, which NumPy would unpickle; they are not read. Make "
            f"numbers of them and write the file again, or leave it out by `keys=`."
        )
    numbers = data[begin.tell() :]
    if len(numbers) != dtype.itemsize * int(np.prod(shape, dtype=object)):
        raise PipelineError(
            f"{name} is damaged: {dtype}{list(shape)} does not take {len(numbers)} bytes."
        )
    return numbers.view(dtype).reshape(shape, order="F" if fortran else "C")


def _stored(whole: np.ndarray, member: zipfile.ZipInfo, name: str) -> np.ndarray:
    """The bytes of a member that is not compressed."""
    at, size = member.header_offset, member.file_size
    head = bytes(whole[at : at + _LOCAL.size])
    if len(head) == _LOCAL.size:
        mark, *_, name_size, extra_size = _LOCAL.unpack(head)
        begin = at + _LOCAL.size + name_size + extra_size
        if mark == b"PK\x03\x04" and size == member.compress_size and begin + size <= len(whole):
            return whole[begin : begin + size]
    raise PipelineError(f"{name} lies outside of the file: it is cut off, or damaged.")
