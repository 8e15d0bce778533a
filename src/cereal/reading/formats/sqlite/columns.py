"""The columns of a query: what SQLite's values become, and what to say if one is of another type.

INTEGER          int64            REAL (and INTEGER among it)    float64
TEXT             str              BLOB     bytes, or an array if the user names its dtype
NULL             None, a missing value, in any of these
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....base.errors import PipelineError
from ...leaves import ArrayForm
from ...tables.columns import ragged_form
from ...tables.table import objects
from .database import Database, Parameters, quoted

_LOOKED_AT = 1 << 18  # rows whose types are looked at when a source is built
_INT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)
_EXACT = 2**53  # above it, float64 has no longer all integers
_NONE = type(None)
_NAMES = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}


class WrongTypeError(Exception):
    """A value of another type than its column has: its place in the column, and what it is."""

    def __init__(self, place: int, what: str) -> None:
        super().__init__(what)
        self.place, self.what = place, what


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the result: its type, as SQLite says it in small letters."""

    name: str
    type: str  # integer, real, text, blob, null
    dtype: Any = None  # of the numbers in a blob, if the user has said it
    shape: tuple[int, ...] | None = None  # of the array in a blob; None: lengths differ
    lengths: tuple[int, int] = (0, 0)  # the least and the most numbers of a blob

    @property
    def form(self) -> ArrayForm:
        if self.type in ("integer", "real"):
            return ArrayForm((), _INT64 if self.type == "integer" else _FLOAT64)
        if self.dtype is not None:
            if self.shape is not None:
                return ArrayForm(self.shape, self.dtype)
            return ragged_form(f"{self.lengths[0]} to {self.lengths[1]}", self.lengths[1])
        if self.type == "blob":
            return objects(f'a BLOB; if it is an array, write `blobs={{{self.name!r}: "float32"}}`')
        return objects("text" if self.type == "text" else "NULL in all rows")

    def values(self, column: Sequence[Any]) -> Any:
        """Values of some rows as an array, or as a list if there are objects among them."""
        if self.type in ("integer", "real"):
            return self._numbers(column)
        wanted = {"text": str, "blob": bytes, "null": _NONE}[self.type]
        kinds = set(map(type, column))
        if not kinds <= {wanted, _NONE}:
            place = next(at for at, x in enumerate(column) if type(x) not in (wanted, _NONE))
            raise WrongTypeError(place, self._other(column[place]))
        return list(column) if self.dtype is None else self._arrays(column, _NONE in kinds)

    def _numbers(self, column: Sequence[Any]) -> Any:
        found = np.array(column)
        if found.dtype == (_INT64 if self.type == "integer" else _FLOAT64):
            if self.type == "real" and len(found) and np.abs(found).max() >= _EXACT:
                self._check_exact(column)
            return found
        for place, value in enumerate(column):
            allowed = int if self.type == "integer" else int | float
            if value is not None and not isinstance(value, allowed):
                raise WrongTypeError(place, self._other(value))
        if self.type == "real":
            self._check_exact(column)
            column = [value if value is None else float(value) for value in column]
        return list(column) if None in column else np.array(column, _FLOAT64)

    def _check_exact(self, column: Sequence[Any]) -> None:
        for place, value in enumerate(column):
            if type(value) is int and abs(value) > _EXACT:
                raise WrongTypeError(place, self._other(value))

    def _arrays(self, column: Sequence[Any], gaps: bool) -> Any:
        """Blobs as arrays: one for all rows, if they have the length that was promised."""
        size, shape = self.dtype.itemsize, self.shape
        needed = None if shape is None else math.prod(shape) * size
        if shape is not None and not gaps and set(map(len, column)) == {needed}:
            return np.frombuffer(b"".join(column), self.dtype).reshape(len(column), *shape)
        for place, value in enumerate(column):
            length = 0 if value is None else len(value)
            if length % size:
                what = f"a BLOB of {length} bytes, not a whole number of {self.dtype}"
                raise WrongTypeError(place, what)
            if value is not None and needed is not None and length != needed:
                wanted = f"{needed}, {self.dtype}[{','.join(map(str, shape or ()))}]"
                what = f"a BLOB of {length} bytes, where others have {wanted}"
                raise WrongTypeError(place, what)
        each = [None if x is None else np.frombuffer(x, self.dtype) for x in column]
        return [x if x is None or shape is None else x.reshape(shape) for x in each]

    def _other(self, value: Any) -> str:
        return f"{_NAMES.get(type(value), type(value).__name__)} ({value!r:.40}), not {self.words}"

    @property
    def words(self) -> str:
        return self.type.upper()


