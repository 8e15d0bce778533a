"""`tf.train.Example` without TensorFlow: one record as a dict, or a batch of them as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..tables.pieces import joined
from .example_column import ExampleColumn, RecordError
from .features import flat, form_of_specs, specs_of
from .template import Template
from .wire import BYTES, WireError, features_of, values_of

_MOST_TEMPLATES = 8  # of records of one length
_MOST_LENGTHS = 8  # in a batch; if there are more, records are read step by step


def parse_example(record: bytes) -> dict[str, Any]:
    """All features of a `tf.train.Example`, without TensorFlow: lists of bytes, or arrays.

        b"\\n..."  ->  {"image": [b"..."], "label": array([7]), "weight": array([0.5], float32)}

    >>> import cereal
    >>> cereal.parse_example(bytes.fromhex("0a100a0e0a056c6162656c12051a030a0107"))
    {'label': array([7])}
    """
    made = {}
    for name, lists in features_of(record).items():
        parts = [values_of(record, each) for each in lists]
        if lists and lists[0].kind == BYTES:
            made[name.decode()] = [value for part in parts for value in part]
        else:
            made[name.decode()] = np.concatenate(parts) if parts else np.zeros(0)
    return made


class ExampleDecoder:
    """Makes columns of records, as `features` says."""

    def __init__(self, features: Mapping[str, Any], owner: str) -> None:
        specs = specs_of(features, owner)
        self.form: Any = form_of_specs(specs)
        self.specs = list(flat(specs))
        self._names = [spec.name.encode() for spec in self.specs]
        self._fixed = all(spec.is_fixed and not spec.has_default for spec in self.specs)
        self._templates: dict[int, list[Template]] = {}

    def digest(self) -> Any:
        return [repr(spec) for spec in self.specs]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_templates": {}}

    def columns(self, records: Sequence[bytes]) -> list[Any]:
        """A column for each feature."""
        lengths = {len(record) for record in records} if self._fixed else ()
        if not 0 < len(lengths) <= _MOST_LENGTHS:
            return self._step_by_step(records, range(len(records)))
        found = [self._alike(records, length) for length in lengths]
        if len(found) == 1 and len(found[0]) == 1:
            return found[0][0][1]
        parts = [part for each in found for part in each]
        return [
            joined(len(records), [(lanes, columns[at]) for lanes, columns in parts])
            for at in range(len(self.specs))
        ]

    def _alike(self, records: Sequence[bytes], length: int) -> list[tuple[np.ndarray, list[Any]]]:
        """The columns of all records of one length, in parts: lanes, and their columns."""
        left = np.array([lane for lane, record in enumerate(records) if len(record) == length])
        templates, found = self._templates.setdefault(length, []), []
        rows = np.frombuffer(b"".join([records[lane] for lane in left]), np.uint8)
        rows = rows.reshape(len(left), length)
        tried = 0
        while len(left):
            if tried == len(templates):
                made = Template.of(records[left[0]], self.specs, self._names)
                if made is None or len(templates) >= _MOST_TEMPLATES:
                    break
                templates.append(made)
            fits = templates[tried].fits(rows)
            columns = templates[tried].columns(rows if fits.all() else rows[fits])
            if columns is None:
                break
            found.append((left[fits], columns))
            left, rows, tried = left[~fits], rows[~fits], tried + 1
        if len(left):
            found.append((left, self._step_by_step([records[lane] for lane in left], left)))
        return found

    def _step_by_step(self, records: Sequence[bytes], lanes: Any) -> list[Any]:
        found = []
        for record, lane in zip(records, lanes, strict=True):
            try:
                found.append(features_of(record))
            except WireError as error:
                raise RecordError(int(lane), f"is no tf.train.Example: {error}") from error
        return [
            ExampleColumn(spec, records, lanes, [each.get(name) for each in found], found).made()
            for spec, name in zip(self.specs, self._names, strict=True)
        ]
