"""Arrow files: mapped, compressed, streams; and files that are wrong."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal import (
    ArrowSource,
    BatchTransform,
    BlockShuffle,
    DataLoader,
    HostMapTransform,
    PipelineError,
)
from cereal.testing import check_loader as check_all_ways
from cereal.testing import check_source

from .checks import LABELS, check_in_jit, check_resume, check_shuffled, check_values, equal, rows
from .test_arrow import WANTED, table

pytestmark = pytest.mark.bridges
pa, feather = import_module("pyarrow"), import_module("pyarrow.feather")

KINDS = ["mapped", "compressed", "stream", "compressed stream"]


def write(path: Path, content: Any, kind: str, size: int = 4) -> Path:
    """A file of record batches of `size` rows."""
    content = content.combine_chunks().unify_dictionaries()
    options = pa.ipc.IpcWriteOptions(compression="lz4" if "compressed" in kind else None)
    make = pa.ipc.new_stream if "stream" in kind else pa.ipc.new_file
    with make(str(path), content.schema, options=options) as file:
        file.write_table(content, max_chunksize=size)
    return path


def numbers(n: int, begin: int = 0) -> Any:
    return pa.table({"i": pa.array(np.arange(begin, begin + n), pa.int32())})


def read(source: Any, batch: int = 5, **options: Any) -> Any:
    with DataLoader([source, BatchTransform(batch, pad_last_batch=True)], **options) as loader:
        return rows(loader)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_its_rows_by_every_road(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "a.arrow", table(), kind)

    def make() -> Any:
        return ArrowSource(path, ordering="sequential")

    check_values(make(), WANTED)
    check_resume(make, WANTED)
    check_in_jit(make(), WANTED)
    check_shuffled(ArrowSource(path), WANTED, lambda found: found["label"])
    check_shuffled(ArrowSource(path, ordering=BlockShuffle()), WANTED, lambda found: found["label"])
    equal(read(make(), workers=1, worker_type="process"), WANTED)
    assert make().classes == {"color": ("red", "blue")}
    check_source(make())


def test_the_rows_of_a_mapped_file_are_the_files_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", numbers(100), "mapped", 30)
    source = ArrowSource(path)
    data = source.data.table
    for number in range(4):
        (part,), size = data.load(number)
        assert size == 0
        assert data.files[0].has(part.values.__array_interface__["data"][0])
    assert data.quick
    assert sorted(read(source)["i"].tolist()) == list(range(100))
    check_all_ways(DataLoader([source, BatchTransform(30)]))


def test_a_compressed_file_keeps_what_fits(tmp_path: Path) -> None:
    feather.write_feather(numbers(100), str(tmp_path / "a.feather"), chunksize=10)
    source = ArrowSource(tmp_path, ordering="sequential", cache_bytes=100)
    assert not source.data.table.quick
    assert read(source, workers=0)["i"].tolist() == list(range(100))
    assert len(source.data.table._kept._there) == 2
    assert ArrowSource(tmp_path).data.table.sizes == [40] * 10


def test_columns_names_and_fills(tmp_path: Path) -> None:
    holed = table().append_column("h", pa.array([None, *range(9)], pa.int32()))
    path = write(tmp_path / "a.arrow", holed, "mapped")
    columns = {"x": ["label", "h"], "flag": "inner.flag"}
    source = ArrowSource(path, columns, "sequential", fill={"h": -1}, index_key="at")
    both = np.stack([LABELS, LABELS - 1], axis=1)
    wanted = {"x": both, "flag": WANTED["inner"]["flag"], "at": LABELS}
    equal(read(source), wanted)
    one = ArrowSource(path, ["inner.small"], "sequential")
    equal(read(one), {"inner": {"small": WANTED["inner"]["small"]}})
    with pytest.raises(PipelineError, match=r"no column 'colour'; it has 'label'"):
        ArrowSource(path, ["colour"])


def test_categories_are_one_list_over_files(tmp_path: Path) -> None:
    for name, part in (("a", ["red", "blue"]), ("b", ["green", "red"])):
        made = pa.table({"c": pa.array(part).dictionary_encode()})
        write(tmp_path / f"{name}.arrow", made, "mapped")
    source = ArrowSource(tmp_path, ordering="sequential")
    assert source.classes["c"] == ("red", "blue", "green")
    assert read(source)["c"].tolist() == [0, 1, 2, 0]


def test_a_compressed_stream_must_fit(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", numbers(1000), "compressed stream", 100)
    with pytest.raises(PipelineError, match=r"compressed stream .* `cache_bytes` \(1000 bytes\)"):
        ArrowSource(path, cache_bytes=1000)


def test_files_that_are_cut_off_damaged_or_none_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", numbers(1000), "mapped", 100)
    whole = path.read_bytes()
    path.write_bytes(whole[:-200])
    with pytest.raises(PipelineError, match=r"a\.arrow' is no whole Arrow file: .* cut off"):
        ArrowSource(path)
    path.write_bytes(b"FEA1" + whole)
    with pytest.raises(PipelineError, match=r"a\.arrow' is no whole Arrow file"):
        ArrowSource(path)
    path.write_bytes(b"")
    with pytest.raises(PipelineError, match=r"a\.arrow' is no whole Arrow file"):
        ArrowSource(path)
    path = write(tmp_path / "a.arrow", numbers(1000), "stream", 100)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(PipelineError, match=r"record batch . of '.*a\.arrow' cannot be read"):
        ArrowSource(path)
    write(path, numbers(0), "mapped")
    with pytest.raises(PipelineError, match=r"a\.arrow' has no rows"):
        ArrowSource(path)


def test_a_mapped_file_that_shrinks_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", numbers(100_000), "mapped", 1000)
    with DataLoader([ArrowSource(path), BatchTransform(5)], workers=0) as loader:
        loader.batch_at(0, 0)
        path.write_bytes(b"")
        with pytest.raises(PipelineError, match=r"a\.arrow' has changed since the source was"):
            loader.batch_at(0, 1)


def test_text_and_categories_as_polars_writes_them(tmp_path: Path) -> None:
    polars = import_module("polars")
    frame = polars.DataFrame({"t": ["a", None, "b" * 20], "l": [["x"], [], ["y", "z"]]})
    frame = frame.with_columns(c=polars.Series(["u", "v", "u"], dtype=polars.Categorical))
    frame.write_ipc(tmp_path / "a.arrow")  # its text is `string_view`
    source = ArrowSource(tmp_path / "a.arrow", ordering="sequential", fill={"t": "?"})
    assert source.classes == {"c": ("u", "v")}
    seen: list[Any] = []
    see = HostMapTransform(lambda element: seen.append(element) or 0)
    with DataLoader([source, see, BatchTransform(3)], workers=0) as loader:
        loader.batch_at(0, 0)
    assert [each["t"] for each in seen[-3:]] == ["a", "?", "b" * 20]
    assert [each["l"] for each in seen[-3:]] == [["x"], [], ["y", "z"]]
    assert [int(each["c"]) for each in seen[-3:]] == [0, 1, 0]