def fix_of(name: str, kind: str) -> str:
    """What to write in the query, if the values of a column have several types."""
    of = quoted(name)
    cast = f"`CAST({of} AS {kind.upper()}) AS {of}`, or "
    return f"write {cast if kind != 'null' else ''}`WHERE typeof({of}) = '{kind}'`, in the query"


def columns_of(
    database: Database, query: str, parameters: Parameters, blobs: Mapping[str, Any], where: str
) -> list[Column]:
    """The columns of a query, by the types in its first rows; `where` is SQL that names a row."""
    names = _names(database, query, parameters)
    dtypes = _dtypes(blobs, names, database.owner)
    some = f"(SELECT * FROM (\n{query}\n) LIMIT {_LOOKED_AT})"
    asked = []
    for name in map(quoted, names):
        kind = f"nullif(typeof({name}), 'null')"
        asked.append(f"min({kind}), max({kind})")
        length = name in map(quoted, dtypes)
        asked.append(f"min(length({name})), max(length({name}))" if length else "0, 0")
    (row,) = database.rows(f"SELECT {', '.join(asked)} FROM {some}", parameters)
    found = []
    for at, name in enumerate(names):
        least, most, short, long = row[4 * at : 4 * at + 4]
        if least != most and {least, most} != {"integer", "real"}:
            raise _several_types(database, query, parameters, name, (least, most), where)
        made = Column(name, most or "null")
        dtype = dtypes.get(name)
        found.append(made if dtype is None else _of_blobs(made, dtype, short, long, database.owner))
    return found


def _names(database: Database, query: str, parameters: Parameters) -> list[str]:
    names = database.names(f"SELECT * FROM (\n{query}\n) LIMIT 0", parameters)
    for name in names:
        first = re.fullmatch(r"(.+):\d+", name)  # how SQLite tells columns of one name apart
        if first and first[1] in names:
            raise PipelineError(
                f"{database.owner}: the query gives two columns called {first[1]!r}; name one of "
                f"them by `AS`."
            )
    return names


def _dtypes(blobs: Mapping[str, Any], names: Sequence[str], owner: str) -> dict[str, np.dtype[Any]]:
    found = {}
    for name, given in blobs.items():
        if name not in names:
            raise PipelineError(f"{owner}: `blobs` names {name!r}; the query gives {names}.")
        try:
            found[name] = np.dtype(given)
        except TypeError as error:
            raise PipelineError(
                f"{owner}: `blobs[{name!r}]` must be a dtype, such as 'float32' or "
                f"'(28,28)uint8', got {given!r:.40}."
            ) from error
        if found[name].base.hasobject or found[name].names:
            raise PipelineError(f"{owner}: `blobs[{name!r}]` must be numbers, got {found[name]}.")
    return found


def _of_blobs(column: Column, dtype: Any, short: Any, long: Any, owner: str) -> Column:
    """A column of blobs that hold arrays."""
    if column.type not in ("blob", "null"):
        raise PipelineError(
            f"{owner}: `blobs` names {column.name!r}, which holds {column.words}; leave it out."
        )
    shape, dtype = dtype.shape, dtype.base
    lengths = ((short or 0) // dtype.itemsize, (long or 0) // dtype.itemsize)
    if not shape:
        shape = (lengths[0],) if lengths[0] == lengths[1] else None
    return dataclasses.replace(column, type="blob", dtype=dtype, shape=shape, lengths=lengths)


def _several_types(
    database: Database,
    query: str,
    parameters: Parameters,
    name: str,
    types: tuple[str, str],
    where: str,
) -> PipelineError:
    """The error about a column of several types: it names the first row of the rarer one."""
    whole, of = f"(\n{query}\n)", quoted(name)
    counts = database.rows(
        f"SELECT typeof({of}), count(*) FROM {whole} WHERE typeof({of}) != 'null' GROUP BY 1 "
        f"ORDER BY 2 DESC",
        parameters,
    )
    usual, rare = counts[0][0], counts[-1][0]
    sql = f"SELECT {of}{where and ', ' + where} FROM {whole} WHERE typeof({of}) = '{rare}' LIMIT 1"
    value, *at = database.rows(sql, parameters)[0]
    row = f" (in the row with {where.strip(chr(34))}={at[0]})" if at else ""
    listed = " and ".join(kind.upper() for kind in sorted(set(types)))
    return PipelineError(
        f"{database.owner}: column {name!r} holds {listed}, such as {value!r:.40}{row}; a column "
        f"has one type here: {fix_of(name, usual)}."
    )
