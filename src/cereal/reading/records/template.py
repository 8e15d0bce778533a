"""Templates: records of one dataset, read all at once.

    record   0a .. 0a .. "image" 12 .. [784 bytes] 0a .. "label" 1a .. [07]
    mask     ff ff ff ff ff ...  ff ff  00 ... 00  ff ff ...       ff    80

Records of one dataset differ only in their values: the bytes around them are the same, if values
have the same sizes. So a record that was read step by step is a *template* for others of its
length. Where the masked bytes of others are the same, NumPy cuts the values of all of them out at
once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from .example_column import filled
from .features import FeatureSpec
from .wire import FLOATS, INTS, WireError, features_of, integers, packed

_MOST_INTEGERS = 64  # of a list in a template: the more there are, the more their sizes differ
_FLOAT32 = np.dtype("<f4")


@dataclasses.dataclass
class Template:
    """Where the values of a record are, and which of its bytes others must have, too."""

    places: np.ndarray  # of the bytes that are compared
    masks: np.ndarray
    wanted: np.ndarray
    values: list[tuple[FeatureSpec, int, int, int]]  # of each feature: kind, begin and end

    @staticmethod
    def of(record: bytes, specs: Sequence[FeatureSpec], names: list[bytes]) -> Template | None:
        """The template that this record is; None if it can be none."""
        try:
            found = features_of(record)
        except WireError:
            return None  # read step by step, where the error names the record
        mask = np.full(len(record), 255, np.uint8)
        values = []
        for spec, name in zip(specs, names, strict=True):
            lists = found.get(name) or []
            place = packed(record, lists[0]) if len(lists) == 1 else None
            if place is None or not _is_whole(record, lists[0].kind, place, spec):
                return None
            mask[slice(*place)] = 128 if lists[0].kind == INTS else 0
            values.append((spec, lists[0].kind, *place))
        for name, lists in found.items():  # what nobody asked for may be anything
            for each in lists if name not in names else ():
                place = packed(record, each)
                if place is not None:
                    mask[slice(*place)] = 128 if each.kind == INTS else 0
        places = np.flatnonzero(mask)
        return Template(places, mask[places], _masked(record, places, mask), values)

    def fits(self, rows: np.ndarray) -> np.ndarray:
        """Which of these rows, uint8[n, length], are like the template."""
        found = rows[:, self.places]
        found &= self.masks
        return (found == self.wanted).all(axis=1)

    def columns(self, rows: np.ndarray) -> list[np.ndarray] | None:
        """The values of rows that fit; None if a number does not fit its dtype."""
        found = []
        for spec, kind, begin, end in self.values:
            if kind != INTS:
                found.append(filled(spec, rows[:, begin:end]))
                continue
            values = integers(rows[:, begin:end].reshape(-1))
            column = values.astype(spec.dtype, copy=False)
            if column is not values and (column != values).any():
                return None
            shape: Any = (len(rows), *spec.shape)
            found.append(column.reshape(shape))
        return found


def _masked(record: bytes, places: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.frombuffer(record, np.uint8)[places] & mask[places]


def _is_whole(record: bytes, kind: int, place: tuple[int, int], spec: FeatureSpec) -> bool:
    """Whether these bytes are the value of the feature, as it was promised."""
    begin, end = place
    if kind == INTS:
        count = sum(byte < 128 for byte in record[begin:end])
        return spec.dtype.kind in "biu" and count == spec.size <= _MOST_INTEGERS
    if kind == FLOATS and spec.dtype != _FLOAT32:
        return False
    return end - begin == spec.size * spec.dtype.itemsize
