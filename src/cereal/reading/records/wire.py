"""`tf.train.Example` as bytes: protocol buffers, read without their library.

    Example    1: Features
    Features   1: {1: name, 2: Feature}, ...
    Feature    1: bytes list, or 2: float list, or 3: int64 list
    list       1: value, ...; numbers may be packed: many in one field

A field begins with its number and kind; what has a length states it. Unknown fields are skipped. If
a field comes again, lists go on, and the last feature of a name counts, as the format says.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

BYTES, FLOATS, INTS = 1, 2, 3
KINDS = {BYTES: "a bytes list", FLOATS: "a float list", INTS: "an int64 list"}
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_VALUES = {BYTES: (_LENGTH,), FLOATS: (_LENGTH, _FIXED32), INTS: (_LENGTH, _VARINT)}


class WireError(ValueError):
    """These bytes are no `tf.train.Example`."""


class Feature(NamedTuple):
    """Where the list of a feature is: its kind, and the places of its bytes."""

    kind: int
    begin: int
    end: int


def features_of(data: Any) -> dict[bytes, list[Feature]]:
    """The lists of each feature, by name; usually one each."""
    found: dict[bytes, list[Feature]] = {}
    try:
        if data[:1] == b"\n":  # usually all of it is one field
            size, begin = _varint(data, 1)
            if begin + size == len(data):
                _add_features(data, begin, len(data), found)
                return found
        for number, kind, begin, end in _fields(data, 0, len(data)):
            if number == 1 and kind == _LENGTH:
                _add_features(data, begin, end, found)
            elif number == 2 and kind == _LENGTH:
                raise WireError("it is a tf.train.SequenceExample: write a function for `decode=`")
            else:
                raise WireError(f"it has a field {number}, which no tf.train.Example has")
    except (IndexError, struct.error) as error:
        raise WireError("it ends in the middle of a field") from error
    return found


def _add_features(data: Any, at: int, end: int, found: dict[bytes, list[Feature]]) -> None:
    """The entries of a Features message. (The common layout is read here, without calls.)"""
    while at < end:
        if data[at] != 0x0A:
            ((_, _, _, at),) = _fields(data, at, end, most=1)
            continue
        size, at = data[at + 1], at + 2
        if size > 127:
            size, at = _varint(data, at - 1)
        stop = at + size
        if stop > end:
            raise WireError("a feature is longer than the record")
        # name: 0a length ...; value: 12 length; in it, up to the end, a list: 0a, 12 or 1a length
        value = at + 2 + data[at + 1]
        inside = value + 2
        if data[at] == 0x0A and value + 3 < stop and data[value] == 0x12:
            size = data[value + 1]
            if size > 127:
                size, inside = _varint(data, value + 1)
            kind, begin = data[inside], inside + 2
            if inside + size == stop and kind in (0x0A, 0x12, 0x1A):
                size = data[inside + 1]
                if size > 127:
                    size, begin = _varint(data, inside + 1)
                if begin + size == stop:
                    found[data[at + 2 : value]] = [Feature(kind >> 3, begin, stop)]
                    at = stop
                    continue
        name, lists = _entry(data, at, stop)
        found[name] = lists
        at = stop


def _entry(data: Any, at: int, stop: int) -> tuple[bytes, list[Feature]]:
    name, lists = b"", []
    for number, kind, begin, end in _fields(data, at, stop):
        if kind != _LENGTH:
            continue
        if number == 1:
            name = bytes(data[begin:end])
        elif number == 2:
            for each, how, first, last in _fields(data, begin, end):
                if how != _LENGTH or each not in KINDS:
                    continue
                if lists and lists[-1].kind != each:
                    lists.clear()  # only one kind can be set: the last
                lists.append(Feature(each, first, last))
    return name, lists


def _fields(data: Any, at: int, end: int, most: int = -1) -> list[tuple[int, int, int, int]]:
    """Its fields: the number, the kind, and where the value begins and ends."""
    found: list[tuple[int, int, int, int]] = []
    while at < end and len(found) != most:
        tag = data[at]
        at += 1
        if tag > 127:
            tag, at = _varint(data, at - 1)
        kind = tag & 7
        if kind == _LENGTH:
            size = data[at]
            at += 1
            if size > 127:
                size, at = _varint(data, at - 1)
            stop = at + size
        elif kind == _VARINT:
            stop = _varint(data, at)[1]
        elif kind in (_FIXED32, _FIXED64):
            stop = at + (4 if kind == _FIXED32 else 8)
        else:
            raise WireError(f"a field of kind {kind}, which is not supported")
        if stop > end or tag < 8:
            raise WireError("a field is longer than what holds it" if tag > 7 else "a field 0")
        found.append((tag >> 3, kind, at, stop))
        at = stop
    return found


def _varint(data: Any, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first; and the place after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise WireError("a number of more than 64 bits")


def packed(data: Any, feature: Feature) -> tuple[int, int] | None:
    """Where the numbers of a list are, if they are packed into one field; else None."""
    begin, end = feature.begin, feature.end
    if begin == end:
        return begin, end
    if data[begin] != 0x0A:
        return None
    size, at = _varint(data, begin + 1)
    return (at, end) if at + size == end else None


def values_of(data: Any, feature: Feature) -> Any:
    """The values of one list: a list of bytes, float32[n] or int64[n]."""
    fields, kinds = _fields(data, feature.begin, feature.end), _VALUES[feature.kind]
    if any(number != 1 or kind not in kinds for number, kind, *_ in fields):
        raise WireError("a list with an unknown field")
    if feature.kind == BYTES:
        return [bytes(data[begin:end]) for _, _, begin, end in fields]
    parts = [np.frombuffer(data[begin:end], np.uint8) for _, _, begin, end in fields]
    joined = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
    if feature.kind == INTS:
        return integers(joined)
    if len(joined) % 4:
        raise WireError("floats of less than four bytes")
    return joined.view("<f4")


def integers(data: np.ndarray) -> np.ndarray:
    """int64: all numbers in these bytes, seven bits a byte, the lowest first."""
    last = data < 128
    if last.all():  # numbers below 128
        return data.astype(np.int64)
    if not last[-1]:
        raise WireError("it ends in the middle of a number")
    ends = np.flatnonzero(last)
    begins = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - begins + 1
    if lengths.max() > 10:
        raise WireError("a number of more than 64 bits")
    values = np.zeros(len(ends), np.uint64)
    for place in range(int(lengths.max())):
        there = lengths > place
        bits = data[begins[there] + place].astype(np.uint64) & np.uint64(127)
        values[there] |= bits << np.uint64(7 * place)
    return values.view(np.int64)
