"""Schemas of Arrow: which columns a user wants, and whether several files have the same ones.

{id, inner: {flag, small}}   columns=["id", "inner.flag"]   ->   {id, inner: {flag}}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...base.errors import PipelineError
from ...base.extras import needs
from ..files.watched import WatchedFile
from .arrow_columns import check_names, some_names


def chosen(schema: Any, columns: Any, owner: str, where: str) -> Any:
    """The schema of the chosen columns; a dot chooses inside of a struct. None: all of them."""
    pa = needs("pyarrow", "arrow", owner)
    if columns is None:
        check_names(schema.names, owner, where)
        return pa.schema(list(schema))
    names = [columns] if isinstance(columns, str) else columns
    if (
        not isinstance(names, list | tuple)
        or not names
        or not all(isinstance(name, str) for name in names)
    ):
        raise PipelineError(
            f"{owner}: `columns` must be a list of names, such as ['x', 'y'], got {columns!r:.60}."
        )
    fields = _chosen(list(schema), list(names), owner, where)
    check_names([field.name for field in fields], owner, where)
    return pa.schema(fields)


def _chosen(fields: Sequence[Any], names: list[str], owner: str, where: str) -> list[Any]:
    pa = needs("pyarrow", "arrow", owner)
    inside: dict[str, list[str]] = {}  # by field: what is wanted of it; "": all
    for name in names:
        fits = [each.name for each in fields if f"{name}.".startswith(f"{each.name}.")]
        if not fits:
            raise PipelineError(
                f"{owner}: {where} has no column {name!r}; it has "
                f"{some_names([each.name for each in fields])}."
            )
        field = max(fits, key=len)
        inside.setdefault(field, []).append(name[len(field) + 1 :])
    found = []
    for field in fields:
        wanted = inside.get(field.name)
        if wanted is None:
            continue
        if "" in wanted:
            found.append(field)
            continue
        if not pa.types.is_struct(field.type):
            raise PipelineError(
                f"{owner}: {where} has a column {field.name!r} of type {field.type}, in which "
                f"there is no {wanted[0]!r}."
            )
        inner = _chosen(list(field.type), wanted, owner, f"the column {field.name!r} of {where}")
        found.append(pa.field(field.name, pa.struct(inner), field.nullable))
    return found


def check_alike(schema: Any, other: Any, first: WatchedFile, file: WatchedFile, owner: str) -> None:
    """Refuses a file whose columns are not those of the first one."""
    for one, two, here, there in ((schema, other, first, file), (other, schema, file, first)):
        for name in one.names:
            if name not in two.names:
                raise PipelineError(
                    f"{owner}: the files have different columns: {here.path!r} has {name!r}, and "
                    f"{there.path!r} has not; choose what both have with `columns=[...]`."
                )
    for name in schema.names:
        one, two = schema.field(name).type, other.field(name).type
        if not one.equals(two):
            raise PipelineError(
                f"{owner}: the column {name!r} is {one} in {first.path!r} and {two} in "
                f"{file.path!r}; write the files with one type, leave the column out with "
                f"`columns=[...]`, or read the files apart."
            )


def pruned(batch: Any, schema: Any) -> Any:
    """The columns of a schema that `chosen` made, of a record batch or a table."""
    pa = needs("pyarrow", "arrow", "an Arrow table")
    columns = [_pruned(batch.column(field.name), field.type) for field in schema]
    return type(batch).from_arrays(columns, schema=pa.schema(list(schema)))


def _pruned(array: Any, kind: Any) -> Any:
    pa = needs("pyarrow", "arrow", "an Arrow table")
    if array.type.equals(kind):
        return array
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([_pruned(chunk, kind) for chunk in array.chunks], kind)
    inner = [_pruned(array.field(field.name), field.type) for field in kind]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(inner, fields=list(kind), mask=mask)
