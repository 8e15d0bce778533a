"""Parquet files: rows, columns, row groups that are read once, and files that are wrong."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from cereal import (
    BatchTransform,
    BlockShuffle,
    DataLoader,
    HostFilterTransform,
    HostMapTransform,
    MapTransform,
    OptionWarning,
    ParquetSource,
    PipelineError,
    SliceSource,
    pad_collate,
)
from cereal.testing import check_loader as check_all_ways
from cereal.testing import check_source

from .checks import LABELS, N, check_in_jit, check_resume, check_shuffled, check_values, equal, rows
from .test_arrow import WANTED, table

pytestmark = pytest.mark.bridges
pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Ten rows in groups of 4, 4 and 2, with nested columns, lists and categories."""
    pq.write_table(table(), tmp_path / "rows.parquet", row_group_size=4)
    return tmp_path / "rows.parquet"


def numbers(n: int, begin: int = 0) -> Any:
    return pa.table({"i": pa.array(np.arange(begin, begin + n), pa.int32())})


def write(folder: Path, name: str, content: Any, size: int = 100) -> str:
    pq.write_table(content, folder / name, row_group_size=size)
    return str(folder / name)


def read(source: Any, batch: int = 5, **options: Any) -> Any:
    with DataLoader([source, BatchTransform(batch, pad_last_batch=True)], **options) as loader:
        return rows(loader)


def loads(source: Any) -> int:
    return source.data.table._kept.loads


# Values


def test_a_file_is_its_rows_by_every_road(path: Path) -> None:
    def make() -> Any:
        return ParquetSource(path, ordering="sequential")

    check_values(make(), WANTED)
    check_resume(make, WANTED)
    check_in_jit(make(), WANTED)
    for ordering in ("shuffle", BlockShuffle(), BlockShuffle(together=2)):
        source = ParquetSource(path, ordering=ordering)
        check_shuffled(source, WANTED, lambda found: found["label"])
        check_source(source)
    check_all_ways(DataLoader([make(), BatchTransform(3)]))


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_processes_open_the_files_themselves(path: Path, workers: int) -> None:
    source = ParquetSource(path, ordering="sequential")
    options: Any = {"workers": workers, "worker_type": "process"}
    equal(read(source, **options), WANTED)
    assert loads(source) == 0  # nothing was read in this process


def test_lengths_come_from_footers_alone(tmp_path: Path) -> None:
    source = ParquetSource(write(tmp_path, "a.parquet", numbers(10), 3))
    assert (len(source), loads(source)) == (10, 0)
    assert source.element_spec()["i"].dtype == np.int32


def test_columns_are_chosen_also_inside_of_structs(path: Path) -> None:
    source = ParquetSource(path, ["label", "inner.flag"], "sequential", index_key="at")
    wanted = {"label": LABELS, "inner": {"flag": WANTED["inner"]["flag"]}, "at": LABELS}
    equal(read(source), wanted)


def test_a_dict_renames_columns_and_makes_one_array_of_several(path: Path) -> None:
    columns = {"x": ["label", "inner.small"], "flag": "inner.flag", "whole": "inner", "y": "label"}
    source = ParquetSource(path, columns, "sequential")
    both = np.stack([LABELS, LABELS], axis=1)
    flag = WANTED["inner"]["flag"]
    equal(read(source), {"x": both, "flag": flag, "whole": WANTED["inner"], "y": LABELS})
    assert source.element_spec()["x"].shape == (2,)


def test_categories_are_one_list_over_row_groups_and_files(tmp_path: Path) -> None:
    colors = [["red", "blue", "red"], ["green", "blue"], ["blue", None, "white"]]
    for name, part in zip("abc", colors, strict=True):
        made = pa.table({"c": pa.array(part).dictionary_encode()})
        write(tmp_path, f"{name}.parquet", made, 2)
    source = ParquetSource(tmp_path, ordering="sequential", fill={"c": "none"})
    assert source.classes["c"] == ("red", "blue", "none", "green", "white")
    flat = ["none" if c is None else c for part in colors for c in part]
    assert [source.classes["c"][i] for i in read(source)["c"]] == flat


def test_categories_inside_of_structs_and_lists_have_names_too(tmp_path: Path) -> None:
    inner = pa.array(["a", "b", "c", "a"]).dictionary_encode()
    made = pa.table({"s": pa.StructArray.from_arrays([inner], ["k"])})
    source = ParquetSource(write(tmp_path, "a.parquet", made, 2), ordering="sequential")
    assert source.classes == {"s.k": ("a", "b", "c")}
    assert read(source)["s"]["k"].tolist() == [0, 1, 2, 0]


