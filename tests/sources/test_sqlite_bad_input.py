"""SQLite: queries and files that are refused, and files that change."""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.sources.points_db import ALL, N, batches, content, take, write

from cereal import (
    HostMapTransform,
    PipelineError,
    SQLiteSource,
)
from cereal.reading.formats.sqlite import database as sqlite_database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "points.db").write_bytes(content())
    return tmp_path / "points.db"


# What is refused


WRITES = [
    "INSERT INTO points (x) VALUES (1)",
    "UPDATE points SET x = 0",
    "DELETE FROM points",
    "DROP TABLE points",
    "CREATE TABLE more (a)",
    "CREATE TEMP TABLE more (a)",
    "PRAGMA journal_mode = wal",
    "PRAGMA user_version = 3",
    "ATTACH 'other.db' AS other",
    "BEGIN IMMEDIATE",
    "SELECT load_extension('evil')",
    "WITH a AS (SELECT 1) DELETE FROM points",
    "INSERT INTO points (x) VALUES (1) RETURNING id",
]


@pytest.mark.parametrize("query", WRITES)
def test_a_query_that_writes_is_refused_when_built(query: str, path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(PipelineError, match="may only read, and this one asks for"):
        SQLiteSource(path, query, key="id")
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


NO_QUERIES = {
    "SELECT id FROM points; SELECT 1": "several statements; write one SELECT",
    "SELECT id FROM points; DROP TABLE points": "several statements",
    "SELECT id FROM nowhere": "no such table: nowhere",
    "REINDEX": "no such table",
    "SELEC id": "syntax error",
    "SELECT id FROM points) UNION SELECT (1": "cannot be used",
    "EXPLAIN SELECT id FROM points": "cannot be used",
    "SELECT id FROM points WHERE x = ?": "cannot be used.*binding",
    "-- nothing": "cannot be used",
    "": "must be a SELECT",
    "SELECT id, x AS id FROM points": "two columns called 'id'",
    "SELECT id FROM points WHERE 0": "no rows",
    "SELECT x FROM points": r"`key='id'` is not a column of the query, which gives \['x'\]",
    "SELECT name AS id FROM points": "must be a column of integers, got 'n0'",
    "SELECT NULL AS id FROM points": "must be a column of integers, got None",
    "SELECT label AS id FROM points": "must be unique, but 6 rows have 0",
}


@pytest.mark.parametrize("query", NO_QUERIES)
def test_a_query_that_cannot_be_used(query: str, path: Path) -> None:
    with pytest.raises(PipelineError, match=NO_QUERIES[query]):
        SQLiteSource(path, query, key="id")


ORDERS = {
    "SELECT id FROM points": False,
    "SELECT id FROM (SELECT id FROM points ORDER BY x)": False,
    "SELECT id, 'order by' FROM points -- order by id": False,
    "SELECT id, row_number() OVER (ORDER BY x) FROM points": False,
    "SELECT id FROM points /* why */ order /* not */ by id": True,
    "SELECT id FROM points ORDER\nBY x LIMIT 5": True,
}


@pytest.mark.parametrize("query", ORDERS)
def test_without_a_key_an_order_is_demanded(query: str, path: Path) -> None:
    if ORDERS[query]:
        assert len(SQLiteSource(path, query)) in (5, N)
        return
    with pytest.raises(PipelineError, match=r'`key="id"`.*`ORDER BY id`'):
        SQLiteSource(path, query)


@pytest.mark.parametrize("bad", ["text", 3, None])
def test_parameters_that_are_none(bad: Any, path: Path) -> None:
    with pytest.raises(PipelineError, match=r"`parameters` must be a tuple"):
        SQLiteSource(path, ALL, bad, key="id")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT other AS id FROM points_without",
        "SELECT max(id) AS id FROM points GROUP BY label",
        "SELECT id FROM points LIMIT 30",
        "SELECT p.id FROM points p JOIN points_without q ON q.other = p.id",
    ],
)
def test_a_key_that_would_be_searched_for_in_all_rows(
    query: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, "CREATE TABLE points_without AS SELECT id AS other FROM points")
    assert len(SQLiteSource(path, query, key="id")) in (7, 30, N)  # few rows: no harm
    with closing(sqlite3.connect(path)) as database:
        for _ in range(5):
            database.execute("INSERT INTO points (x, label) SELECT x, label FROM points")
            database.execute("DELETE FROM points_without")
            database.execute("INSERT INTO points_without SELECT id FROM points")
        database.commit()
    monkeypatch.setattr(sqlite_database, "_MOST_STEPS", 1000)
    if "LIMIT" in query:
        query = query.replace("30", "600")
    with pytest.raises(PipelineError, match=r"its plan: .*CREATE UNIQUE INDEX"):
        SQLiteSource(path, query, key="id")


