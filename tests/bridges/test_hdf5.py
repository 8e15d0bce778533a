"""HDF5 files, written by h5py."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal import (
    BatchTransform,
    BlockShuffle,
    DataLoader,
    HDF5Source,
    HostMapTransform,
    OptionWarning,
    PipelineError,
    pad_collate,
)
from cereal.base import extras
from cereal.base.errors import UsageError
from cereal.testing import check_loader as check_all_ways
from cereal.testing import check_source

from .checks import (
    IMAGES,
    LABELS,
    N,
    check_in_jit,
    check_resume,
    check_shuffled,
    check_values,
    rows,
)

pytestmark = pytest.mark.bridges
h5py = import_module("h5py")

WANTED = {
    "image": IMAGES,
    "inner": {"flag": LABELS % 3 == 0, "half": LABELS.astype(np.float16) / 2},
    "label": LABELS,
}


def write(path: Path, **options: Any) -> Path:
    with h5py.File(path, "w", userblock_size=options.pop("userblock_size", 0)) as file:
        file.create_dataset("image", data=IMAGES, **options)
        file.create_dataset("label", data=LABELS.astype(np.int64), **options)
        file.create_dataset("inner/flag", data=LABELS % 3 == 0)
        file.create_dataset("inner/half", data=LABELS.astype(np.float16) / 2)
        file["scalar"] = 3.0
        file.create_dataset("nothing", data=h5py.Empty("f4"))
        file.attrs["made"] = "here"
    return path


WAYS = {
    "contiguous": {},
    "behind a user block": {"userblock_size": 512},
    "chunked": {"chunks": True, "maxshape": None},
    "compressed": {"chunks": True, "compression": "gzip", "shuffle": True},
}


@pytest.fixture(params=WAYS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(tmp_path / "data.h5", **WAYS[request.param])


def take(source: Any, indices: Any) -> list[Any]:
    return source.data.table.take(np.asarray(indices))


def test_its_datasets_are_rows(path: Path) -> None:
    check_values(HDF5Source(path, ordering="sequential"), WANTED)


@pytest.mark.parametrize("way", ["contiguous", "compressed"])
def test_by_every_road(way: str, tmp_path: Path) -> None:
    path = write(tmp_path / "data.h5", **WAYS[way])

    def source(ordering: str = "sequential") -> Any:
        return HDF5Source(path, ordering=ordering)

    check_resume(source, WANTED)
    check_in_jit(source(), WANTED)
    check_shuffled(source("shuffle"), WANTED, lambda found: found["label"])
    check_source(source("shuffle"))
    check_all_ways(DataLoader([source("shuffle"), BatchTransform(3)]))
    stages = [source(), BatchTransform(5)]
    with DataLoader(stages, workers=2, worker_type="process") as loader:
        assert rows(loader)["label"].tolist() == LABELS.tolist()


def test_what_lies_in_one_piece_is_mapped_and_the_rest_is_not(path: Path) -> None:
    table = HDF5Source(path).data.table
    in_chunks = h5py.File(path, "r")["image"].chunks is not None
    assert table.quick == (not in_chunks)
    assert (table.blocks is not None) == in_chunks


def test_some_of_it_is_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "data.h5")
    some = HDF5Source(path, ["label", "inner/flag"])
    assert sorted(some.element_spec()) == ["inner", "label"]
    assert list(some.element_spec()["inner"]) == ["flag"]
    assert sorted(HDF5Source(path, "inner").element_spec()) == ["flag", "half"]
    assert HDF5Source(path, "image").element_spec().shape == (5, 6)
    assert HDF5Source(path, ["label"], index_key="at").element_spec()["at"].dtype == np.int32
    with pytest.raises(PipelineError, match=r"names 'labels'.*did you mean 'label'\?"):
        HDF5Source(path, ["labels"])
    with pytest.raises(PipelineError, match=r"'scalar' of 'data\.h5' has no rows"):
        HDF5Source(path, ["label", "scalar"])


def test_datasets_of_different_lengths_are_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.zeros(3), np.zeros(4)
    with pytest.raises(PipelineError, match=r"one length, but a\.h5 has 'x' 3, 'y' 4.*keys="):
        HDF5Source(tmp_path / "a.h5")
    assert len(HDF5Source(tmp_path / "a.h5", ["y"])) == 4


# Chunks


def chunked(path: Path, n: int = 1000, rows: int = 100) -> Path:
    with h5py.File(path, "w") as file:
        x = np.arange(n * 100, dtype=np.float32).reshape(n, 100)
        file.create_dataset("x", data=x, chunks=(rows, 50), compression="lzf")
        file.create_dataset("y", data=np.arange(n), chunks=(300,))
    return path


def test_a_chunk_is_decoded_once_while_it_is_kept(tmp_path: Path) -> None:
    table = HDF5Source(chunked(tmp_path / "a.h5")).data.table
    assert table.blocks.tolist() == [100] * 10
    order = np.random.default_rng(0).permutation(1000)
    for begin in range(0, 1000, 50):
        x, y = table.take(order[begin : begin + 50])
        assert y.tolist() == order[begin : begin + 50].tolist()
        assert (x[:, 0] == 100 * y).all()
    assert table._taken["x"].loads == 10
    assert table._taken["y"].loads == 1  # small chunks are read together


def test_only_so_many_bytes_are_kept(tmp_path: Path) -> None:
    source = HDF5Source(chunked(tmp_path / "a.h5"), ["x"], BlockShuffle(), cache_bytes=120_000)
    table = source.data.table
    pieces = table._taken["x"].pieces
    for begin in range(0, 1000, 100):
        for _ in range(3):
            assert (table.take(np.arange(begin, begin + 100))[0][:, 0] % 100 == 0).all()
    assert pieces.loads == 10
    assert len(pieces._kept) == 3
    found = table.take(np.arange(0, 1000, 100)[::-1])[0]  # more than is kept, in one batch
    assert found[:, 0].tolist() == [100.0 * i for i in range(900, -1, -100)]


@pytest.mark.parametrize("fits", [False, True])
def test_threads_share_what_is_decoded(fits: bool, tmp_path: Path) -> None:
    most = 1000 * 400 - (not fits)
    order = "shuffle" if fits else "sequential"
    source = HDF5Source(chunked(tmp_path / "a.h5"), ["x"], order, cache_bytes=most)
    table = source.data.table
    wrong: list[Any] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            indices = rng.integers(0, 1000, 64)
            if not (table.take(indices)[0][:, 0] == 100 * indices).all():
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    if fits:
        assert table._taken["x"].loads == 10


@pytest.mark.parametrize("most", [1 << 30, 100_000])
def test_in_the_blocks_of_the_data_each_chunk_is_decoded_once(most: int, tmp_path: Path) -> None:
    source = HDF5Source(chunked(tmp_path / "a.h5"), ["x"], BlockShuffle(), cache_bytes=most)
    loader = DataLoader([source, BatchTransform(50)], workers=0)
    found = [np.asarray(batch["x"])[:, 0] for batch, _ in loader.iterate(loader.init_state(0))]
    assert sorted(np.concatenate(found) / 100) == list(range(1000))
    taken = source.data.table._taken["x"]
    assert (taken.loads if most > 1e6 else taken.pieces.loads) == 10


def test_chunks_that_would_be_decoded_again_and_again_give_a_warning(tmp_path: Path) -> None:
    path = chunked(tmp_path / "a.h5")
    with pytest.warns(OptionWarning, match=r"chunks will be read again.*BlockShuffle\(\)"):
        HDF5Source(path, ["x"], cache_bytes=100_000)


# Types


def test_numbers_of_all_kinds(tmp_path: Path) -> None:
    kinds = {
        "big": np.arange(N).astype(">i2"),
        "complex": np.arange(N).astype(np.complex64),
        "enumerated": (LABELS % 3).astype(np.uint8),
        "unwritten": np.full((N, 2), 7, np.float32),
        "rows of arrays": np.arange(N * 3, dtype=np.float32).reshape(N, 3),
    }
    colors = h5py.enum_dtype({"R": 0, "G": 1, "B": 2}, "u1")
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file["big"], file["complex"] = kinds["big"], kinds["complex"]
        file.create_dataset("enumerated", data=kinds["enumerated"], dtype=colors)
        file.create_dataset("unwritten", (N, 2), "f4", fillvalue=7)
        inner = file.create_dataset("rows of arrays", (N,), np.dtype(("f4", (3,))))
        inner[...] = kinds["rows of arrays"]
    source = HDF5Source(tmp_path / "a.h5", ordering="sequential")
    assert source.classes == {"enumerated": ("R", "G", "B")}
    for column, name in zip(take(source, [4, 1]), sorted(kinds), strict=True):
        np.testing.assert_array_equal(column, kinds[name][[4, 1]])
    found = rows(DataLoader([source, BatchTransform(N)]))
    assert found["big"].dtype == np.int16


@pytest.mark.parametrize("chunks", [None, (3,)])
def test_compound_types_are_dicts(chunks: Any, tmp_path: Path) -> None:
    kind = [("b", ">f8", (3,)), ("a", "i4"), ("c", [("d", "?")])]
    records = np.zeros(N, kind)
    records["a"], records["b"] = LABELS, LABELS[:, None] / 2
    records["c"]["d"] = LABELS % 2 == 0
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("r", data=records, chunks=chunks)
    wanted = {
        "r": {
            "a": LABELS,
            "b": np.repeat(LABELS[:, None] / 2, 3, axis=1).astype(np.float32),
            "c": {"d": LABELS % 2 == 0},
        }
    }
    check_values(HDF5Source(tmp_path / "a.h5", ordering="sequential"), wanted)


def test_text_is_str_and_needs_a_stage(tmp_path: Path) -> None:
    words = ["a", "ä", "ccc"]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["of any length"] = words
        fixed = np.array([w.encode() for w in words], h5py.string_dtype("utf-8", 5))
        file["of one length"] = fixed
    source = HDF5Source(tmp_path / "a.h5", ordering="sequential")
    assert take(source, [2, 1]) == [["ccc", "ä"], ["ccc", "ä"]]
    with pytest.raises(PipelineError, match=r"is a Python object and no array: text"):
        DataLoader([source, BatchTransform(2)])
    length = HostMapTransform(lambda e: {name: len(word) for name, word in e.items()})
    found = rows(DataLoader([source, length, BatchTransform(3)]))
    assert found["of one length"].tolist() == [1, 1, 3]


def test_ragged_rows_need_a_collate(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, lengths in {"ragged": [1, 2, 0], "alike": [2, 2, 2]}.items():
            made = file.create_dataset(name, (3,), h5py.vlen_dtype("i4"))
            for i, length in enumerate(lengths):
                made[i] = np.arange(length) + i
    ragged = HDF5Source(tmp_path / "a.h5", ["ragged"], "sequential")
    with pytest.raises(PipelineError, match=r"lengths \(0 to 2\).*pad_collate\(2\)"):
        DataLoader([ragged, BatchTransform(2)])
    ((batch, _),) = DataLoader([ragged, BatchTransform(3, collate=pad_collate(2))])
    assert batch["ragged"].tolist() == [[0, 0], [1, 2], [0, 0]]
    alike = HDF5Source(tmp_path / "a.h5", ["alike"], "sequential")
    found = rows(DataLoader([alike, BatchTransform(3)]))
    assert found["alike"].tolist() == [[0, 1], [1, 2], [2, 3]]


def test_what_holds_no_arrays_is_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        file.create_dataset("ref", (3,), h5py.ref_dtype)
        file["gone"] = h5py.SoftLink("/nowhere")
        file["loop/inner"] = h5py.SoftLink("/loop")
    for name, pattern in {
        "ref": "'ref' of 'a.h5' holds values that are no arrays",
        "gone": "'gone' of 'a.h5' is a link that leads nowhere",
        "loop": "'loop/inner' of 'a.h5' is a link to a group around it",
    }.items():
        with pytest.raises(PipelineError, match=pattern):
            HDF5Source(tmp_path / "a.h5", ["x", name])
    assert len(HDF5Source(tmp_path / "a.h5", ["x"])) == 3
    with pytest.raises(PipelineError, match="keys="):
        HDF5Source(tmp_path / "a.h5")


def test_data_in_other_files_is_read_and_watched(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["x"] = np.arange(4.0)
    layout = h5py.VirtualLayout(shape=(4,), dtype="f8")
    layout[:] = h5py.VirtualSource(str(tmp_path / "b.h5"), "x", shape=(4,))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["link"] = h5py.ExternalLink("b.h5", "x")
        file.create_virtual_dataset("virtual", layout)
    source = HDF5Source(tmp_path / "a.h5")
    assert [column.tolist() for column in take(source, [3, 1])] == [[3.0, 1.0]] * 2
    os.utime(tmp_path / "b.h5", ns=(1, 1))
    with pytest.raises(PipelineError, match=r"b\.h5' has changed"):
        take(source, [0])


# Files that cannot be read


def test_files_that_are_none(tmp_path: Path) -> None:
    whole = write(tmp_path / "data.h5").read_bytes()
    (tmp_path / "text.h5").write_text("no such file" * 100)
    (tmp_path / "cut.h5").write_bytes(whole[: len(whole) // 2])
    with h5py.File(tmp_path / "empty.h5", "w"):
        pass
    with h5py.File(tmp_path / "no rows.h5", "w") as file:
        file["x"] = np.zeros((0, 3))
    for name, pattern in {
        "text.h5": "cannot be opened: .*signature",
        "cut.h5": "cannot be opened: .*truncated",
        "missing.h5": "cannot be opened: No such file",
        "empty.h5": "has no arrays",
        "no rows.h5": "have no rows",
    }.items():
        with pytest.raises(PipelineError, match=pattern):
            HDF5Source(tmp_path / name)
    assert not (tmp_path / "missing.h5").exists()


def test_a_chunk_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", data=np.arange(1000), chunks=(100,), compression="gzip")
        info = made.id.get_chunk_info(5)
    with open(path, "r+b") as file:
        file.seek(info.byte_offset)
        file.write(b"\0" * info.size)
    source = HDF5Source(path)
    with pytest.raises(PipelineError, match=r"'x' of 'a\.h5' cannot be read between rows"):
        take(source, [550])


def test_a_file_that_another_program_writes_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "data.h5")
    program = "import h5py, sys; f = h5py.File(sys.argv[1], 'a'); print(1, flush=True); input()"
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "HDF5_USE_FILE_LOCKING": "TRUE"},
    )
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        with pytest.raises(PipelineError, match="another program writes to it"):
            HDF5Source(path)
    finally:
        writer.communicate(b"\n", timeout=60)


@pytest.mark.parametrize("way", ["contiguous", "compressed"])
def test_a_file_that_changes_is_an_error_and_no_crash(way: str, tmp_path: Path) -> None:
    path = write(tmp_path / "data.h5", **WAYS[way])
    source = HDF5Source(path)
    take(source, [1])
    os.truncate(path, 600)
    with pytest.raises(PipelineError, match=r"data\.h5' has changed since"):
        take(source, [1])


def test_without_the_library_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "data.h5")

    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(extras.importlib, "import_module", absent)
    with pytest.raises(UsageError, match=r"HDF5Source needs 'h5py'.*cereal-jax\[hdf5\]"):
        HDF5Source(path)
