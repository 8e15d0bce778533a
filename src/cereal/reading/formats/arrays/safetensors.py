"""`.safetensors` files, mapped into memory, without the library of that name.

    8 bytes: n | n bytes: {"x": {"dtype": "F32", "shape": [9, 3], "data_offsets": [a, b]}} | data

The header is checked as the format demands: every tensor has the bytes that its shape needs, all of
them lie within the file, and together they cover the data without a gap or an overlap.
"""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ....base.errors import PipelineError
from .chosen import chosen, mapped_tree

_MOST_HEADER = 100_000_000
_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": "<u2", "I16": "<i2", "U32": "<u4",
    "I32": "<i4", "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
    "C64": "<c8", "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E8M0": getattr(ml_dtypes, "float8_e8m0fnu", None),
}  # fmt: skip


def open_safetensors(path: Path, keys: Any, owner: str) -> Any:
    """The tensors of a file, mapped into memory: a dict by their names."""
    name = f"{owner}: {str(path)!r}"
    size = path.stat().st_size
    if size < 8:
        raise PipelineError(f"{name} is no .safetensors file: it has only {size} bytes.")
    whole = np.memmap(path, np.uint8, "r")
    length = int.from_bytes(bytes(whole[:8]), "little")
    if not 2 <= length <= min(_MOST_HEADER, size - 8):
        raise PipelineError(
            f"{name} is no .safetensors file, or it is cut off: its first 8 bytes say that the "
            f"header has {length} bytes, and the file has {size}."
        )
    try:
        header = json.loads(bytes(whole[8 : 8 + length]), object_pairs_hook=_once)
        if not isinstance(header, dict):
            raise ValueError("it is no dict")
    except (ValueError, RecursionError) as error:
        raise PipelineError(f"{name}: its header cannot be read: {error}.") from error
    header.pop("__metadata__", None)
    if not header:
        raise PipelineError(f"{name} has no tensors.")
    data = whole[8 + length :]
    places = {key: _place(entry, f"{name}: the tensor {key!r}") for key, entry in header.items()}
    _check_cover(places, len(data), name)
    tensors = {key: (key, header[key], place) for key, place in places.items()}
    found = chosen(tensors, keys, owner, repr(path.name))
    return mapped_tree(partial(_tensor, data, name), found)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("it has a name twice")
    return made


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(x) is int and 0 <= x < 2**63 for x in value)


def _place(entry: Any, name: str) -> tuple[int, int]:
    """Where the bytes of a tensor begin and end."""
    entry = entry if isinstance(entry, dict) else {}
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not _whole_numbers(shape) or not _whole_numbers(offsets) or len(offsets or ()) != 2:
        raise PipelineError(
            f"{name}: its shape or its place is not given by whole numbers: {entry!r:.80}."
        )
    assert offsets is not None
    if offsets[0] > offsets[1]:
        raise PipelineError(f"{name} ends before it begins: {offsets}.")
    return offsets[0], offsets[1]


def _check_cover(places: dict[str, tuple[int, int]], size: int, name: str) -> None:
    """Tensors follow one another, from the beginning of the data to its end."""
    at, last = 0, ""
    for key, (begin, end) in sorted(places.items(), key=lambda item: item[1]):
        if end > size:
            raise PipelineError(
                f"{name} is cut off: the tensor {key!r} ends at byte {end} of the data, and there "
                f"are {size}; fetch or write the file again."
            )
        if begin != at:
            how = f"overlaps {last!r}" if begin < at else "begins after a gap"
            raise PipelineError(f"{name} is damaged: the tensor {key!r} {how}.")
        at, last = end, key
    if at != size:
        raise PipelineError(f"{name} is damaged: {size - at} bytes belong to no tensor.")


def _tensor(data: np.ndarray, name: str, found: tuple[str, Any, tuple[int, int]]) -> np.ndarray:
    key, entry, (begin, end) = found
    kind, shape = entry.get("dtype"), tuple(entry["shape"])
    dtype = _DTYPES.get(kind) if isinstance(kind, str) else None
    if dtype is None:
        raise PipelineError(
            f"{name}: the tensor {key!r} has the dtype {kind!r}, which NumPy does not have; leave "
            f"it out by `keys=`."
        )
    dtype = np.dtype(dtype)
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise PipelineError(
            f"{name} is damaged: the tensor {key!r}, {kind}{list(shape)}, has {end - begin} bytes."
        )
    return data[begin:end].view(dtype).reshape(shape)
