"""SQLite: the rows of a query, by a key or in its order; and all that is refused."""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from cereal import (
    BatchTransform,
    DataLoader,
    HostFilterTransform,
    HostMapTransform,
    PipelineError,
    SQLiteSource,
    pad_collate,
)
from cereal.reading.formats import sqlite as sqlite_module
from cereal.reading.formats import sqlite_columns, sqlite_database
from cereal.testing import check_source

N = 40
X = np.arange(N) / 4
LABELS = np.arange(N) % 7
VECTORS = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
ALL = "SELECT id, x, label FROM points"


def write(path: Path, *statements: str, wal: bool = False) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA synchronous = off")
        if wal:
            database.execute("PRAGMA journal_mode = wal")
        for statement in statements:
            database.execute(statement)
        database.commit()
    return path


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    made = write(
        tmp_path_factory.mktemp("sqlite") / "points.db",
        "CREATE TABLE points (id INTEGER PRIMARY KEY, x REAL, label INTEGER, name TEXT, v BLOB)",
        "CREATE TABLE names (label INTEGER PRIMARY KEY, word TEXT)",
    )
    with closing(sqlite3.connect(made)) as database:
        rows = [(3 * i + 1, X[i], int(LABELS[i]), f"n{i}", VECTORS[i].tobytes()) for i in range(N)]
        database.executemany("INSERT INTO points VALUES (?, ?, ?, ?, ?)", rows)
        words = [(label, f"w{label}") for label in range(7)]
        database.executemany("INSERT INTO names VALUES (?, ?)", words)
        database.commit()
    return made.read_bytes()


@pytest.fixture
def path(content: bytes, tmp_path: Path) -> Path:
    (tmp_path / "points.db").write_bytes(content)
    return tmp_path / "points.db"


def take(source: Any, indices: Any) -> dict[str, Any]:
    """Rows of a table, as its columns."""
    table = source.data.table
    return dict(zip(sorted(table.form), table.take(np.asarray(indices)), strict=True))


def batches(source: Any, size: int = 8, **options: Any) -> list[Any]:
    loader = DataLoader([source, BatchTransform(size, drop_last=True)], **options)
    with loader:
        return [jax.tree.map(np.asarray, b) for b, _ in loader.iterate(loader.init_state(0))]


# The rows


def test_rows_are_found_by_their_key_in_the_order_asked_for(path: Path) -> None:
    found = take(SQLiteSource(path, ALL, key="id"), [7, 3, 39, 3, 0])
    np.testing.assert_array_equal(found["id"], [22, 10, 118, 10, 1])
    np.testing.assert_array_equal(found["x"], X[[7, 3, 39, 3, 0]])
    np.testing.assert_array_equal(found["label"], LABELS[[7, 3, 39, 3, 0]])


def test_a_loader_gives_them_shuffled_each_once_an_epoch(path: Path) -> None:
    source = SQLiteSource(path, ALL, key="id")
    for workers in (0, 2):
        found = batches(source, workers=workers)
        ids = np.concatenate([batch["id"] for batch in found])
        assert sorted(ids.tolist()) == list(range(1, 3 * N, 3))
        assert ids.tolist() != sorted(ids.tolist())
        np.testing.assert_array_equal(np.concatenate([b["x"] for b in found]) * 12 + 1, ids)
        assert found[0]["x"].dtype == np.float32
        assert found[0]["label"].dtype == np.int32


def test_it_keeps_the_contract_of_sources(path: Path) -> None:
    query = f"{ALL} WHERE id < 20"
    check_source(SQLiteSource(path, query, key="id", ordering="sequential", index_key="at"))


@pytest.mark.slow
def test_worker_processes_read_it(path: Path) -> None:
    for source in (SQLiteSource(path, ALL, key="id"), SQLiteSource(path, f"{ALL} ORDER BY x DESC")):
        alone = batches(source, workers=0)
        together = batches(source, workers=2, worker_type="process")
        jax.tree.map(np.testing.assert_array_equal, alone, together)


def test_keys_that_count_up_take_no_memory(path: Path) -> None:
    write(path, "CREATE TABLE dense (k INTEGER PRIMARY KEY)")
    with closing(sqlite3.connect(path)) as database:
        database.executemany("INSERT INTO dense VALUES (?)", [(i,) for i in range(-3, 9)])
        database.commit()
    table = SQLiteSource(path, "SELECT k FROM dense", key="k").data.table
    assert table._keys is None
    assert table.take(np.array([11, 0, 4]))[0].tolist() == [8, -3, 1]
    assert SQLiteSource(path, ALL, key="id").data.table._keys is not None


