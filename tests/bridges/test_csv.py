"""CSV files: types, text, rows that are wrong, and files that are larger than memory."""

from __future__ import annotations

import gzip
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal import BatchTransform, CSVSource, DataLoader, HostMapTransform, PipelineError
from cereal.reading.formats import csv_blocks
from cereal.testing import check_loader as check_all_ways
from cereal.testing import check_source

from .checks import LABELS, N, check_in_jit, check_resume, check_shuffled, check_values, equal, rows

pytestmark = pytest.mark.bridges
pa = import_module("pyarrow")

WANTED = {
    "i": LABELS,
    "x": (LABELS / 4).astype(np.float32),
    "flag": LABELS % 3 == 0,
    "c": LABELS % 2,
}


def text(begin: int = 0, end: int = N) -> str:
    lines = [f"{i},{i / 4},{'true' if i % 3 == 0 else 'false'},{'ab'[i % 2]}"
             for i in range(begin, end)]  # fmt: skip
    return "\n".join(["i,x,flag,c", *lines, ""])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "a.csv").write_text(text())
    return tmp_path / "a.csv"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few rows: types are found in the first one."""
    monkeypatch.setattr(csv_blocks, "_BLOCK", 64)
    monkeypatch.setattr(csv_blocks.CSVReading._opened, "__kwdefaults__", {"block": 64})


def read(source: Any, **options: Any) -> Any:
    with DataLoader([source, BatchTransform(5, pad_last_batch=True)], **options) as loader:
        return rows(loader)


def written(folder: Path, content: str, name: str = "a.csv") -> Path:
    (folder / name).write_text(content)
    return folder / name


@pytest.mark.parametrize("cached", [False, True])
def test_a_file_is_its_rows_by_every_road(path: Path, tmp_path: Path, cached: bool) -> None:
    options: Any = {"types": {"c": "category"}, "cache_dir": tmp_path / "cache" if cached else None}

    def make() -> Any:
        return CSVSource(path, ordering="sequential", **options)

    check_values(make(), WANTED)
    check_resume(make, WANTED)
    check_in_jit(make(), WANTED)
    check_shuffled(CSVSource(path, **options), WANTED, lambda found: found["i"])
    check_source(make())
    check_all_ways(DataLoader([make(), BatchTransform(3)]))
    equal(read(make(), workers=1, worker_type="process"), WANTED)
    assert make().classes == {"c": ("a", "b")}


def test_several_files_compressed_ones_and_columns(tmp_path: Path) -> None:
    written(tmp_path, text(0, 4), "a.csv")
    with gzip.open(tmp_path / "b.csv.gz", "wt") as file:
        file.write(text(4, N))
    source = CSVSource(tmp_path, {"v": ["i", "x"], "f": "flag"}, "sequential", index_key="at")
    v = np.stack([WANTED["i"], WANTED["x"]], axis=1).astype(np.float32)
    equal(read(source), {"v": v, "f": WANTED["flag"], "at": LABELS})


def test_text_is_str_and_other_signs_and_names_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, 'x;"two\nlines"\ny;"a ""b"""\n')
    source = CSVSource(path, ordering="sequential", names=["k", "t"], delimiter=";")
    elements = HostMapTransform(lambda e: {"n": len(e["t"]), "k": ord(e["k"])})
    found = rows(DataLoader([source, elements, BatchTransform(2)]))
    assert found["n"].tolist() == [9, 5]
    assert found["k"].tolist() == [ord("x"), ord("y")]


