"""Arrow's arrays as columns: numbers without a copy, the rest as Python objects.

int8 .. float64           Numbers, the memory of Arrow itself
bool                      Numbers, unpacked once
dictionary                Numbers, with `classes`
list of numbers           Numbers if all rows have one length, else Ragged
struct                    a dict of columns
text, bytes, times, ...   Python objects
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...base.errors import PipelineError
from ...base.extras import needs
from ..leaves import OBJECT, ArrayForm
from ..structure import flatten
from .blobs import blobs_of
from .columns import Numbers, Objects, Ragged, ragged_form
from .pieces import PiecedTable
from .table import objects

_LOOKED_AT = 1 << 20  # rows of list columns whose lengths are compared when a source is built


class ArrowTable(PiecedTable):
    """An Arrow table in memory, or mapped into it; its record batches are the pieces."""

    _reopened = ("_parts",)
    quick = stays = True

    def __init__(
        self, table: Any, owner: str, name: str = "", fill: Mapping[str, Any] = {}
    ) -> None:
        check_names(table.schema.names, owner, name)
        table = table.unify_dictionaries()
        self._batches = [batch for batch in table.to_batches() if batch.num_rows]
        self._schema, self.name, self._fill = table.schema, name, dict(fill)
        self.lengths = [batch.num_rows for batch in self._batches]
        if not self._batches:
            raise PipelineError(f"{owner}: {name or 'the table'} has no rows.")
        self.classes = classes_of(self._batches[0])
        self.form = form_of_pieces(self._schema, map(self.piece, range(len(self._batches))))

    @cached_property
    def _parts(self) -> dict[int, Sequence[Any]]:
        return {}

    def piece(self, number: int) -> Sequence[Any]:
        found = self._parts.get(number)
        if found is None:
            found = self._parts[number] = parts_of(self._batches[number], self._fill)
        return found

    def load(self, number: int) -> tuple[Sequence[Any], int]:
        return self.piece(number), self._batches[number].nbytes

    def digest(self) -> Any:
        return [content_digest(self._schema, self._batches), sorted(self._fill.items())]


def check_names(names: Sequence[str], owner: str, where: str) -> None:
    """Refuses columns of the same name, of which a dict could hold only one."""
    for name in names:
        if names.count(name) > 1:
            raise PipelineError(
                f"{owner}: {where or 'the table'} has two columns called {name!r}; rename one, or "
                f"choose others by `columns=`."
            )


def parts_of(batch: Any, fill: Mapping[str, Any] = {}) -> list[Any]:
    """What holds the values of each leaf of a record batch, in the order of `jax.tree.leaves`."""
    arrays = zip(batch.schema.names, batch.columns, strict=True)
    tree = {name: _tree(array, name, fill.get(name)) for name, array in arrays}
    return flatten(tree)[0]


def form_of_pieces(schema: Any, pieces: Any) -> Any:
    """The tree of forms of a schema; lists take their lengths from the first pieces."""
    tree = {field.name: _form(field.type) for field in schema}
    forms, structure = flatten(tree)
    open_ones = [at for at, form in enumerate(forms) if form.dtype == OBJECT]
    found: dict[int, ArrayForm] = {}
    left = _LOOKED_AT
    for parts in pieces if open_ones else ():
        for at in open_ones:
            part = parts[at]
            if isinstance(part, Numbers | Ragged):
                form = part.form() if isinstance(part, Ragged) else part.form
                found[at] = form if at not in found else _together(found[at], form)
            left -= _rows(part)
        if left < 0:
            break
    return structure.unflatten([found.get(at, form) for at, form in enumerate(forms)])


def _rows(part: Any) -> int:
    return len(part.values) if isinstance(part, Numbers) else 0


def _together(one: ArrayForm, other: ArrayForm) -> ArrayForm:
    if one == other or one.dtype == OBJECT:
        return one
    if other.dtype == OBJECT:
        return other
    sizes = sorted({one.shape[0], other.shape[0]})
    return ragged_form(f"{sizes[0]} to {sizes[-1]}", sizes[-1])


def classes_of(batch: Any) -> dict[str, tuple[Any, ...]]:
    """What the numbers of dictionary columns stand for."""
    pa = needs("pyarrow", "arrow", "an Arrow table")
    return {
        name: tuple(array.dictionary.to_pylist())
        for name, array in zip(batch.schema.names, batch.columns, strict=True)
        if pa.types.is_dictionary(array.type)
    }


def content_digest(schema: Any, batches: Sequence[Any]) -> str:
    """Letters that change if the values change."""
    pa = needs("pyarrow", "arrow", "an Arrow table")
    sink = _Hash()
    with pa.PythonFile(sink, "w") as file, pa.ipc.new_stream(file, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.hash.hexdigest()


class _Hash:
    """A file that keeps only the hash of what is written to it."""

    closed = False

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._at = 0

    def write(self, data: Any) -> int:
        self.hash.update(data)
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _form(kind: Any) -> Any:
    """What a type promises by itself; lists only promise to be objects."""
    pa = needs("pyarrow", "arrow", "an Arrow table")
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _form(kind.storage_type)
    if types.is_dictionary(kind):
        return ArrayForm((), np.dtype(np.int32))
    if _is_number(kind):
        return ArrayForm((), np.dtype(kind.to_pandas_dtype()))
    if types.is_struct(kind) and kind.num_fields:
        return {field.name: _form(field.type) for field in kind}
    if types.is_temporal(kind):
        return objects("a time; make it a number in a HostMapTransform")
    return objects(f"Arrow's type {kind}")


def _is_number(kind: Any) -> bool:
    types = needs("pyarrow", "arrow", "an Arrow table").types
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _tree(array: Any, name: str, fill: Any) -> Any:
    """The part of a column; of a struct, a dict of parts."""
    pa = needs("pyarrow", "arrow", "an Arrow table")
    if pa.types.is_struct(array.type) and array.type.num_fields:
        names = [field.name for field in array.type]
        return {
            inner: _tree(each, f"{name}.{inner}", None)
            for inner, each in zip(names, array.flatten(), strict=True)
        }
    return part_of(array if fill is None else array.fill_null(fill), name)


def part_of(array: Any, name: str = "") -> Any:
    """What holds the values of one Arrow array (not of a chunked one)."""
    pa = needs("pyarrow", "arrow", "an Arrow table")
    kind, types = array.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _extension(array, name)
    if types.is_dictionary(kind):
        part = part_of(array.indices, name)
        return Numbers(part.values.astype(np.int32), _missing(array), name)
    if _is_number(kind):
        return Numbers(_values(array), _missing(array), name)
    if types.is_fixed_size_list(kind):
        size, begin = kind.list_size, array.offset
        inner = part_of(array.values.slice(begin * size, len(array) * size), name)
        if _is_plain(inner):
            shape = (len(array), size, *inner.values.shape[1:])
            return Numbers(inner.values.reshape(shape), _missing(array), name)
    elif types.is_list(kind) or types.is_large_list(kind):
        inner = part_of(array.values, name)
        if _is_plain(inner):
            return _listed(array, inner.values, name)
    return blobs_of(array, types) or Objects(lambda rows: array.take(pa.array(rows)).to_pylist())


def _is_plain(part: Any) -> bool:
    return isinstance(part, Numbers) and part.missing is None


def _listed(array: Any, values: np.ndarray, name: str) -> Any:
    """A list column over these values: one array, if all of its rows have the same length."""
    offsets, missing = array.offsets.to_numpy(), _missing(array)
    if missing is None and len(array):
        lengths = np.diff(offsets)
        if (lengths == lengths[0]).all():
            whole = values[int(offsets[0]) : int(offsets[-1])]
            return Numbers(
                whole.reshape(len(array), int(lengths[0]), *values.shape[1:]), None, name
            )
    return Ragged(values, offsets.astype(np.int64), missing, name)


def _extension(array: Any, name: str) -> Any:
    """An extension type: a tensor of a fixed shape, or as what it is stored."""
    permutation = getattr(array.type, "permutation", None)
    if permutation and list(permutation) != sorted(permutation):
        return Numbers(array.to_numpy_ndarray(), _missing(array), name)
    part, shape = part_of(array.storage, name), getattr(array.type, "shape", None)
    if isinstance(part, Numbers) and shape is not None and None not in shape:
        return Numbers(part.values.reshape(len(array), *shape), part.missing, name)
    return part


def _missing(array: Any) -> np.ndarray | None:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def _values(array: Any) -> np.ndarray:
    """The numbers of an array, in Arrow's own memory; anything may stand where one is missing."""
    pa = needs("pyarrow", "arrow", "an Arrow table")
    if pa.types.is_boolean(array.type):
        plain = array.fill_null(False) if array.null_count else array
        return plain.to_numpy(zero_copy_only=False)
    dtype = np.dtype(array.type.to_pandas_dtype())
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)