def test_missing_values_are_named_filled_or_left_out(tmp_path: Path) -> None:
    column = pa.array([1.5, None, 3.5, 4.5])
    inner = pa.StructArray.from_arrays([pa.array([1, 2, None, 4])], ["b"])
    path = write(tmp_path, "a.parquet", pa.table({"x": column, "a": inner}), 2)
    with pytest.raises(PipelineError, match=r"element\['x'\]` is None, a missing") as caught:
        read(ParquetSource(path, ["x"], "sequential"))
    assert caught.value.element.index == 1  # type: ignore[attr-defined]
    filled = read(ParquetSource(path, ordering="sequential", fill={"x": -1, "a.b": 7}))
    assert filled["x"].tolist() == [1.5, -1, 3.5, 4.5]
    assert filled["a"]["b"].tolist() == [1, 2, 7, 4]
    source = ParquetSource(path, ["x"], "sequential")
    there = HostFilterTransform(lambda e: e["x"] is not None)
    found = rows(DataLoader([source, there, BatchTransform(4)]))
    assert found["x"].tolist() == [1.5, 3.5, 4.5]


def test_text_times_and_lists_reach_host_stages(tmp_path: Path) -> None:
    made = pa.table(
        {
            "t": ["a", "bb", None],
            "when": pa.array([0, 1_000_000, 2_000_000], pa.timestamp("us")),
            "r": [[1], [2, 3], []],
        }
    )
    path = write(tmp_path, "a.parquet", made, 2)
    with pytest.raises(PipelineError, match=r"element\['t'\]` is a Python object .*type string"):
        DataLoader([ParquetSource(path, ["t"]), BatchTransform(2)])

    def encode(e: Any) -> Any:
        return {"n": len(e["t"] or "none"), "s": e["when"].timestamp() % 60, "sum": sum(e["r"])}

    source = ParquetSource(path, ordering="sequential")
    found = rows(DataLoader([source, HostMapTransform(encode), BatchTransform(3)]))
    assert found["n"].tolist() == [1, 2, 4]
    assert found["s"].tolist() == [0, 1, 2]
    assert found["sum"].tolist() == [1, 5, 0]
    lists = ParquetSource(path, ["r"], "sequential")
    ((batch, _),) = DataLoader([lists, BatchTransform(3, collate=pad_collate(2))])
    assert batch["r"].tolist() == [[1, 0], [2, 3], [0, 0]]


def test_numbers_that_do_not_fit_may_be_made_smaller_by_a_host_stage(tmp_path: Path) -> None:
    path = write(tmp_path, "a.parquet", pa.table({"n": [2**40 + 1, 2, 2**40 + 3]}))
    source = ParquetSource(path, ordering="sequential")
    with pytest.raises(PipelineError, match=rf"the integer {2**40 + 1} does not fit int32"):
        read(source)
    small = HostMapTransform(lambda e: {"n": e["n"] % 2**40})
    assert rows(DataLoader([source, small, BatchTransform(3)]))["n"].tolist() == [1, 2, 3]


# Several files


def test_a_path_a_list_a_pattern_and_a_folder(tmp_path: Path) -> None:
    paths = [write(tmp_path, f"{k}.parquet", numbers(4, 4 * k), 3) for k in range(3)]
    (tmp_path / "sub").mkdir()
    os.rename(paths[2], tmp_path / "sub" / "2.parquet")
    (tmp_path / "notes.txt").write_text("no data")
    (tmp_path / "_metadata.parquet").write_text("of another program")
    wanted = list(range(12))
    for given in (tmp_path, str(tmp_path), [*paths[:2], tmp_path / "sub"], [tmp_path / "*[01].p*"]):
        source = ParquetSource(given, ordering="sequential")
        assert read(source)["i"].tolist() == wanted[: len(source)]
    assert read(ParquetSource(paths[1::-1], ordering="sequential"))["i"].tolist() == [
        4, 5, 6, 7, 0, 1, 2, 3,
    ]  # fmt: skip
    several = ParquetSource(tmp_path)
    assert "0.parquet and 2 more" in repr(DataLoader([several, BatchTransform(2)]))


def test_files_without_rows_are_no_harm_among_others(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", numbers(0))
    with pytest.raises(PipelineError, match=r"a\.parquet' has no rows"):
        ParquetSource(tmp_path)
    write(tmp_path, "b.parquet", numbers(4))
    assert read(ParquetSource(tmp_path, ordering="sequential"))["i"].tolist() == [0, 1, 2, 3]


# Row groups


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 4, "worker_type": "thread"}])
def test_an_epoch_of_block_shuffle_reads_each_row_group_once(
    tmp_path: Path, together: int, options: Any
) -> None:
    for k, n in enumerate((700, 300)):  # groups of 64, the last of a file shorter
        write(tmp_path, f"{k}.parquet", numbers(n, 700 * k), 64)
    # With room for nothing, only the row groups that are read at the time are kept.
    with pytest.warns(OptionWarning, match=f"{2 * together} row groups are kept"):
        source = ParquetSource(tmp_path, ordering=BlockShuffle(together=together), cache_bytes=0)
    prefetch = {"prefetch": 6} if options["workers"] else {}
    with DataLoader([source, BatchTransform(5)], **prefetch, **options) as loader:
        for key in (0, 1):
            before = loads(source)
            found = rows(loader, loader.init_state(key))["i"]
            assert sorted(found.tolist()) == list(range(1000))
            assert found.tolist() != list(range(1000))
            kept = 2 * together if before else 0  # some that the last epoch has read are there
            assert 16 - kept <= loads(source) - before <= 16


