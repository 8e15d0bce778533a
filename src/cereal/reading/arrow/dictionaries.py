"""Columns of categories: one dictionary for all pieces of a table.

piece 0   dictionary [red blue]      codes 0 1 0        0 1 0
piece 1   dictionary [green red]     codes 0 1     ->   2 0       classes (red, blue, green)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...base.extras import needs

_OWNER = "an Arrow column"


class Dictionaries:
    """The values of each column of categories, in the order in which they are first learnt."""

    def __init__(self, fill: Mapping[str, Any] = {}) -> None:
        self._values: dict[str, Any] = {}
        self._fill = fill

    def learn(self, batch: Any) -> None:
        """Adds what is new in a record batch."""
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            for inner, found in _inside(array, name):
                self._add(inner, found.dictionary)
                if inner in self._fill:
                    pa = needs("pyarrow", "arrow", _OWNER)
                    self._add(inner, pa.array([self._fill[inner]], found.dictionary.type))

    def _add(self, name: str, values: Any) -> None:
        pa, pc = (needs(module, "arrow", _OWNER) for module in ("pyarrow", "pyarrow.compute"))
        known = self._values.get(name)
        if known is None:
            self._values[name] = pc.unique(values.drop_null())
        elif not known.equals(values):
            new = values.filter(pc.invert(pc.is_in(values, value_set=known))).drop_null()
            self._values[name] = pa.concat_arrays([known, pc.unique(new)])

    @property
    def classes(self) -> dict[str, tuple[Any, ...]]:
        """What the codes of each column stand for."""
        return {name: tuple(values.to_pylist()) for name, values in self._values.items()}

    def codes(self, array: Any, name: str) -> np.ndarray:
        """The numbers of the values of an array; -1: it is missing."""
        pc = needs("pyarrow.compute", "arrow", _OWNER)
        known, own = self._values.get(name), array.dictionary
        if known is None:
            known = pc.unique(own.drop_null())
        numbers = pc.fill_null(pc.index_in(own.drop_null(), value_set=known), -1).to_numpy()
        if own.null_count:  # Arrow lets a dictionary have a null of its own
            numbers, there = np.full(len(own), -1, np.int32), numbers
            numbers[own.is_valid().to_numpy(zero_copy_only=False)] = there
        at = pc.fill_null(array.indices, 0).to_numpy()
        codes = numbers.astype(np.int32)[at] if len(own) else np.full(len(array), -1, np.int32)
        if array.indices.null_count:
            codes[array.indices.is_null().to_numpy(zero_copy_only=False)] = -1
        if name in self._fill:
            codes[codes < 0] = self.classes[name].index(self._fill[name])
        return codes

    def recoded(self, batch: Any) -> Any:
        """A record batch whose columns of categories have the dictionaries of this."""
        pa = needs("pyarrow", "arrow", _OWNER)
        columns = []
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            if name in self._values and pa.types.is_dictionary(array.type):
                codes = self.codes(array, name)
                made = pa.array(codes, mask=codes < 0)
                array = pa.DictionaryArray.from_arrays(made, self._values[name])
            columns.append(array)
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def has_dictionary(kind: Any) -> bool:
    """Whether columns of this type hold categories somewhere."""
    types = needs("pyarrow", "arrow", _OWNER).types
    if types.is_dictionary(kind):
        return True
    return any(has_dictionary(kind.field(at).type) for at in range(kind.num_fields))


def _inside(array: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The arrays of categories in a column: itself, fields of a struct, values of lists."""
    types, kind = needs("pyarrow", "arrow", _OWNER).types, array.type
    if types.is_dictionary(kind):
        yield name, array
    elif types.is_struct(kind) and has_dictionary(kind):
        for field, inner in zip(kind, array.flatten(), strict=True):
            yield from _inside(inner, f"{name}.{field.name}")
    elif (
        types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    ) and has_dictionary(kind):
        yield from _inside(array.values, name)
