"""TFRecord files and `tf.train.Example`s, written byte by byte: an oracle that shares no code."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def slow_crc32c(data: bytes) -> int:
    """The checksum, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = slow_crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def tfrecord(record: bytes) -> bytes:
    head = struct.pack("<Q", len(record))
    return head + masked(head) + record + masked(record)


def write_tfrecord(path: Path, records: Iterable[bytes]) -> Path:
    path.write_bytes(b"".join(map(tfrecord, records)))
    return path


def varint(value: int) -> bytes:
    value, out = value & (2**64 - 1), bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(values: Any, *, packed: bool = True) -> bytes:
    """A Feature: bytes, integers or floats."""
    values = values if isinstance(values, list | np.ndarray) else [values]
    values = values.tolist() if isinstance(values, np.ndarray) else values
    if values and isinstance(values[0], bytes):
        return field(1, b"".join(field(1, value) for value in values))
    if values and isinstance(values[0], float):
        data = [struct.pack("<f", value) for value in values]
        inside = field(1, b"".join(data)) if packed else b"".join(b"\x0d" + x for x in data)
        return field(2, inside)
    data = [varint(value) for value in values]
    inside = field(1, b"".join(data)) if packed else b"".join(b"\x08" + x for x in data)
    return field(3, inside if values else b"")


def example(features: Mapping[str, Any], *, packed: bool = True) -> bytes:
    entries = [
        field(1, field(1, name.encode()) + field(2, feature(value, packed=packed)))
        for name, value in features.items()
    ]
    return field(1, b"".join(entries))
