"""SQLite: the rows of a query, found by a key, or read once into memory.

key="id"         the keys are read once        batch: SELECT ... WHERE id IN (?, ?, ...)
ORDER BY ...     all rows are read once, into memory
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ....base.errors import PipelineError
from ...readers.arrays import take_rows
from ...tables.table import Table
from .columns import Column, WrongTypeError, columns_of, fix_of
from .database import Database, Parameters, plain_parameters, quoted

_MOST_AT_ONCE = 512  # keys of one statement
_COMPARED = 1000  # rows of which the order is read twice


def sqlite_table(
    path: Any,
    query: str,
    parameters: Any,
    key: str | None,
    blobs: Mapping[str, Any],
    most_bytes: int,
    owner: str,
) -> Table:
    """The rows of a query; without a key, `most_bytes` of them may be read into memory."""
    if not isinstance(query, str) or not query.strip():
        raise PipelineError(f"{owner}: `query` must be a SELECT, got {query!r:.60}.")
    query = query.strip().rstrip(";").rstrip()
    database, given = Database(path, owner), plain_parameters(parameters, owner)
    read = database.check_query(query, given)
    if key is not None:
        return KeyedQuery(database, query, given, key, blobs, read)
    if not _has_order(query):
        raise PipelineError(
            f"{owner}: the rows of this query have no order that stays the same. Name a column "
            f'that is unique and has an index: `key="id"` (the column must be in the SELECT; '
            f'`SELECT rowid, ...` with `key="rowid"` works for any table). Or end the query with '
            f"`ORDER BY id`: then all rows are read once, into memory."
        )
    return WholeQuery(database, query, given, blobs, most_bytes)


def _has_order(query: str) -> bool:
    """Whether the query itself (not a query inside of it) ends with ORDER BY."""
    quiet = r"--[^\n]*|/\*.*?(\*/|$)|'([^']|'')*'|\"([^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]"
    text = re.sub(quiet, " ", query, flags=re.DOTALL)
    while (outer := re.sub(r"\([^()]*\)", " ", text)) != text:
        text = outer
    return re.search(r"\border\s+by\b", text, re.IGNORECASE) is not None


class _Query(Table):
    """What both ways share."""

    def __init__(
        self,
        database: Database,
        query: str,
        parameters: Parameters,
        blobs: Mapping[str, Any],
        where: str,
    ) -> None:
        self._database, self._query, self._parameters = database, query, parameters
        self._columns = columns_of(database, query, parameters, blobs, where)
        self.form = {column.name: column.form for column in self._columns}
        places = {column.name: at for at, column in enumerate(self._columns)}
        self._sorted = [places[name] for name in sorted(places)]  # the order of the leaves

    @property
    def _whole(self) -> str:
        return f"(\n{self._query}\n)"

    def _error(self, column: Column, wrong: WrongTypeError, row: str) -> PipelineError:
        fix = fix_of(column.name, column.type)
        return PipelineError(
            f"{self._database.owner}: column {column.name!r}{row} is {wrong.what}; {fix}."
        )

    def digest(self) -> Any:
        given = self._parameters
        plain = sorted(given.items()) if isinstance(given, Mapping) else list(given)
        forms = [[column.name, str(column.form)] for column in self._columns]
        return [self._database.digest(), self._query, plain, forms]


class KeyedQuery(_Query):
    """Rows that are found by a key, a few at a time."""

    def __init__(
        self,
        database: Database,
        query: str,
        parameters: Parameters,
        key: str,
        blobs: Mapping[str, Any],
        read: set[tuple[str, str]],
    ) -> None:
        names = database.names(f"SELECT * FROM (\n{query}\n) LIMIT 0", parameters)
        key = _key_among(key, names, database.owner)
        super().__init__(database, query, parameters, blobs, quoted(key))
        self._key, self._at = key, names.index(key)
        keys = self._read_keys(_has_order(query))
        self._check_keys(keys)
        self._check_plan(int(keys[-1]), read)
        self.name = f"{database.name} by {key!r}"
        self._length = len(keys)
        # Keys that count up by one need no memory.
        dense = bool((np.diff(keys) == 1).all())
        self._first, self._keys = int(keys[0]), None if dense else keys
        database.check()

    def __len__(self) -> int:
        return self._length

    def digest(self) -> Any:
        return [*super().digest(), self._key]

    # When it is built

    def _read_keys(self, ordered: bool) -> np.ndarray:
        key, owner = quoted(self._key), self._database.owner
        order = "" if ordered else f" ORDER BY {key}"
        sql, parts = f"SELECT {key} FROM {self._whole}{order}", []
        for rows in self._database.each(sql, self._parameters):
            part = np.array(list(itertools.chain.from_iterable(rows)))
            if part.dtype != np.int64:
                wrong = next(value for (value,) in rows if type(value) is not int)
                raise PipelineError(
                    f"{owner}: `key={self._key!r}` must be a column of integers, got "
                    f'{wrong!r:.40}; `SELECT rowid, ...` with `key="rowid"` works for any table.'
                )
            parts.append(part)
        if not parts:
            raise PipelineError(f"{owner}: the query gives no rows.")
        keys = np.concatenate(parts)
        if ordered:  # SQL does not promise that a query keeps the order of one inside of it
            plain = next(self._database.each(self._query, self._parameters, _COMPARED))
            if [row[self._at] for row in plain] != keys[:_COMPARED].tolist():
                rows = self._database.rows(self._query, self._parameters)
                keys = np.array([row[self._at] for row in rows])
        return keys

    def _check_keys(self, keys: np.ndarray) -> None:
        ascending = keys if (np.diff(keys) > 0).all() else np.sort(keys)
        same = np.flatnonzero(np.diff(ascending) == 0)
        if len(same):
            twice = int(ascending[same[0]])
            count = int((keys == twice).sum())
            raise PipelineError(
                f"{self._database.owner}: `key={self._key!r}` must be unique, but {count} rows "
                f"have {twice}; name another column, or make them one by GROUP BY. If a "
                f"join repeats the key, use the key of the other table."
            )

    def _check_plan(self, one: int, read: set[tuple[str, str]]) -> None:
        """Refuses a query for which every batch would read the whole table."""
        sql, given = self._statement([one])
        if self._database.finds_quickly(sql, given):
            return
        tables = {table for table, column in read if column.lower() == self._key.lower()}
        table = tables.pop() if len(tables) == 1 else "its_table"
        index = f"CREATE UNIQUE INDEX {table}_{self._key} ON {table}({self._key})"
        raise PipelineError(
            f"{self._database.owner}: to find one row by `key={self._key!r}`, SQLite looks at a "
            f"great many (its plan: {self._database.plan(sql, given)}), and it would do so for "
            f"every batch. If the key has no index, write `{index}` in the database once. If the "
            f"query groups, limits or sorts, SQLite must run all of it: write its result into a "
            f"table, or leave `key=` out and end the query with `ORDER BY`, which reads all rows "
            f"once, into memory."
        )

    # For every batch

    def _statement(self, keys: list[int]) -> tuple[str, Parameters]:
        """The query for some keys; there are few different ones, so that SQLite keeps them."""
        size = 1 << (len(keys) - 1).bit_length()
        keys = keys + keys[-1:] * (size - len(keys))
        if isinstance(self._parameters, Mapping):
            names = [f"cereal_{number}" for number in range(size)]
            marks = ", ".join(f":{name}" for name in names)
            given: Parameters = {**self._parameters, **dict(zip(names, keys, strict=True))}
        else:
            marks, given = ", ".join("?" * size), (*self._parameters, *keys)
        return f"SELECT * FROM {self._whole} WHERE {quoted(self._key)} IN ({marks})", given

    def take(self, indices: np.ndarray) -> list[Any]:
        keys = indices.astype(np.int64)
        keys = keys + self._first if self._keys is None else self._keys[keys]
        order = np.argsort(keys)
        wanted = keys[order]
        lanes = np.empty(len(keys), np.int64)  # for each lane, its row among those that are read
        lanes[order] = np.arange(len(keys))
        new = wanted[1:] != wanted[:-1]
        if not new.all():  # a key that is asked for twice is read once
            places = np.concatenate([[0], np.cumsum(new)])
            lanes, wanted = places[lanes], wanted[np.concatenate([[True], new])]
        columns = self._read(wanted)
        return [
            take_rows(column, lanes, self._columns[at].name)
            if isinstance(column, np.ndarray)
            else [column[lane] for lane in lanes.tolist()]
            for at, column in ((at, columns[at]) for at in self._sorted)
        ]

    def _read(self, wanted: np.ndarray) -> list[Any]:
        """The columns of the rows with these keys, which ascend."""
        rows, keys = [], wanted.tolist()
        for begin in range(0, len(keys), _MOST_AT_ONCE):
            rows += self._database.rows(*self._statement(keys[begin : begin + _MOST_AT_ONCE]))
        self._database.check()  # afterwards: what was read is what was there at first
        columns = list(zip(*rows, strict=True)) or [()] * len(self._columns)
        if columns[self._at] != tuple(keys):
            rows.sort(key=lambda row: row[self._at])
            columns = list(zip(*rows, strict=True)) or [()] * len(self._columns)
            if columns[self._at] != tuple(keys):
                raise self._database.watched.changed("content")
        found = []
        for column, values in zip(self._columns, columns, strict=True):
            try:
                found.append(column.values(values))
            except WrongTypeError as wrong:
                row = f" of the row with {self._key}={keys[wrong.place]}"
                raise self._error(column, wrong, row) from None
        return found


class WholeQuery(_Query):
    """All rows of a query, in its order, read once into memory by each process."""

    _reopened = ("_parts",)
    quick = True

    def __init__(
        self,
        database: Database,
        query: str,
        parameters: Parameters,
        blobs: Mapping[str, Any],
        most_bytes: int,
    ) -> None:
        super().__init__(database, query, parameters, blobs, "")
        self._most = most_bytes
        self.name = f"{database.name}, in memory"
        self._length = self._parts[0]
        if not self._length:
            raise PipelineError(f"{database.owner}: the query gives no rows.")

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _parts(self) -> tuple[int, list[Any]]:
        """The number of rows; the columns, in the order of the leaves."""
        chunks, size, n = [], 0, 0
        for rows in self._database.each(self._query, self._parameters):
            columns = list(zip(*rows, strict=True))
            chunks.append([self._values(at, columns[at], n) for at in self._sorted])
            size += sum(map(_bytes_of, chunks[-1]))
            n += len(rows)
            if size > self._most:
                raise PipelineError(
                    f"{self._database.owner}: without `key=`, all rows are read into memory, and "
                    f"the first {n} take more than `cache_bytes` ({self._most} bytes); name a "
                    f'unique column that has an index, `key="id"`, or raise `cache_bytes`.'
                )
        self._database.check()
        return n, [_joined(each) for each in zip(*chunks, strict=True)]

    def _values(self, at: int, values: Sequence[Any], begin: int) -> Any:
        try:
            return self._columns[at].values(values)
        except WrongTypeError as wrong:
            row = f" of row {begin + wrong.place}"
            raise self._error(self._columns[at], wrong, row) from None

    def take(self, indices: np.ndarray) -> list[Any]:
        _, parts = self._parts
        names = [self._columns[at].name for at in self._sorted]
        return [_taken(part, indices, name) for part, name in zip(parts, names, strict=True)]


def _taken(part: Any, indices: np.ndarray, name: str) -> Any:
    if isinstance(part, np.ndarray):
        return take_rows(part, indices, name)
    found = [part[index] for index in indices.tolist()]
    numbers = found and all(isinstance(value, int | float | np.number) for value in found)
    return np.array(found) if numbers else found  # the gaps are elsewhere


def _bytes_of(values: Any) -> int:
    if isinstance(values, np.ndarray):
        return values.nbytes
    return sum(
        64 + getattr(x, "nbytes", len(x) if isinstance(x, str | bytes) else 0) for x in values
    )


def _joined(parts: Sequence[Any]) -> Any:
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return list(itertools.chain.from_iterable(parts))


def _key_among(key: str, names: Sequence[str], owner: str) -> str:
    """The column that the user names, in the letters of the query."""
    found = [name for name in names if name.lower() == str(key).lower()]
    if found:
        return key if key in found else found[0]
    raise PipelineError(
        f"{owner}: `key={key!r}` is not a column of the query, which gives {list(names)}; write it "
        f"into the SELECT."
    )
