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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...base.errors import PipelineError
from ...base.extras import needs
from ..leaves import OBJECT, ArrayForm
from ..structure import flatten
from ..tables.columns import Numbers, Objects, Ragged, ragged_form
from ..tables.pieces import PiecedTable
from ..tables.table import objects
from .arranged import Arrangement, arranged_form, arranged_parts
from .blobs import blobs_of
from .dictionaries import Dictionaries, has_dictionary

_LOOKED_AT = 1 << 20  # rows of list columns whose lengths are compared when a source is built


class ArrowTable(PiecedTable):
    """An Arrow table in memory, or mapped into it; its record batches are the pieces."""

    _reopened = ("_parts",)
    quick = stays = True

    def __init__(
        self,
        table: Any,
        owner: str,
        name: str = "",
        fill: Mapping[str, Any] | None = None,
        arranged: Arrangement = None,
    ) -> None:
        check_names(table.schema.names, owner, name)
        self._owner, self._arranged = owner, arranged
        self._batches = [batch for batch in table.to_batches() if batch.num_rows]
        self._schema, self.name = table.schema, name
        self._fill = checked_fill(fill, table.schema, owner, name)
        self.lengths = [batch.num_rows for batch in self._batches]
        if not self._batches:
            raise PipelineError(f"{owner}: {name or 'the table'} has no rows.")
        self._known = Dictionaries(self._fill)
        if any(has_dictionary(field.type) for field in table.schema):
            for batch in self._batches:
                self._known.learn(batch)
        self.classes = self._known.classes
        pieces = (parts_of(batch, self._fill, self._known) for batch in self._batches)
        self.form = arranged_form(form_of_pieces(self._schema, pieces), arranged, owner)

    @cached_property
    def _parts(self) -> dict[int, Sequence[Any]]:
        return {}

    def piece(self, number: int) -> Sequence[Any]:
        found = self._parts.get(number)
        if found is None:
            tree = tree_of_parts(self._batches[number], self._fill, self._known)
            found = self._parts[number] = arranged_parts(tree, self._arranged, self._owner)
        return found

    def load(self, number: int) -> tuple[Sequence[Any], int]:
        return self.piece(number), self._batches[number].nbytes

    def digest(self) -> Any:
        content = content_digest(self._schema, self._batches)
        return [content, self._arranged, sorted(self._fill.items())]


def check_names(names: Sequence[str], owner: str, where: str) -> None:
    """Refuses columns of the same name, of which a dict could hold only one."""
    for name in names:
        if names.count(name) > 1:
            raise PipelineError(
                f"{owner}: {where or 'the table'} has two columns called {name!r}; rename one, or "
                f"choose others by `columns=`."
            )


def checked_fill(
    fill: Mapping[str, Any] | None, schema: Any, owner: str, where: str
) -> dict[str, Any]:
    """What to put in place of missing values, by column; each is checked to be of its type."""
    pa = needs("pyarrow", "arrow", owner)
    if fill is None:
        return {}
    if not isinstance(fill, Mapping):
        raise PipelineError(
            f"{owner}: `fill` must be a dict from columns to values, such as {{'x': 0}}, got "
            f"{fill!r:.60}."
        )
    kinds = dict(_leaf_kinds(schema))
    for name, value in fill.items():
        if name not in kinds:
            raise PipelineError(
                f"{owner}: `fill` names {name!r}, and {where or 'the table'} has no such column; "
                f"it has {some_names(kinds)}."
            )
        kind = kinds[name]
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        try:
            whole = not pa.types.is_nested(kind) and pa.scalar(value, kind).is_valid
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
            whole = False
        if not whole:
            raise PipelineError(
                f"{owner}: `fill={{{name!r}: {value!r:.40}}}` is no value of that column, whose "
                f"type is {kind}; give one, or replace what is missing in a HostMapTransform."
            )
    return dict(fill)


