"""A SQLite file that is only read: a connection for each thread, and errors that name the file."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ....base.errors import PipelineError
from ...files.watched import WatchedFile

_CACHE_KB = 64 << 10  # pages that each connection keeps
_MOST_STEPS = 200_000  # of SQLite's machine, for a query that finds one row: about 4 ms
Parameters = Sequence[Any] | Mapping[str, Any]


class Database:
    """A SQLite file. It must not change after this was made; it is pickled as its name."""

    def __init__(self, path: Any, owner: str) -> None:
        self.owner = owner
        self.watched = WatchedFile(path, owner)
        self._log = _log_status(self.watched.path)

    @property
    def name(self) -> str:
        return self.watched.name

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_local"}

    @cached_property
    def _local(self) -> threading.local:
        return threading.local()

    def _connection(self) -> _Connection:
        """The connection of this thread; it is closed when the thread ends, or the table is gone.

        SQLite's connections must not pass into a forked process.
        """
        found = getattr(self._local, "connection", None)
        if found is None or found.process != os.getpid():
            try:
                found = self._local.connection = _Connection(self.watched.path)
            except sqlite3.Error as error:
                raise self.wrong(error) from error
        return found

    def rows(self, sql: str, parameters: Parameters = ()) -> list[Any]:
        """All rows of a query."""
        try:
            return self._connection().raw.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise self.wrong(error) from error

    def each(self, sql: str, parameters: Parameters, size: int = 1 << 14) -> Any:
        """The rows of a query, in lists of this size."""
        try:
            cursor = self._connection().raw.execute(sql, parameters)
            while found := cursor.fetchmany(size):
                yield found
        except sqlite3.Error as error:
            raise self.wrong(error) from error

    def names(self, sql: str, parameters: Parameters) -> list[str]:
        """The names of the columns of a query."""
        try:
            cursor = self._connection().raw.execute(sql, parameters)
            return [column[0] for column in cursor.description]
        except sqlite3.Error as error:
            raise self.wrong(error) from error

    def check(self) -> None:
        """Raises if another program has written to the database since the source was built."""
        self.watched.check()
        if _log_status(self.watched.path) != self._log or self._connection().has_changed():
            raise self.watched.changed("content")

    def wrong(self, error: sqlite3.Error) -> PipelineError:
        """The error to raise for one of SQLite; if the file has changed, that is the reason."""
        self.watched.check()
        hint, kind = "", getattr(error, "sqlite_errorname", "")
        if kind.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            hint = "; another program is writing to it: wait until it is done"
        elif kind.startswith("SQLITE_CANTOPEN"):
            hint = (
                "; a database in WAL mode needs a folder that can be written: copy it, or write "
                "`PRAGMA journal_mode=delete` into it once"
            )
        return PipelineError(f"{self.owner}: {self.watched.path!r}: SQLite says: {error}{hint}.")

    def digest(self) -> Any:
        return [self.watched.digest(), self._log]

    # What is asked when a source is built

    def check_query(self, query: str, parameters: Parameters) -> set[tuple[str, str]]:
        """Refuses all but one query that reads; gives the tables and columns that it reads."""
        found: set[tuple[str, str]] = set()
        refused: list[str] = []
        raw = self._connection().raw
        raw.set_authorizer(_authorizer(found, refused))
        try:
            raw.execute(f"EXPLAIN {query}", parameters).fetchall()
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise self._bad_query(error, refused) from error
        finally:
            raw.set_authorizer(None)
        return found

    def _bad_query(self, error: Exception, refused: list[str]) -> PipelineError:
        if refused:
            return PipelineError(
                f"{self.owner}: the query may only read, and this one asks for {refused[0]}; write "
                f"a SELECT. (The file is opened read-only.)"
            )
        words = str(error).rstrip(".")
        if "one statement" in words:
            words = "it has several statements; write one SELECT"
        return PipelineError(f"{self.owner}: the query cannot be used: {words}.")

    def finds_quickly(self, sql: str, parameters: Parameters) -> bool:
        """Whether a query that finds a few rows ends without looking at many."""
        raw, left = self._connection().raw, [_MOST_STEPS // 1000]

        def count() -> int:
            left[0] -= 1
            return left[0] < 0  # ends the query

        raw.set_progress_handler(count, 1000)
        try:
            raw.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            if left[0] >= 0:
                raise self.wrong(error) from error
        finally:
            raw.set_progress_handler(None, 1000)
        return left[0] >= 0

    def plan(self, sql: str, parameters: Parameters) -> str:
        """How SQLite would run a query, in its own words."""
        return "; ".join(row[3] for row in self.rows(f"EXPLAIN QUERY PLAN {sql}", parameters))


class _Connection:
    """A connection that closes itself."""

    def __init__(self, path: str) -> None:
        self.process = os.getpid()
        uri = f"{Path(path).as_uri()}?mode=ro"
        # Only the thread that made it uses it; any thread may close it.
        self.raw = sqlite3.connect(uri, uri=True, check_same_thread=False)
        self.raw.execute("PRAGMA query_only = 1")
        self.raw.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
        self._version: Any = None
        self.has_changed()

    def has_changed(self) -> bool:
        """Whether others have written since this connection was opened."""
        (now,) = self.raw.execute("PRAGMA data_version").fetchone()
        if self._version is None:
            self._version = now
        return now != self._version

    def __del__(self, _process: Any = os.getpid) -> None:  # at exit, the module's names are gone
        raw = getattr(self, "raw", None)
        if raw is not None and self.process == _process():
            raw.close()


def _log_status(path: str) -> tuple[int, int] | None:
    """The size and time of the log in which SQLite keeps what is not in the file yet (WAL)."""
    try:
        status = os.stat(f"{path}-wal")
    except OSError:
        return None
    return (status.st_size, status.st_mtime_ns) if status.st_size else None


# Codes of what a statement asks for, as SQLite documents them.
_READ, _SELECT, _FUNCTION, _RECURSIVE, _UPDATE = 20, 21, 31, 33, 23
_ASKED = {
    9: "DELETE", 18: "INSERT", 19: "PRAGMA", 22: "a transaction", 23: "UPDATE", 24: "ATTACH",
    25: "DETACH", 26: "ALTER TABLE", 27: "REINDEX", 28: "ANALYZE", 32: "SAVEPOINT",
}  # fmt: skip


def _authorizer(found: set[tuple[str, str]], refused: list[str]) -> Callable[..., int]:
    def allow(code: int, first: Any, second: Any, *_: Any) -> int:
        if code == _READ:
            found.add((first, second))
            return sqlite3.SQLITE_OK
        # A function that gives a table, such as json_each, asks for this to declare its columns.
        # (Nobody can really do it: SQLite refuses to change that table by a statement.)
        declares = code == _UPDATE and first == "sqlite_master"
        loads = code == _FUNCTION and str(second).lower() == "load_extension"
        if declares or (code in (_SELECT, _FUNCTION, _RECURSIVE) and not loads):
            return sqlite3.SQLITE_OK
        what = "load_extension" if loads else _ASKED.get(code, "a change of the database")
        refused.append(f"{what} ({first})" if first and not loads else what)
        return sqlite3.SQLITE_DENY

    return allow


def quoted(name: str) -> str:
    """A name in SQL."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def plain_parameters(parameters: Any, owner: str) -> Parameters:
    """A user's parameters: a sequence for `?`, a mapping for `:name`; numbers of NumPy as plain."""

    def plain(value: Any) -> Any:
        return value.item() if isinstance(value, np.generic) else value

    if isinstance(parameters, Mapping):
        return {name: plain(value) for name, value in parameters.items()}
    if isinstance(parameters, Sequence) and not isinstance(parameters, str | bytes):
        return tuple(map(plain, parameters))
    raise PipelineError(
        f"{owner}: `parameters` must be a tuple, for `?` in the query, or a dict, for `:name`, got "
        f"{type(parameters).__name__} ({parameters!r:.40}); write `parameters=(value,)`."
    )