def test_more_rows_than_one_statement_holds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_module, "_MOST_AT_ONCE", 8)
    order = np.random.default_rng(0).integers(0, N, 100)
    np.testing.assert_array_equal(take(SQLiteSource(path, ALL, key="id"), order)["x"], X[order])


QUERIES: dict[str, tuple[str, Any, str, Any]] = {
    "question marks": ("SELECT id, x FROM points WHERE label = ?", (3,), "id", 3),
    "numbers of NumPy": ("SELECT id FROM points WHERE label = ?", [np.int64(3)], "id", 3),
    "names": ("SELECT id FROM points WHERE label = :a", {"a": 3}, "id", 3),
    "a join": (
        "SELECT p.id, n.word FROM points p JOIN names n USING (label) WHERE n.word = 'w3'",
        (),
        "id",
        3,
    ),
    "rowid": ("SELECT rowid AS row, x FROM points WHERE label = 3", (), "row", 3),
    "letters of another size": ("SELECT ID FROM points WHERE label = 3", (), "id", 3),
    "a comment at the end": ("SELECT id FROM points WHERE label = 3 -- three", (), "id", 3),
    "a semicolon": ("SELECT id FROM points WHERE label = 3 ;\n", (), "id", 3),
    "a common table": (
        "WITH some AS (SELECT * FROM points WHERE label = 3) SELECT id FROM some", (), "id", 3,
    ),
    "json": (
        "SELECT id FROM points WHERE label IN (SELECT value FROM json_each('[3]'))", (), "id", 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", QUERIES)
def test_queries_of_many_kinds(name: str, path: Path) -> None:
    query, parameters, key, label = QUERIES[name]
    source = SQLiteSource(path, query, parameters, key, "sequential")
    wanted = [3 * i + 1 for i in range(N) if LABELS[i] == label]
    found = take(source, range(len(source)))
    assert found.get(key, found.get(key.upper())).tolist() == wanted  # type: ignore[union-attr]


def test_the_order_of_the_query_is_that_of_the_rows(path: Path) -> None:
    query = "SELECT id, label FROM points ORDER BY label DESC, id"
    wanted = sorted(range(N), key=lambda i: (-LABELS[i], i))
    for key in ("id", None):
        source = SQLiteSource(path, query, key=key, ordering="sequential")
        assert take(source, range(N))["id"].tolist() == [3 * i + 1 for i in wanted]
    assert "in memory" in repr(DataLoader(source))


# Types


def test_text_blobs_and_missing_values_are_objects(path: Path) -> None:
    write(path, "UPDATE points SET name = NULL, x = NULL WHERE id = 4")
    for query in (
        "SELECT id, name, x, v FROM points",
        "SELECT id, name, x, v FROM points ORDER BY id",
    ):
        source = SQLiteSource(path, query, key="id" if "ORDER" not in query else None)
        found = take(source, [2, 1, 0])
        assert found["name"] == ["n2", None, "n0"]
        assert found["x"] == [0.5, None, 0.0]
        assert found["v"] == [VECTORS[2].tobytes(), VECTORS[1].tobytes(), VECTORS[0].tobytes()]
        assert isinstance(take(source, [5, 6])["x"], np.ndarray)
        with pytest.raises(PipelineError, match=r"element\['name'\]` is a Python object.*text"):
            DataLoader([source, BatchTransform(2)])


def test_a_missing_number_is_named_and_may_be_left_out(path: Path) -> None:
    write(path, "UPDATE points SET x = NULL WHERE id = 4")
    source = SQLiteSource(path, ALL, key="id", ordering="sequential")
    with pytest.raises(PipelineError, match=r"element\['x'\]` is None, a missing") as caught:
        batches(source, workers=0)
    assert caught.value.element.index == 1  # type: ignore[attr-defined]
    there = HostFilterTransform(lambda e: e["x"] is not None)
    loader = DataLoader([source, there, BatchTransform(N)], workers=0)
    ((_, mask),) = loader
    assert np.flatnonzero(~np.asarray(mask)).tolist() == [1]


def test_blobs_become_arrays_of_the_dtype_that_is_named(path: Path) -> None:
    query = "SELECT id, v FROM points"
    for dtype, shape in (("float32", (3,)), ("(1,3)float32", (1, 3)), (np.uint8, (12,))):
        source = SQLiteSource(path, query, key="id", blobs={"v": dtype})
        assert source.element_spec()["v"].shape == shape
        wanted = VECTORS if shape != (12,) else VECTORS.view(np.uint8)
        found = take(source, [4, 9, 1])["v"]
        np.testing.assert_array_equal(found, wanted[[4, 9, 1]].reshape(3, *shape))
    write(path, "UPDATE points SET v = x'00000000' WHERE id = 4")
    ragged = SQLiteSource(path, query, key="id", ordering="sequential", blobs={"v": "float32"})
    with pytest.raises(PipelineError, match=r"lengths \(1 to 3\).*pad_collate\(3\)"):
        DataLoader([ragged, BatchTransform(2)])
    loader = DataLoader([ragged, BatchTransform(2, collate=pad_collate(3))], workers=0)
    batch, _ = next(loader.iterate())
    assert batch["v"].tolist() == [[0, 1, 2], [0, 0, 0]]


@pytest.mark.parametrize(
    ("blobs", "pattern"),
    [
        ({"w": "float32"}, "names 'w'; the query gives"),
        ({"v": "nothing"}, "must be a dtype"),
        ({"v": object}, "must be numbers"),
        ({"x": "float32"}, "'x', which holds REAL"),
        ({"v": "(4,)float32"}, "BLOB of 12 bytes, where others have 16"),
        ({"v": "(5,)V5"}, "12 bytes, not a whole number"),
    ],
)
def test_blobs_that_are_no_such_arrays(blobs: Any, pattern: str, path: Path) -> None:
    with pytest.raises(PipelineError, match=pattern):
        take(SQLiteSource(path, "SELECT id, x, v FROM points", key="id", blobs=blobs), [0])


def test_integers_among_reals_are_reals(path: Path) -> None:
    write(
        path,
        "CREATE TABLE prices (id INTEGER PRIMARY KEY, p DECIMAL)",
        "INSERT INTO prices VALUES (1, 1), (2, 2.5), (3, 4.0)",
    )
    source = SQLiteSource(path, "SELECT * FROM prices", key="id")
    for indices in ([0, 1, 2], [0, 2]):
        found = take(source, indices)["p"]
        np.testing.assert_array_equal(found, np.array([1, 2.5, 4])[indices])


@pytest.mark.parametrize("looked_at", [1 << 18, 2])
@pytest.mark.parametrize("key", ["id", None])
@pytest.mark.parametrize("value", ["'word'", "2.5", "x'00'", "9007199254740993"])
def test_a_column_of_several_types_names_the_row(
    value: str, key: Any, looked_at: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_columns, "_LOOKED_AT", looked_at)
    column = "INTEGER" if value == "2.5" else "BLOB"
    first = "0.5" if value.startswith("9") else "7"
    write(
        path,
        f"CREATE TABLE odd (id INTEGER PRIMARY KEY, n {column})",
        f"INSERT INTO odd VALUES (1, {first}), (2, {first}), (3, {first}), (10, {value})",
    )
    wanted = r"'n'.*(id=10|row 3\b|holds).*(CAST\(\"n\" AS (INTEGER|REAL)\)|typeof)"
    if value == "2.5" and looked_at > 2:
        source = SQLiteSource(path, "SELECT * FROM odd ORDER BY id", key=key)
        assert take(source, [0, 3])["n"].tolist() == [7.0, 2.5]
        return
    with pytest.raises(PipelineError, match=wanted):
        take(SQLiteSource(path, "SELECT * FROM odd ORDER BY id", key=key), [0, 3])


def test_a_number_of_64_bits_that_does_not_fit_names_its_element(path: Path) -> None:
    write(path, f"UPDATE points SET label = {2**40} WHERE id = 10")
    source = SQLiteSource(path, ALL, key="id", ordering="sequential")
    with pytest.raises(PipelineError, match=rf"{2**40} does not fit int32") as caught:
        batches(source, workers=0)
    assert caught.value.element.index == 3  # type: ignore[attr-defined]


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


def test_a_result_that_is_too_large_for_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_module, "_MOST_BYTES", 100)
    with pytest.raises(PipelineError, match=r'read into memory.*`key="id"`'):
        SQLiteSource(path, f"{ALL} ORDER BY id")


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