def some_names(names: Iterable[str], most: int = 20) -> str:
    """The first of these names, for an error, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def _leaf_kinds(fields: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """The types of a schema, by name; those inside of structs with a dot."""
    for field in fields:
        if _is_struct(field.type):
            yield from _leaf_kinds(field.type, f"{above}{field.name}.")
        else:
            yield above + field.name, field.type


def parts_of(
    table: Any, fill: Mapping[str, Any] = {}, known: Dictionaries | None = None
) -> list[Any]:
    """What holds the values of each leaf of a record batch, in the order of `jax.tree.leaves`."""
    return flatten(tree_of_parts(table, fill, known))[0]


def tree_of_parts(
    table: Any, fill: Mapping[str, Any] = {}, known: Dictionaries | None = None
) -> dict[str, Any]:
    """The same as a tree, by names of columns.

    A table will do, too; in it, only a column that is too long for one array may be in chunks.
    """
    known = Dictionaries() if known is None else known
    arrays = zip(table.schema.names, table.columns, strict=True)
    return {name: _tree(array, name, fill, known) for name, array in arrays}


def form_of_pieces(schema: Any, pieces: Iterable[Sequence[Any]]) -> Any:
    """The tree of forms of a schema; lists take their lengths from the first pieces."""
    kinds, structure = flatten(_kinds(schema))
    found = {at: _form(kind) for at, kind in enumerate(kinds)}
    lists = [at for at, kind in enumerate(kinds) if _is_open(kind)]
    seen: set[int] = set()
    left = _LOOKED_AT
    for parts in pieces if lists else ():
        rows = 0
        for at in lists:
            part = parts[at]
            if isinstance(part, Numbers | Ragged):
                form = part.form() if isinstance(part, Ragged) else part.form
                found[at] = _together(found[at], form) if at in seen else form
                seen.add(at)
                rows = max(rows, len(part))
        left -= rows
        if left < 0 or not rows:
            break
    return structure.unflatten([found[at] for at in range(len(kinds))])


def _kinds(fields: Any) -> dict[str, Any]:
    """The types of a schema, as a tree."""
    return {
        field.name: _kinds(field.type) if _is_struct(field.type) else field.type for field in fields
    }


def _is_struct(kind: Any) -> bool:
    types = needs("pyarrow", "arrow", "an Arrow table").types
    return types.is_struct(kind) and kind.num_fields > 0


def _is_open(kind: Any) -> bool:
    """Whether only the data says which shape the values have."""
    pa = needs("pyarrow", "arrow", "an Arrow table")
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _is_open(kind.storage_type) or types.is_fixed_size_list(kind.storage_type)
    if types.is_fixed_size_list(kind):
        return _is_open(kind.value_type)
    return types.is_list(kind) or types.is_large_list(kind)


def _together(one: ArrayForm, other: ArrayForm) -> ArrayForm:
    if one == other or one.dtype == OBJECT:
        return one
    if other.dtype == OBJECT:
        return other
    sizes = sorted({one.shape[0], other.shape[0]})
    return ragged_form(f"{sizes[0]} to {sizes[-1]}", sizes[-1])


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
    if types.is_fixed_size_list(kind):
        inner = _form(kind.value_type)
        if inner.dtype != OBJECT:
            return ArrayForm((kind.list_size, *inner.shape), inner.dtype)
    if types.is_temporal(kind):
        return objects("a time; make it a number in a HostMapTransform")
    return objects(f"Arrow's type {kind}")


def _is_number(kind: Any) -> bool:
    types = needs("pyarrow", "arrow", "an Arrow table").types
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _tree(array: Any, name: str, fill: Mapping[str, Any], known: Dictionaries) -> Any:
    """The part of a column; of a struct, a dict of parts."""
    pa = needs("pyarrow", "arrow", "an Arrow table")
    if _is_struct(array.type):
        names = [field.name for field in array.type]
        return {
            inner: _tree(each, f"{name}.{inner}", fill, known)
            for inner, each in zip(names, array.flatten(), strict=True)
        }
    if isinstance(array, pa.ChunkedArray):
        if array.num_chunks > 1:  # text of more than 2 GB
            return Objects(lambda rows: array.take(pa.array(rows)).to_pylist())
        array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    if name in fill and not pa.types.is_dictionary(array.type):
        array = array.fill_null(pa.scalar(fill[name], array.type))
    return part_of(array, name, known)


def part_of(array: Any, name: str = "", known: Dictionaries | None = None) -> Any:
    """What holds the values of one Arrow array (not of a chunked one)."""
    pa = needs("pyarrow", "arrow", "an Arrow table")
    kind, types = array.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _extension(array, name)
    if types.is_dictionary(kind):
        codes = (Dictionaries() if known is None else known).codes(array, name)
        missing = codes < 0
        return Numbers(codes, missing if missing.any() else None, name)
    if _is_number(kind):
        return Numbers(_values(array), _missing(array), name)
    if types.is_fixed_size_list(kind):
        size, begin = kind.list_size, array.offset
        inner = part_of(array.values.slice(begin * size, len(array) * size), name, known)
        if _is_plain(inner):
            shape = (len(array), size, *inner.values.shape[1:])
            return Numbers(inner.values.reshape(shape), _missing(array), name)
    elif types.is_list(kind) or types.is_large_list(kind):
        inner = part_of(array.values, name, known)
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
