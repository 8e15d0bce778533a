"""One feature of `tf.train.Example`s that were read step by step, as a column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..read_context import read_context
from ..tables.pieces import joined
from .features import FeatureSpec
from .wire import BYTES, FLOATS, INTS, KINDS, Feature, WireError, integers, packed, values_of


class RecordError(ValueError):
    """A record that does not hold what was promised; `lane` is its place in the batch."""

    def __init__(self, lane: int, words: str) -> None:
        super().__init__(words)
        self.lane, self.words = lane, words


class ExampleColumn:
    """One feature of some records, which were read step by step."""

    def __init__(
        self, spec: FeatureSpec, records: Sequence[bytes], lanes: Any, lists: Any, known: Any
    ) -> None:
        self._spec, self._records, self._lanes = spec, records, lanes
        self._lists, self._known = lists, known

    def made(self) -> Any:
        kinds = [lists[0].kind if lists else 0 for lists in self._lists]
        parts = []
        for kind in sorted(set(kinds)):  # usually one; records may differ
            which = [at for at, each in enumerate(kinds) if each == kind]
            parts.append((np.array(which), self._values(which, kind)))
        return parts[0][1] if len(parts) == 1 else joined(len(kinds), parts)

    def _values(self, which: Sequence[int], kind: int) -> Any:
        if kind == 0:
            return self._defaults(which)
        if words := _does_not_match(kind, self._spec):
            raise self._error(which[0], words)
        return self._of_bytes(which) if kind == BYTES else self._numbers(which, kind)

    def _defaults(self, which: Sequence[int]) -> Any:
        """What was stated for records that do not have the feature."""
        spec = self._spec
        if not spec.has_default:
            names = sorted(name.decode(errors="replace") for name in self._known[which[0]])
            raise self._error(
                which[0],
                f"does not have the feature {spec.name!r}; it has {names}. If some records may "
                f"lack it, state what is there instead: `({spec.shape}, ..., 0)`",
            )
        if spec.is_text:
            return [spec.default] * len(which)
        if not spec.is_fixed:
            return [np.array(spec.default, spec.dtype, ndmin=len(spec.shape)) for _ in which]
        out = np.empty((len(which), *spec.shape), spec.dtype)  # type: ignore[arg-type]
        out[...] = spec.default
        return out

    def _of_bytes(self, which: Sequence[int]) -> Any:
        spec, found, at = self._spec, [], 0
        try:
            for at in which:
                values = _byte_values(self._records[at], self._lists[at])
                if spec.dtype is str:
                    values = [value.decode() for value in values]
                if spec.is_text and spec.shape == (None,):
                    found.append(values)
                    continue
                if len(values) != 1:
                    raise self._error(at, f"has {len(values)} values of {spec.name!r}, not one")
                found.append(values[0])
        except (WireError, UnicodeDecodeError) as error:
            raise self._error(at, f"has a damaged {spec.name!r}: {error}") from error
        return found if spec.is_text else self._raw(which, found)

    def _raw(self, which: Sequence[int], found: list[bytes]) -> Any:
        """Bytes that are the numbers themselves."""
        spec = self._spec
        row = spec.size * spec.dtype.itemsize
        for at, value in zip(which, found, strict=True):
            if len(value) != row if spec.is_fixed else len(value) % max(row, 1):
                raise self._error(at, _wrong_bytes(spec, value, row))
        if spec.is_fixed:
            return filled(spec, np.frombuffer(b"".join(found), np.uint8).reshape(len(found), row))
        return [np.frombuffer(v, spec.dtype).reshape(-1, *spec.shape[1:]).copy() for v in found]

    def _numbers(self, which: Sequence[int], kind: int) -> Any:
        spec, parts, at = self._spec, [], 0
        try:
            for at in which:
                parts.append(_payload(self._records[at], self._lists[at]))
            data = np.frombuffer(b"".join(parts), np.uint8)
            values = integers(data) if kind == INTS else data.view("<f4")
        except (WireError, ValueError) as error:
            raise self._error(at, f"has a damaged {spec.name!r}: {error}") from error
        ends = np.cumsum([0, *map(len, parts)])
        last = (data < 128) if kind == INTS else None
        count = np.concatenate([[0], np.cumsum(last)])[ends] if last is not None else ends // 4
        counts = np.diff(count)
        size = spec.size
        wrong = counts != size if spec.is_fixed else counts % max(size, 1) != 0
        if wrong.any():
            at = int(np.argmax(wrong))
            each = "" if spec.is_fixed else "a whole number of times "
            raise self._error(
                which[at],
                f"has {counts[at]} numbers in {spec.name!r}, where {spec.shape} has {each}{size}",
            )
        values = self._cast(values, which, count)
        if spec.is_fixed:
            return values.reshape(len(which), *spec.shape)  # type: ignore[arg-type]
        rows = np.split(values, count[1:-1])
        return [row.reshape(-1, *spec.shape[1:]) for row in rows]

    def _cast(self, values: np.ndarray, which: Sequence[int], count: np.ndarray) -> np.ndarray:
        dtype = self._spec.dtype
        if values.dtype == dtype:
            return values.copy()
        with np.errstate(over="ignore"):
            made = values.astype(dtype)
        wrong = (made != values) if dtype.kind in "biu" else np.isinf(made) & ~np.isinf(values)
        if wrong.any():
            at = int(np.argmax(wrong))
            which_one = which[int(np.searchsorted(count, at, side="right")) - 1]
            words = f"has {values[at]} in {self._spec.name!r}, which does not fit {dtype}"
            raise self._error(which_one, words)
        return made

    def _error(self, at: int, words: str) -> RecordError:
        return RecordError(int(self._lanes[at]), words)


def _does_not_match(kind: int, spec: FeatureSpec) -> str:
    """Words for a list of another kind than was asked for; empty if it can be used."""
    if spec.is_text:
        allowed, write = kind == BYTES, '((), "int64")' if kind == INTS else '((), "float32")'
    elif kind == BYTES:
        return ""
    else:
        allowed = spec.dtype.kind in ("biu" if kind == INTS else "fV")
        write = f'({spec.shape}, "{"int64" if kind == INTS else "float32"}")'
    dtype = spec.dtype.__name__ if spec.is_text else spec.dtype
    return "" if allowed else f"has {KINDS[kind]} for {spec.name!r}, not {dtype}: write `{write}`"


def _wrong_bytes(spec: FeatureSpec, value: bytes, row: int) -> str:
    form = f"{spec.dtype}{list(spec.shape)}"
    words = f"has {len(value)} bytes in {spec.name!r}, where {form} has {row}"
    if value.startswith((b"\xff\xd8\xff", b"\x89PNG", b"GIF8")):
        return (
            f"{words}: it is an encoded image; write `{{{spec.name!r}: bytes}}`, and decode it in "
            f"a stage: `DecodeImageTransform(image_key={spec.name!r})`"
        )
    return words


def _byte_values(record: bytes, lists: list[Feature]) -> list[Any]:
    place = packed(record, lists[0]) if len(lists) == 1 else None
    if place is not None and place[0] < place[1]:  # one value
        return [record[place[0] : place[1]]]
    return [value for each in lists for value in values_of(record, each)]


def _payload(record: bytes, lists: list[Feature]) -> bytes:
    """The bytes of all numbers of a feature, without what is between them."""
    if len(lists) == 1 and (place := packed(record, lists[0])) is not None:
        return record[place[0] : place[1]]
    found = []
    for each in lists:
        values = values_of(record, each)
        found.append(values.tobytes() if each.kind == FLOATS else _as_varints(values))
    return b"".join(found)


def _as_varints(values: np.ndarray) -> bytes:
    out = bytearray()
    for value in values.view(np.uint64).tolist():
        while value > 127:
            out.append((value & 127) | 128)
            value >>= 7
        out.append(value)
    return bytes(out)


def filled(spec: FeatureSpec, raw: np.ndarray) -> np.ndarray:
    """uint8[n, bytes] as numbers of the feature's shape, in memory that JAX can use."""
    shape: Any = (len(raw), *spec.shape)
    out = read_context().empty(shape, spec.dtype)
    if spec.dtype == np.bool_:
        out[...] = raw.reshape(shape) != 0  # a byte that is neither 0 nor 1 would be no bool
    elif spec.size:
        out.reshape(len(raw), -1).view(np.uint8)[...] = raw
    return out
