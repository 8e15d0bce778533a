"""CRC-32C, the checksum of TFRecord files: by google-crc32c if it is installed, else by NumPy.

The checksum is linear: a byte's part in it depends on the byte and on how many bytes come after it.
So NumPy looks the parts of all bytes of a block up in a table, and combines them by exclusive or;
and then the blocks, after they were moved by the number of bytes that follow them.

    google-crc32c   0.1 ns a byte, and 0.1 us a call
    NumPy           2 to 5 ns a byte
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

_POLYNOMIAL = np.uint32(0x82F63B78)
_ONES = np.uint32(0xFFFFFFFF)
_BLOCK = 512  # bytes whose parts are looked up at once; their table takes half a megabyte
_AT_ONCE = 1 << 18  # bytes that are looked up before the next ones, so that they stay in caches


def crc32c(records: Sequence[Any]) -> np.ndarray:
    """The checksum of each of these bytes, uint32[n]."""
    fast = _library()
    if fast is not None:
        return np.fromiter(map(fast.value, records), np.uint32, len(records))
    return by_numpy(records)


def masked(checksums: np.ndarray) -> np.ndarray:
    """Checksums as TFRecord stores them."""
    turned = (checksums >> np.uint32(15)) | (checksums << np.uint32(17))
    return turned + np.uint32(0xA282EAD8)


@functools.cache
def _library() -> Any:
    try:
        return importlib.import_module("google_crc32c")
    except ImportError:
        return None


def by_numpy(records: Sequence[Any]) -> np.ndarray:
    """The same without the library."""
    lengths = np.array([len(record) for record in records], np.int64)
    if not len(lengths):
        return np.zeros(0, np.uint32)
    size = min(_BLOCK, max(8, 1 << int(lengths.max() - 1).bit_length())) if lengths.max() else 8
    counts = np.maximum(-(-lengths // size), 1)
    begins = np.concatenate([[0], np.cumsum(counts)])
    blocks = np.zeros((begins[-1], size), np.uint8)
    flat = blocks.reshape(-1)
    for record, end, length in zip(records, (begins[1:] * size).tolist(), lengths, strict=True):
        flat[end - length : end] = np.frombuffer(record, np.uint8)  # zeros before it: no part
    parts = _of_blocks(blocks)
    after = np.repeat(begins[1:], counts) - 1 - np.arange(len(blocks))
    moved = _moved(parts, after * size)
    start = _moved(np.full(len(lengths), _ONES), lengths)
    return np.bitwise_xor.reduceat(moved, begins[:-1]) ^ start ^ _ONES


def of_rows(rows: np.ndarray) -> np.ndarray:
    """The checksum of each row of uint8[n, size], where size is small: by NumPy, all at once."""
    start = _moved(np.full(1, _ONES), np.array([rows.shape[1]]))
    return _of_blocks(rows) ^ start ^ _ONES


def _of_blocks(blocks: np.ndarray) -> np.ndarray:
    """The combined parts of the bytes of each block, as if nothing came after it."""
    count, size = blocks.shape
    table, places = _turned_table(size)
    out = np.empty(count, np.uint32)
    step = max(1, _AT_ONCE // size)
    for begin in range(0, count, step):
        found = table.take(blocks[begin : begin + step] + places, mode="clip")
        np.bitwise_xor.reduce(found, axis=1, out=out[begin : begin + step])
    return out


@functools.cache
def _turned_table(size: int) -> tuple[np.ndarray, np.ndarray]:
    """The parts of the bytes of a block, in their order, and where those of each byte begin."""
    return _table()[:size][::-1].reshape(-1), np.arange(size, dtype=np.int32) * 256


@functools.cache
def _table() -> np.ndarray:
    """uint32[_BLOCK, 256]: the part of each byte, if so many zeros come after it."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ _POLYNOMIAL, first >> 1)
    table = np.empty((_BLOCK, 256), np.uint32)
    table[0] = first
    for zeros in range(1, _BLOCK):
        before = table[zeros - 1]
        table[zeros] = first[before & 255] ^ (before >> 8)
    return table


@functools.cache
def _move(power: int) -> np.ndarray:
    """uint32[4, 256]: what 2^power bytes of zeros make of each byte of a checksum."""
    if power == 0:
        first, each = _table()[0], np.arange(256, dtype=np.uint32)
        return np.stack([first, *(each << np.uint32(8 * place) for place in range(3))])
    before = _move(power - 1)
    return _looked_up(before, before)


def _looked_up(move: np.ndarray, values: np.ndarray) -> np.ndarray:
    lowest, low, high, highest = move
    found = lowest[values & 255] ^ low[(values >> 8) & 255]
    return found ^ high[(values >> 16) & 255] ^ highest[values >> 24]


def _moved(values: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """What so many bytes of zeros make of each checksum."""
    for power in range(int(zeros.max()).bit_length()):
        chosen = ((zeros >> power) & 1).astype(np.bool_)
        values = np.where(chosen, _looked_up(_move(power), values), values)
    return values
