"""Arrays in files: every road gives the rows of `np.take`, whatever the file and the pipeline."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import cereal
from cereal import (
    BatchTransform,
    ConcatSource,
    DataLoader,
    HostMapTransform,
    MapTransform,
    MemmapSource,
    MixSource,
    PipelineError,
    SliceSource,
    WindowSource,
    save_arrays,
)
from cereal.testing import assert_same, check_resume

pytestmark = pytest.mark.slow

N = 13
X = np.random.default_rng(0).normal(size=(N, 2, 3)).astype(np.float32)
Y = np.arange(N, dtype=np.int32) * 7


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_arrays(tmp_path / "data", {"x": X, "y": Y})
    return tmp_path / "data"


def batched(source: Any, size: int = 4, **options: Any) -> DataLoader[Any]:
    return DataLoader([source, BatchTransform(size)], **options)


# The roads: each gives the first `steps` batches of key 3


def by_iterate(loader: DataLoader[Any], steps: int) -> list[Any]:
    return [batch for batch, _ in loader.iterate(loader.init_state(3), steps=steps)]


def by_next_batch(loader: DataLoader[Any], steps: int) -> list[Any]:
    state, found = loader.init_state(3), []
    for _ in range(steps):
        batch, state, _ = loader.next_batch(state)
        found.append(batch)
    return found


def by_jit(loader: DataLoader[Any], steps: int) -> list[Any]:
    step = jax.jit(lambda loader, state: loader.next_batch(state))
    state, found = loader.init_state(3), []
    for _ in range(steps):
        batch, state, _ = step(loader, state)
        found.append(batch)
    return found


def by_scan_epoch(loader: DataLoader[Any], steps: int) -> list[Any]:
    state = loader.init_state(3)
    keep = lambda carry, batch, mask: (carry, batch)  # noqa: E731
    stacked = loader.scan_epoch(state, 0, keep, steps=steps)[2]
    return [jax.tree.map(lambda x, k=k: x[k], stacked) for k in range(steps)]


def by_batch_at(loader: DataLoader[Any], steps: int) -> list[Any]:
    return [loader.batch_at(3, step)[0] for step in range(steps)]


ROADS = [by_iterate, by_next_batch, by_jit, by_scan_epoch, by_batch_at]


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("road", ROADS)
def test_every_road_gives_the_rows_of_take(road: Any, workers: Any, folder: Path) -> None:
    loader = batched(MemmapSource(folder), workers=workers)
    for step, batch in enumerate(road(loader, 7)):
        indices = loader.indices_at(3, step)
        assert_same(batch, {"x": np.take(X, indices, 0), "y": np.take(Y, indices)}, "rows")


def test_in_order_the_rows_are_those_of_the_file(folder: Path) -> None:
    loader = DataLoader([MemmapSource(folder, "sequential"), BatchTransform(5, drop_last=True)])
    for step, (batch, _) in enumerate(loader):
        assert_same(batch, {"x": X[5 * step :][:5], "y": Y[5 * step :][:5]}, "rows")


def test_files_keep_the_contract(tmp_path: Path, strict_jax: None) -> None:
    save_arrays(tmp_path / "data", {"x": X[:5], "y": Y[:5]})
    source = MemmapSource(tmp_path / "data")
    check_resume(DataLoader([source, BatchTransform(2, pad_last_batch=True)]))


@pytest.mark.parametrize("order", [[5, 5, 12, 0], cereal.BlockShuffle(4)])
def test_every_order_gives_what_arrays_give(order: Any, folder: Path) -> None:
    mine = batched(MemmapSource(folder, order), 3)
    theirs = batched(cereal.ArraySampleSource({"x": X, "y": Y}, order), 3)
    assert_same(by_iterate(mine, 6), by_iterate(theirs, 6), "rows")


def test_shuffling_visits_every_row_once_an_epoch(folder: Path) -> None:
    loader = DataLoader([MemmapSource(folder), BatchTransform(5, pad_last_batch=True)])
    seen = []
    for _ in range(2):
        state = loader.state_at(1, 3 * len(seen))
        pairs = [(batch["y"], mask) for batch, mask in loader.iterate(state)]
        seen.append(np.concatenate([y[mask] for y, mask in pairs]).tolist())
    assert sorted(seen[0]) == sorted(seen[1]) == Y.tolist()
    assert seen[0] != seen[1]


# Files of all kinds


FILES: dict[str, np.ndarray] = {
    "float64": X.astype(np.float64),
    "int64": np.arange(N * 2).reshape(N, 2),
    "big-endian": X.astype(">f4"),
    "big-endian integers": np.arange(N).astype(">i2"),
    "fortran order": np.asfortranarray(X),
    "one column": np.arange(N, dtype=np.uint8),
    "bools": X > 0,
    "complex": X[:, 0] + 1j * X[:, 1],
    "empty rows": np.zeros((N, 0, 2), np.float32),
}


PLACES = [
    *((name, "file") for name in FILES),
    *((name, where) for name in ("float64", "fortran order") for where in ("folder", "tree")),
    *((name, "described") for name in ("float64", "big-endian", "fortran order")),
]


@pytest.mark.parametrize(("name", "where"), PLACES)
def test_a_file_gives_its_rows_in_the_types_of_jax(name: str, where: str, tmp_path: Path) -> None:
    array = FILES[name]
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "a.npy", array)
    data: Any = tmp_path / "data"
    if where == "file":
        data = tmp_path / "data" / "a.npy"
    elif where == "tree":
        data = {"a": np.load(tmp_path / "data" / "a.npy", mmap_mode="r")}
    elif where == "described":
        data = tmp_path / "described"
        save_arrays(data, {"a": array})
    loader = batched(MemmapSource(data))
    native = array.astype(array.dtype.newbyteorder("="))
    for road in (by_iterate, by_batch_at):
        for step, batch in enumerate(road(loader, 4)):
            batch = batch["a"] if where != "file" else batch
            expected = jnp.asarray(np.take(native, loader.indices_at(3, step), axis=0))
            assert_same(batch, expected, name)


def test_bfloat16_is_read_back_from_a_folder(tmp_path: Path) -> None:
    array = X.astype(ml_dtypes.bfloat16)
    save_arrays(tmp_path / "data", {"x": array})
    loader = batched(MemmapSource(tmp_path / "data"))
    assert loader.element_spec()["x"].dtype == jnp.bfloat16
    for step, batch in enumerate(by_iterate(loader, 4)):
        expected = np.take(array, loader.indices_at(3, step), axis=0)
        np.testing.assert_array_equal(np.asarray(batch["x"]), expected)


def test_with_wide_types_files_keep_their_64_bits(tmp_path: Path) -> None:
    wide = {"n": np.arange(N) + 2**40, "x": np.arange(N) / 3}
    save_arrays(tmp_path / "data", wide)
    with jax.enable_x64(True):
        loader = batched(MemmapSource(tmp_path / "data"), workers=2)
        for road in (by_iterate, by_jit):
            for step, batch in enumerate(road(loader, 3)):
                at = loader.indices_at(3, step)
                assert batch["n"].tolist() == wide["n"][at].tolist()
                assert batch["x"].tolist() == wide["x"][at].tolist()


def test_a_folder_without_a_description_is_a_dict_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "data" / "inner").mkdir(parents=True)
    (tmp_path / "data" / ".hidden").mkdir()
    np.save(tmp_path / "data" / "x.npy", X)
    np.save(tmp_path / "data" / "inner" / "y.npy", Y)
    np.save(tmp_path / "data" / ".hidden" / "z.npy", Y[:2])
    (tmp_path / "data" / "notes.txt").write_text("no array")
    loader = batched(MemmapSource(tmp_path / "data", "sequential"))
    (batch,) = by_iterate(loader, 1)
    assert_same(batch, {"inner": {"y": Y[:4]}, "x": X[:4]}, "the dict")


def test_trees_keep_their_kind(tmp_path: Path) -> None:
    for number, tree in enumerate([(X, Y), [X, Y], {"a": (X, [Y, {"b": Y + 1}])}]):
        save_arrays(tmp_path / str(number), tree)
        loader = batched(MemmapSource(str(tmp_path / str(number)), "sequential"))
        (batch,) = by_iterate(loader, 1)
        assert_same(batch, jax.tree.map(lambda x: x[:4], tree), "the tree")


def test_parts_of_files_and_arrays_beside_them_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    beside = Y.copy()
    tree = {"part": mapped[1:, :, 0], "back": mapped[:0:-1], "beside": beside[1:]}
    loader = batched(MemmapSource(tree, "sequential"))
    beside[:] = -1  # what is no file was copied
    (batch,) = by_iterate(loader, 1)
    expected = {"part": X[1:5, :, 0], "back": X[:0:-1][:4], "beside": Y[1:5]}
    assert_same(batch, expected, "views")


# Read-only


def test_files_are_opened_read_only(folder: Path) -> None:
    source: Any = MemmapSource(folder)
    for leaf in jax.tree.leaves(source.data.tree):
        assert not leaf.flags.writeable
    before = [(folder / name).read_bytes() for name in ("x.npy", "y.npy")]

    def spoil(element: Any) -> Any:
        element["x"][...] = 0
        return element

    with pytest.raises((PipelineError, ValueError), match="read-only"):
        list(batched(HostMapTransform(spoil)(source)).iterate(steps=2))
    assert [(folder / name).read_bytes() for name in ("x.npy", "y.npy")] == before


def test_files_without_the_right_to_write_are_read(folder: Path) -> None:
    for path in folder.iterdir():
        path.chmod(0o444)
    assert len(by_iterate(batched(MemmapSource(folder)), 2)) == 2


def test_batches_stay_as_they_are_while_others_are_read(tmp_path: Path) -> None:
    large = np.arange(64 * 4096, dtype=np.float32).reshape(64, 4096)
    np.save(tmp_path / "a.npy", large)
    loader = DataLoader([MemmapSource(tmp_path / "a.npy"), BatchTransform(8)], workers=2)
    held = [batch for batch, _ in loader.iterate(loader.init_state(3), epochs=3)]
    for step, batch in enumerate(held):
        np.testing.assert_array_equal(batch, large[loader.indices_at(3, step)])


def test_a_file_that_is_replaced_or_deleted_is_read_as_it_was(folder: Path) -> None:
    loader = batched(MemmapSource(folder, "sequential"), workers=0)
    save_arrays(folder, {"x": X * 0, "y": Y * 0}, overwrite=True)
    assert_same(by_iterate(loader, 1)[0], {"x": X[:4], "y": Y[:4]}, "the old rows")
    again = batched(MemmapSource(folder, "sequential"))
    assert not by_iterate(again, 1)[0]["y"].any()


# Pickling


def test_a_pickled_loader_opens_its_files_again_by_name(tmp_path: Path) -> None:
    large = np.arange(400_000.0, dtype=np.float32).reshape(400, 1000)
    save_arrays(tmp_path / "data", {"x": large, "y": np.arange(400)})
    loader = batched(MemmapSource(tmp_path / "data"))
    text = pickle.dumps(loader)
    assert len(text) < 20_000
    again = pickle.loads(text)
    assert_same(by_iterate(again, 3), by_iterate(loader, 3), "again")
    assert repr(again) == repr(loader)
    for leaf in jax.tree.leaves(again.source.source.data.tree):
        assert isinstance(leaf, np.memmap)
        assert not leaf.flags.writeable
    program = (
        "import pickle, sys\n"
        "loader = pickle.loads(sys.stdin.buffer.read())\n"
        "print(loader.batch_at(3, 1)[0]['y'].tolist())"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], input=text, capture_output=True, timeout=120, check=True
    )
    assert found.stdout.decode().strip() == str(loader.batch_at(3, 1)[0]["y"].tolist())


@pytest.mark.parametrize("name", ["fortran order", "every other row", "part of a row"])
def test_views_of_files_are_pickled_right(name: str, tmp_path: Path) -> None:
    large = np.arange(100_000.0, dtype=np.float32).reshape(100, 1000)
    np.save(tmp_path / "a.npy", np.asfortranarray(large) if name == "fortran order" else large)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    views = {
        "fortran order": np.s_[:],
        "every other row": np.s_[::2],
        "part of a row": np.s_[:, 5:],
    }
    loader = batched(MemmapSource({"a": mapped[views[name]]}))
    text = pickle.dumps(loader)
    expected = large[views[name]][loader.indices_at(3, 0)]
    np.testing.assert_array_equal(by_iterate(pickle.loads(text), 1)[0]["a"], expected)
    if name == "fortran order":  # a whole file, as NumPy writes it
        assert len(text) < 20_000


# Combinations


COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "concat": lambda a, b: ConcatSource([a, b], ordering="shuffle"),
    "concat with an array": lambda a, b: ConcatSource([a, cereal.ArraySampleSource(X + 50)]),
    "mix": lambda a, b: MixSource([a, b], (2, 1)),
    "split": lambda a, b: cereal.split(a, (0.5, 0.5), key=1)[1],
    "slice": lambda a, b: SliceSource(b, range(10, 0, -3)),
    "zip": lambda a, b: cereal.ZipSource({"a": a, "b": b}),
    "repeat": lambda a, b: cereal.RepeatSource(a, 2),
    "select": lambda a, b: cereal.select(a, lambda row: row[0, 0] > 0),
    "map": lambda a, b: MapTransform(lambda row: row * 2)(a),
    "cache": lambda a, b: cereal.CacheTransform("host")(a),
}


@pytest.mark.parametrize("name", COMBINED)
def test_combined_files_give_what_combined_arrays_give(name: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    np.save(tmp_path / "b.npy", X + 100)
    files = [MemmapSource(tmp_path / f"{each}.npy") for each in "ab"]
    arrays = [cereal.ArraySampleSource(each) for each in (X, X + 100)]
    mine, theirs = (batched(COMBINED[name](*parts)) for parts in (files, arrays))
    expected = by_iterate(theirs, 5)
    roads = ROADS if name == "concat" else [by_iterate]
    for road in roads:
        assert_same(road(mine, 5), expected, name)


def test_the_tree_of_a_folder_can_be_read_by_windows(tmp_path: Path) -> None:
    series = np.arange(40, dtype=np.float32).reshape(20, 2)
    save_arrays(tmp_path / "data", {"x": series})
    source: Any = MemmapSource(tmp_path / "data")
    loader = batched(WindowSource(source.data.tree, 5, stride=2), 3)
    for step, batch in enumerate(by_iterate(loader, 4)):
        at = loader.indices_at(3, step)
        np.testing.assert_array_equal(batch["x"], np.stack([series[2 * i : 2 * i + 5] for i in at]))


# What cannot be read


def test_what_cannot_be_mapped_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "none.npy").write_bytes(b"")
    np.save(tmp_path / "cut.npy", X)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-8])
    np.savez_compressed(tmp_path / "many.npz", x=X)
    np.save(tmp_path / "records.npy", np.zeros(3, [("a", "i4")]))
    cases = {
        "missing": r"missing' does not exist; write it with `save_arrays`",
        "empty": r"empty' has no \.npy files",
        "text.npy": r"text\.npy' cannot be mapped",
        "none.npy": r"none\.npy' cannot be mapped",
        "cut.npy": r"cut\.npy' cannot be mapped",
        "many.npz": r"'x\.npy' of .*many\.npz' is compressed",
        "records.npy": r"must be an array",
    }
    for name, pattern in cases.items():
        with pytest.raises(PipelineError, match=pattern):
            MemmapSource(tmp_path / name)


@pytest.mark.parametrize(
    ("tree", "pattern"),
    [
        ({"x": X, "y": Y[:-1]}, r"one length, got `data\['x'\]` 13, `data\['y'\]` 12"),
        ({"x": X, "y": np.array(3)}, r"`data\['y'\]` has no axis"),
    ],
)
def test_files_that_do_not_go_together_are_refused(tree: Any, pattern: str, tmp_path: Path) -> None:
    save_arrays(tmp_path / "data", tree)
    with pytest.raises(PipelineError, match=pattern):
        MemmapSource(tmp_path / "data")


@pytest.mark.parametrize("bad", [None, 3, {}, {"x": "path"}, ["a.npy"], {"x": [1, 2]}])
def test_what_is_no_data_is_refused(bad: Any) -> None:
    with pytest.raises(PipelineError, match="MemmapSource"):
        MemmapSource(bad)