def test_small_files_are_decoded_once(tmp_path: Path) -> None:
    source = ParquetSource(write(tmp_path, "a.parquet", numbers(100), 10))
    for _ in range(3):
        read(source, workers=2, worker_type="thread")
    assert loads(source) == 10


def test_the_order_resumes_and_belongs_to_these_row_groups(tmp_path: Path) -> None:
    paths = [write(tmp_path, f"{size}.parquet", numbers(100), size) for size in (10, 20)]
    ten, twenty = (
        DataLoader([ParquetSource(path, ordering=BlockShuffle()), BatchTransform(7)])
        for path in paths
    )
    state = ten.next_batch(ten.init_state(3))[1]
    whole = rows(ten, ten.init_state(3))["i"]
    np.testing.assert_array_equal(rows(ten, state)["i"][:90], whole[7:97])
    with pytest.raises(ValueError, match=r"BlockShuffle\(10 blocks.*BlockShuffle\(5 blocks"):
        twenty.next_batch(state)


def test_a_shuffle_over_more_than_is_kept_warns_with_the_line_to_write(tmp_path: Path) -> None:
    path = write(tmp_path, "a.parquet", numbers(10_000), 1000)
    for ordering in ("shuffle", BlockShuffle(50), np.arange(10_000)):
        random = not isinstance(ordering, np.ndarray)
        with pytest.warns(OptionWarning) if random else _quiet() as caught:
            ParquetSource(path, ordering=ordering, cache_bytes=20_000)
        if random:
            assert "`ordering=BlockShuffle()`" in str(caught[0].message)
            assert "convert(" in str(caught[0].message)
            assert caught[0].filename == __file__
    for ordering in ("sequential", BlockShuffle()):
        ParquetSource(path, ordering=ordering, cache_bytes=20_000)


def _quiet() -> Any:
    import contextlib

    return contextlib.nullcontext()


def test_parts_of_a_source_need_a_size_of_blocks(tmp_path: Path) -> None:
    source = ParquetSource(write(tmp_path, "a.parquet", numbers(10), 3), ordering=BlockShuffle())
    with pytest.raises(PipelineError, match=r"SliceSource: .* of 10 elements, and there are 5"):
        SliceSource(source, range(5))
    part = SliceSource(source, range(5), ordering=BlockShuffle(2))
    assert sorted(read(part)["i"].tolist()) == [0, 1, 2, 3, 4]


def test_epochs_are_scanned(path: Path) -> None:
    source = ParquetSource(path, {"x": ["label", "inner.small"]}, BlockShuffle())
    loader = DataLoader([source, BatchTransform(5), MapTransform(lambda b: b["x"].sum())])
    total = loader.scan_epoch(loader.init_state(0), 0, lambda c, b, m: (c + b, None))[1]
    assert int(total) == 2 * sum(range(N))


# More


def test_the_names_of_caches_differ_with_the_file_and_the_columns(path: Path) -> None:
    def name(**options: Any) -> str:
        return repr(ParquetSource(path, **options).data.digest_of())

    names = {name(), name(columns=["label"]), name(fill={"label": 0}), name(columns={"l": "label"})}
    assert len(names) == 4
    assert name() == name()
    os.utime(path, (1, 1))
    assert name() not in names


def test_more_than_two_gigabytes_of_text_in_chunks_are_read_too() -> None:
    from cereal.reading.arrow.arrow_columns import tree_of_parts

    chunks = pa.chunked_array([["a", "b"], ["c"]])
    struct = pa.chunked_array([pa.array([{"t": "x"}, {"t": "y"}]), pa.array([{"t": "z"}])])
    parts = tree_of_parts(pa.table({"t": chunks, "s": struct}))
    assert parts["t"].take(np.array([2, 0])) == ["c", "a"]
    assert parts["s"]["t"].take(np.array([1, 2])) == ["y", "z"]


def test_the_state_goes_through_jit_with_a_table_of_blocks(path: Path) -> None:
    source = ParquetSource(path, ["label"], BlockShuffle())
    with DataLoader([source, BatchTransform(5)]) as loader:
        step = jax.jit(lambda loader, state: loader.next_batch(state))
        state = other = loader.init_state(0)
        for _ in range(4):
            batch, state, _ = step(loader, state)
            alone, other, _ = loader.next_batch(other)
            np.testing.assert_array_equal(batch["label"], alone["label"])


def test_the_caller_reads_what_is_kept_and_workers_the_rest(tmp_path: Path) -> None:
    name = write(tmp_path, "a.parquet", numbers(100), size=10)
    kept, more = ParquetSource(name), ParquetSource(name, ordering="sequential", cache_bytes=1)
    assert (kept.traits.quick, more.traits.quick) == (True, False)
