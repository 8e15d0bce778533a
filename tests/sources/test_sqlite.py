"""SQLite: the rows of a query, by a key or in its order."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.sources.points_db import ALL, LABELS, VECTORS, N, X, batches, content, take, write

from cereal import (
    BatchTransform,
    DataLoader,
    HostFilterTransform,
    PipelineError,
    SQLiteSource,
    pad_collate,
)
from cereal.reading.formats.sqlite import columns as sqlite_columns
from cereal.reading.formats.sqlite import tables as sqlite_module
from cereal.testing import check_loader, check_resume, check_source


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "points.db").write_bytes(content())
    return tmp_path / "points.db"


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
        loader = DataLoader([source, BatchTransform(7)], workers=2)
        check_resume(loader)
        check_loader(loader)


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