def test_empty_values_are_missing(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b\n1,\n,2.5\n3,4\n")
    with pytest.raises(PipelineError, match=r"element\['b'\]` is None, a missing"):
        read(CSVSource(path, ordering="sequential"))
    source = CSVSource(path, ordering="sequential", fill={"a": -1, "b": 0})
    assert read(source)["a"].tolist() == [1, -1, 3]
    assert read(source)["b"].tolist() == [0, 2.5, 4]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("cached", [False, True])
def test_types_are_widened_if_later_blocks_need_it(tmp_path: Path, cached: bool) -> None:
    lines = [f"{i},{'' if i < 40 else i},{'' if i < 40 else 't'},{'x' if i < 50 else 'y'}"
             for i in range(60)]  # fmt: skip
    lines[55] = "55.5,1,t,z"
    path = written(tmp_path, "\n".join(["a,late,text,c", *lines, ""]))
    source = CSVSource(
        path,
        ordering="sequential",
        fill={"late": -1},
        types={"c": "category"},
        cache_dir=tmp_path / "cache" if cached else None,
    )
    short = HostMapTransform(lambda e: {**e, "text": len(e["text"])})
    found = rows(DataLoader([source, short, BatchTransform(60)]))
    assert found["a"].dtype == np.float32
    assert found["a"][55] == 55.5
    assert found["late"].tolist() == [-1] * 40 + [*range(40, 55), 1, *range(56, 60)]
    assert found["text"].tolist() == [0] * 40 + [1] * 20  # an empty text is a text
    assert source.classes == {"c": ("x", "y", "z")}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("names", [None, ["a", "b"]])
def test_a_value_that_does_not_fit_names_the_file_the_row_and_the_column(
    tmp_path: Path, names: Any
) -> None:
    lines = [f"{i},{i}" for i in range(100)]
    lines[77] = "77,abc"
    path = written(tmp_path, "\n".join([*([] if names else ["a,b"]), *lines, ""]))
    row = r"78 of '.*a\.csv'" if names else r"79 of '.*a\.csv' \(the header is row 1\)"
    message = rf"^CSVSource: row {row}: the column 'b' has 'abc', which is no double, as the rows"
    with pytest.raises(PipelineError, match=message + r".*types=\{'b': str\}"):
        CSVSource(path, names=names)
    with pytest.raises(PipelineError, match=r"which is no int32; correct it"):
        CSVSource(path, names=names, types={"b": "int32"})
    assert len(CSVSource(path, names=names, types={"b": str})) == 100
    assert len(CSVSource(path, ["a"], names=names)) == 100


def test_a_row_of_another_length_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b\n1,2\n3\n")
    with pytest.raises(PipelineError, match=r"row 3 of '.*a\.csv' \(the .*Expected 2 columns"):
        CSVSource(path)


def test_text_among_numbers_says_where_the_first_is(tmp_path: Path) -> None:
    for name, content in (("a", "n\n1\n2\n"), ("b", "n\n3.5\n-\n4\n")):
        written(tmp_path, content, f"{name}.csv")
    with pytest.raises(PipelineError, match=r"row 3 of '.*b\.csv'.* has '-', which is no double"):
        CSVSource(tmp_path)
    source = CSVSource(written(tmp_path, "n,t\n1,x\n2,y\nn/a?,z\n", "c.csv"), {"num": "n"})
    message = r"element\['num'\]` is a Python object .* row 2 of c\.csv .* is 'n/a\?', and rows"
    with pytest.raises(PipelineError, match=message):
        DataLoader([source, BatchTransform(2)])


def test_what_does_not_fit_in_memory_needs_a_folder(path: Path, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"more than `cache_bytes` .*`cache_dir="):
        CSVSource(path, cache_bytes=50)
    folder = tmp_path / "cache"
    source = CSVSource(path, ordering="sequential", cache_bytes=50, cache_dir=folder)
    assert source.data.table.quick  # it is mapped
    (made,) = os.listdir(folder)
    before = os.stat(folder / made).st_mtime_ns
    CSVSource(path, cache_dir=folder)
    assert os.stat(folder / made).st_mtime_ns == before
    path.write_text(text(0, 8))
    assert len(CSVSource(path, cache_dir=folder)) == 8
    CSVSource(path, ["i"], cache_dir=folder)
    assert len(os.listdir(folder)) == 3
    with pytest.raises(PipelineError, match="has 'x'"):
        CSVSource(written(tmp_path, "n\n1\nx\n", "d.csv"), types={"n": int}, cache_dir=folder)
    assert len(os.listdir(folder)) == 3  # nothing half-written is left


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, r"a\.csv' cannot be read as CSV: Empty CSV file"),
        ("a,b\n", {}, "has no rows"),
        ("a,a\n1,2\n", {}, "two columns called 'a'"),
        ("a,b\n1,2\n", {"columns": ["c"]}, r"no column 'c'; it has 'a', 'b'"),
        ("a,b\n1,2\n", {"types": {"c": int}}, r"`types` names 'c', .* it has 'a', 'b'"),
        ("a,b\n1,2\n", {"types": {"a": "number"}}, r"types=\{'a': 'number'\}` is no type"),
        ("a,b\n1,2\n", {"types": int}, "`types` must be a dict"),
        ("a,b\n1,2\n", {"delimiter": ", "}, "`delimiter` must be one letter"),
        ("a,b\n1,2\n", {"names": "ab"}, "`names` must be a list"),
        ("a,b\n1,2\n", {"fill": {"c": 0}}, "`fill` names 'c'"),
    ],
)
def test_what_is_wrong_is_said_when_it_is_built(
    tmp_path: Path, content: str, options: Any, message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        CSVSource(written(tmp_path, content), **options)


def test_files_with_different_headers_are_named(tmp_path: Path) -> None:
    written(tmp_path, "a,b\n1,2\n", "a.csv")
    written(tmp_path, "a,c\n1,2\n", "b.csv")
    with pytest.raises(PipelineError, match=r"b\.csv' does not have the columns of .*'b' differs"):
        CSVSource(tmp_path)
    assert read(CSVSource(tmp_path, ["a"]))["a"].tolist() == [1, 1]


def test_a_header_that_is_no_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("a,é\n1,2\n".encode("latin1"))
    with pytest.raises(PipelineError, match=r"the first row of '.*a\.csv' is no UTF-8"):
        CSVSource(tmp_path / "a.csv")


def test_text_that_is_no_utf8_is_named_and_may_be_bytes(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes("n,name\n1,Jos\u00e9\n2,Ana\n".encode("latin1"))
    with pytest.raises(PipelineError, match=r"column 'name' of .*latin\.csv' has text that is no"):
        CSVSource(path)
    source = CSVSource(path, types={"name": pa.binary()}, ordering="sequential")
    assert source[0]["name"] == b"Jos\xe9"
