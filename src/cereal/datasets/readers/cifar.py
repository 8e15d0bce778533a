"""CIFAR: records of label bytes and 32x32 pixels, one colour plane after the other.

binary     label | 1024 red | 1024 green | 1024 blue        CIFAR-100: coarse | fine | ...
pickled    {"data": uint8[n,3072], "labels": [...]}         read by `unpickled`, never run
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import DatasetError
from ..record import Arrays, Reader
from .archives import tar_members
from .unpickled import unpickled

_PIXELS = 3 * 32 * 32


def from_records(parts: Sequence[tuple[bytes, str]], labels: Sequence[str]) -> Arrays:
    """Images and labels from binary records; `labels` names their first bytes."""
    width, rows = len(labels) + _PIXELS, []
    for data, where in parts:
        if not data or len(data) % width:
            raise DatasetError(
                f"{where} has {len(data):,} bytes, which are no whole records of {width}: it is "
                f"truncated, or no CIFAR file. Delete it, so that it is fetched again."
            )
        rows.append(np.frombuffer(data, np.uint8).reshape(-1, width))
    table = np.concatenate(rows)
    columns = {name: table[:, at].astype(np.int32) for at, name in enumerate(labels)}
    return _arranged(table[:, len(labels) :], columns)


def from_pickles(parts: Sequence[tuple[bytes, str]], labels: dict[str, str]) -> Arrays:
    """Images and labels from pickled batches; `labels` maps our names to those in the file."""
    pixels, columns = [], {name: [] for name in labels}
    for data, where in parts:
        batch = unpickled(data, where)
        batch = batch if isinstance(batch, dict) else {}
        rows = _member(batch, "data", where)
        if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2:
            rows = np.empty((0, 0), np.uint8)
        pixels.append(rows)
        for name, theirs in labels.items():
            columns[name].append(_whole_numbers(_member(batch, theirs, where)))
        counts = [len(rows), *(len(found[-1]) for found in columns.values())]
        if rows.shape[1] != _PIXELS or len(set(counts)) > 1 or not counts[0]:
            raise DatasetError(
                f"{where} has no uint8[n,{_PIXELS}] of pixels with as many whole numbers as labels "
                f"(found {' and '.join(map(str, counts))}); is it a CIFAR batch?"
            )
    return _arranged(np.concatenate(pixels), {n: np.concatenate(c) for n, c in columns.items()})


def _member(batch: Any, name: str, where: str) -> Any:
    if name not in batch:
        found = f"{list(batch)}"
        raise DatasetError(f"{where} has no {name!r}, but {found:.200}; is it a CIFAR batch?")
    return batch[name]


def _whole_numbers(values: Any) -> np.ndarray:
    """A flat list or array of whole numbers as int32; empty if it is something else."""
    flat = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu"
    listed = isinstance(values, list | tuple) and all(type(each) is int for each in values)
    if not (flat or listed) or any(not 0 <= each < 2**31 for each in values):
        return np.empty(0, np.int32)
    return np.asarray(values, np.int32)


def _arranged(pixels: np.ndarray, labels: Arrays) -> Arrays:
    planes = pixels.reshape(-1, 3, 32, 32)
    return {
        "image": np.ascontiguousarray(planes.transpose(0, 2, 3, 1)),
        **dict(sorted(labels.items(), reverse=True)),
    }


def reader(
    parse: Callable[..., Arrays], labels: Any, members: dict[str, list[str]] | None = None
) -> Reader:
    """A reader of records or pickles: from these members of a `.tar.gz`, or from unpacked files."""

    def read(paths: Sequence[Path], split: str) -> Arrays:
        if members is None:
            return parse([(path.read_bytes(), str(path)) for path in paths], labels)
        found = zip(tar_members(paths[0], members[split]), members[split], strict=True)
        return parse([(data, f"{paths[0]}/{name}") for data, name in found], labels)

    return read