def test_a_result_that_is_too_large_for_memory(path: Path) -> None:
    with pytest.raises(PipelineError, match=r'`cache_bytes` \(100 bytes\).*`key="id"`'):
        SQLiteSource(path, f"{ALL} ORDER BY id", cache_bytes=100)


# Files


def test_a_missing_file_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"missing\.db' cannot be opened: No such file"):
        SQLiteSource(tmp_path / "missing.db", ALL, key="id")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database, but long enough to be looked at" * 30)
    with pytest.raises(PipelineError, match="file is not a database"):
        SQLiteSource(tmp_path / "text.db", ALL, key="id")


@pytest.mark.parametrize("wal", [False, True])
def test_a_database_that_changes_is_an_error(wal: bool, tmp_path: Path) -> None:
    table = "CREATE TABLE points (id INTEGER PRIMARY KEY, x REAL, label INTEGER)"
    rows = "INSERT INTO points VALUES (1, 1, 1), (2, 2, 2)"
    path = write(tmp_path / "points.db", table, rows, wal=wal)
    source = SQLiteSource(path, ALL, key="id")
    assert take(source, [1])["x"].tolist() == [2.0]
    write(path, "UPDATE points SET x = 5 WHERE id = 2")
    with pytest.raises(PipelineError, match="has changed since the source was built"):
        take(source, [1])
    found: list[Any] = []

    def read() -> None:  # a connection that was opened after the change
        with pytest.raises(PipelineError, match="has changed") as caught:
            take(source, [1])
        found.append(caught.value)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join(30)
    assert found
    assert take(SQLiteSource(path, ALL, key="id"), [1])["x"].tolist() == [5.0]


def test_what_lies_in_the_log_of_a_writer_is_read(tmp_path: Path) -> None:
    path = tmp_path / "points.db"
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = wal")
        writer.execute("CREATE TABLE points (id INTEGER PRIMARY KEY, x REAL, label INTEGER)")
        writer.execute("INSERT INTO points VALUES (1, 1, 1), (2, 2, 2)")
        writer.commit()
        source = SQLiteSource(path, ALL, key="id", ordering="sequential")
        assert take(source, [0, 1])["x"].tolist() == [1.0, 2.0]
        writer.execute("INSERT INTO points VALUES (3, 3, 3)")
        writer.commit()
        with pytest.raises(PipelineError, match="has changed"):
            take(source, [0, 1])


def test_a_row_that_is_gone_is_an_error_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SQLiteSource(path, ALL, key="id")
    monkeypatch.setattr(sqlite_database.Database, "check", lambda self: None)
    write(path, "DELETE FROM points WHERE id = 4")
    with pytest.raises(PipelineError, match="has changed"):
        take(source, [0, 1])


def test_a_file_that_is_being_written_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **{"timeout": 0.01, **k}))
    with closing(connect(path)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(PipelineError, match=r"locked.*another program is writing"):
            SQLiteSource(path, ALL, key="id")
        writer.rollback()


def connections(path: Path) -> int:
    links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return links.count(str(path))


@pytest.fixture
def watched(path: Path) -> Iterator[Callable[[], int]]:
    gc.collect()
    yield lambda: connections(path)
    gc.collect()
    assert connections(path) == 0


def test_threads_have_their_own_connections_and_close_them(
    path: Path, watched: Callable[[], int]
) -> None:
    source = SQLiteSource(path, ALL, key="id")
    assert watched() == 1
    meet, seen = threading.Barrier(4, timeout=30), []

    def read() -> None:
        assert take(source, [1])["id"].tolist() == [4]
        meet.wait()
        seen.append(watched())
        meet.wait()

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == [5] * 4
    gc.collect()
    assert watched() == 1


def test_text_that_is_no_text_is_named(path: Path) -> None:
    write(path, "UPDATE points SET name = CAST(x'ff' AS TEXT) WHERE id = 4")
    source = SQLiteSource(path, "SELECT id, name FROM points", key="id", ordering="sequential")
    length = HostMapTransform(lambda e: {"l": len(e["name"])})
    with pytest.raises(PipelineError, match="Could not decode to UTF-8") as caught:
        batches(length(source), workers=0)
    assert caught.value.element.index == 1  # type: ignore[attr-defined]
