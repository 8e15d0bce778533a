"""`save_arrays`: what it writes, that it writes all or nothing, and what is never read back."""

from __future__ import annotations

import json
import os
import pickle
import resource
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from cereal import MemmapSource, PipelineError, save_arrays
from cereal.sources.files import array_files
from cereal.sources.files.array_files import open_arrays


def read(path: Path) -> Any:
    return open_arrays(path, "test")


def assert_equal(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


ROWS = np.arange(24.0, dtype=np.float32).reshape(6, 4)
TREES: dict[str, Any] = {
    "an array": ROWS,
    "a dict": {"image": ROWS, "label": np.arange(6)},
    "a tuple": (ROWS, np.arange(6)),
    "a list": [ROWS, np.arange(6)],
    "one of each": {"a": [ROWS, (ROWS[:, 0], {"b": ROWS[:, 1:2]})], "c": (np.arange(6),)},
    "jax arrays": {"x": jnp.asarray(ROWS), "y": jnp.arange(6)},
    "no axes": {"x": np.array(3.5), "y": np.float32(2)},
    "no rows": {"x": np.zeros((0, 3), np.float32)},
    "empty rows": {"x": np.zeros((6, 0), np.float32)},
    "names that look alike": {
        name: np.full(2, i)
        for i, name in enumerate(["a/b", "a_b", "A_B", "..", ".", "", "é", "tree.json", "x.y"])
    },
    "a name that looks like a path in the tree": {"x": {"y": ROWS}, "x.y": ROWS + 1},
    "names out of order": {"b": ROWS, "a": ROWS + 1},
}


@pytest.mark.parametrize("name", TREES)
def test_what_is_saved_is_read_back(name: str, tmp_path: Path) -> None:
    tree = TREES[name]
    save_arrays(tmp_path / "saved", tree)
    assert_equal(read(tmp_path / "saved"), tree)
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    assert all(path.parent == tmp_path / "saved" for path in tmp_path.rglob("*.npy"))


DTYPES = [
    *("bool", "uint8", "int16", "int64", "uint64", "float16", "float32", "float64", "complex64"),
    *(">i4", ">f8", "bfloat16", "float8_e4m3fn", "int4"),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_read_back(dtype: str, tmp_path: Path) -> None:
    kind = getattr(ml_dtypes, dtype, dtype)
    array = np.arange(6).reshape(3, 2).astype(kind)
    save_arrays(tmp_path / "saved", {"x": array})
    assert_equal(read(tmp_path / "saved"), {"x": array})


@pytest.mark.parametrize("dtype", ["float64", ">i2"])
def test_one_file_is_read_back(dtype: str, tmp_path: Path) -> None:
    array = np.arange(6).astype(dtype)
    save_arrays(tmp_path / "one.npy", array)
    assert_equal(read(tmp_path / "one.npy"), array)


def test_a_dtype_that_one_file_cannot_name_is_refused_when_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="bfloat16"):
        save_arrays(tmp_path / "one.npy", np.arange(6).astype(ml_dtypes.bfloat16))
    assert list(tmp_path.iterdir()) == []


def test_the_files_are_those_of_numpy(tmp_path: Path) -> None:
    save_arrays(tmp_path / "saved", {"x": ROWS, "y": np.arange(6)})
    np.testing.assert_array_equal(np.load(tmp_path / "saved" / "x.npy"), ROWS)
    np.testing.assert_array_equal(np.load(tmp_path / "saved" / "y.npy"), np.arange(6))


def test_views_are_written_as_they_look(tmp_path: Path) -> None:
    big = np.arange(48).reshape(6, 8)
    tree = {"f": np.asfortranarray(big), "t": big.T[:6], "s": big[::-2], "b": np.broadcast_to(3, 4)}
    save_arrays(tmp_path / "saved", tree)
    assert_equal(read(tmp_path / "saved"), tree)


def test_files_are_copied_by_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "_CHUNK", 40)  # two and a half rows
    np.save(tmp_path / "from.npy", ROWS)
    mapped = np.load(tmp_path / "from.npy", mmap_mode="r")
    save_arrays(tmp_path / "saved", {"x": mapped, "f": np.asfortranarray(ROWS)})
    assert_equal(read(tmp_path / "saved"), {"x": ROWS, "f": ROWS})


def test_folders_above_are_made_and_others_may_read_it(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        save_arrays(str(tmp_path / "a" / "b" / "saved"), {"x": ROWS})
    finally:
        os.umask(mask)
    assert_equal(read(tmp_path / "a" / "b" / "saved"), {"x": ROWS})
    assert stat.S_IMODE((tmp_path / "a" / "b" / "saved").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "a" / "b" / "saved" / "x.npy").stat().st_mode) == 0o644


# What cannot be saved


class Pair(NamedTuple):
    a: Any
    b: Any


BAD_TREES: dict[str, tuple[Any, str]] = {
    "objects": ({"x": np.array([1, "a"], object)}, r"`tree\['x'\]` must be an array of numbers"),
    "text": ({"x": np.array(["a"])}, r"`tree\['x'\]` must be an array of numbers"),
    "records": ({"x": np.zeros(3, [("a", "i4")])}, r"`tree\['x'\]` must be an array of numbers"),
    "a list of numbers": ({"x": [1, 2]}, r"`tree\['x'\]\[0\]` must be an array, got int"),
    "a string": ("text", r"`tree` must be an array, got str"),
    "nothing": ({}, "holds no arrays"),
    "none": ({"x": ROWS, "y": None}, "NoneType"),
    "numbered keys": ({0: ROWS}, "keys of dicts must be strings"),
    "a named tuple": ({"x": Pair(ROWS, ROWS)}, "Pair"),
    "random keys": ({"x": jax.random.split(jax.random.key(0), 3)}, r"tree\['x'\]|key"),
}


@pytest.mark.parametrize("name", BAD_TREES)
def test_what_cannot_be_saved_is_named_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    tree, pattern = BAD_TREES[name]
    with pytest.raises(PipelineError, match=pattern):
        save_arrays(tmp_path / "saved", tree)
    assert list(tmp_path.iterdir()) == []


def test_an_ordered_dict_is_a_dict(tmp_path: Path) -> None:
    save_arrays(tmp_path / "saved", OrderedDict(b=ROWS, a=ROWS + 1))
    assert_equal(read(tmp_path / "saved"), {"a": ROWS + 1, "b": ROWS})


def test_one_file_holds_one_array(tmp_path: Path) -> None:
    for tree in ({"x": ROWS}, [ROWS], {"x": ROWS, "y": ROWS}):
        with pytest.raises(PipelineError, match="holds one array"):
            save_arrays(tmp_path / "one.npy", tree)
    assert list(tmp_path.iterdir()) == []


# All or nothing


@contextmanager
def small_disk(most: int = 4096) -> Iterator[None]:
    """No file may grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("target", ["saved", "one.npy"])
def test_a_disk_that_is_full_leaves_nothing_behind(target: str, tmp_path: Path) -> None:
    large = np.zeros(10_000)
    with pytest.raises(OSError), small_disk():  # noqa: PT011
        save_arrays(tmp_path / target, large if target == "one.npy" else {"a": ROWS, "b": large})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["saved", "one.npy"])
def test_a_disk_that_is_full_leaves_what_was_there(target: str, tmp_path: Path) -> None:
    large, path = np.zeros(10_000), tmp_path / target
    save_arrays(path, ROWS)
    with pytest.raises(OSError), small_disk():  # noqa: PT011
        save_arrays(path, large, overwrite=True)
    assert_equal(read(path), ROWS)
    assert list(tmp_path.iterdir()) == [path]


def test_what_exists_is_left_alone_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    for path in (tmp_path / "saved", tmp_path / "one.npy"):
        save_arrays(path, ROWS)
        with pytest.raises(PipelineError, match=r"exists; pass `overwrite=True`"):
            save_arrays(path, ROWS + 1)
        assert_equal(read(path), ROWS)
        save_arrays(path, ROWS + 1, overwrite=True)
        assert_equal(read(path), ROWS + 1)
    save_arrays(tmp_path / "saved", {"other": ROWS}, overwrite=True)
    assert sorted(os.listdir(tmp_path / "saved")) == ["other.npy", "tree.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.npy", "saved"]


def test_data_may_be_overwritten_by_what_is_read_from_it(tmp_path: Path) -> None:
    save_arrays(tmp_path / "saved", {"x": ROWS, "y": ROWS + 1})
    found = read(tmp_path / "saved")
    save_arrays(tmp_path / "saved", {"x": found["y"], "y": found["x"]}, overwrite=True)
    assert_equal(read(tmp_path / "saved"), {"x": ROWS + 1, "y": ROWS})
    assert_equal(found, {"x": ROWS, "y": ROWS + 1})


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_many_writers_one_wins_and_its_folder_is_whole(overwrite: bool, tmp_path: Path) -> None:
    together, failed = threading.Barrier(8), []

    def write(number: int) -> None:
        tree = {name: np.full(50, number) for name in "abcdef"}
        together.wait(60)
        try:
            save_arrays(tmp_path / "saved", tree, overwrite=overwrite)
        except (PipelineError, OSError) as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(failed) == 7 or overwrite
    assert len({int(x) for leaf in read(tmp_path / "saved").values() for x in leaf}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


# What is never read


class Bomb:
    """Whoever unpickles this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("where", ["file", "folder", "described"])
@pytest.mark.parametrize("how", ["object array", "pickle"])
def test_a_pickle_is_refused_and_never_loaded(how: str, where: str, tmp_path: Path) -> None:
    exploded, folder = tmp_path / "exploded", tmp_path / "data"
    folder.mkdir()
    if how == "pickle":
        (folder / "x.npy").write_bytes(pickle.dumps(Bomb(exploded)))
    else:
        np.save(folder / "x.npy", np.array([Bomb(exploded)], object), allow_pickle=True)
    if where == "described":
        node = {"array": "x.npy", "dtype": "object"}
        described = {"format": "cereal arrays", "version": 1, "tree": node}
        (folder / "tree.json").write_text(json.dumps(described))
    with pytest.raises(PipelineError, match="are not read"):
        MemmapSource(folder / "x.npy" if where == "file" else folder)
    assert not exploded.exists()
    with pytest.raises(FileNotFoundError):
        exploded.rmdir()
    if how == "pickle":  # it would have
        pickle.loads((folder / "x.npy").read_bytes())
        assert exploded.exists()


def describe(tmp_path: Path, tree: Any, **words: Any) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    np.save(folder / "x.npy", np.arange(8.0))
    np.save(tmp_path / "secret.npy", np.arange(8.0))
    (folder / "sub").mkdir()
    np.save(folder / "sub" / "x.npy", np.arange(8.0))
    described = {"format": "cereal arrays", "version": 1, "tree": tree, **words}
    (folder / "tree.json").write_text(json.dumps(described))
    return folder


def test_a_description_as_it_should_be_is_read(tmp_path: Path) -> None:
    found = read(describe(tmp_path, {"dict": {"a": {"array": "x.npy", "dtype": "float64"}}}))
    assert_equal(found, {"a": np.arange(8.0)})


@pytest.mark.parametrize(
    "name",
    ["../secret.npy", "{}/secret.npy", "sub/x.npy", "./x.npy", "..", ".", "", "sub/../x.npy"],
)
def test_a_description_that_leads_out_of_its_folder_is_refused(name: str, tmp_path: Path) -> None:
    folder = describe(tmp_path, {"array": name.format(tmp_path), "dtype": "float64"})
    with pytest.raises(PipelineError, match="names a file outside of it"):
        MemmapSource(folder)


BAD_NODES: dict[str, Any] = {
    "empty": {},
    "a list": [],
    "null": None,
    "a text": "x.npy",
    "a dict of no nodes": {"dict": [1]},
    "a list of no nodes": {"list": {"a": 1}},
    "a number": {"dict": {"a": 3}},
    "objects": {"array": "x.npy", "dtype": "object"},
    "no dtype": {"array": "x.npy", "dtype": "garbage"},
    "another size": {"array": "x.npy", "dtype": "V3"},
    "half the size": {"array": "x.npy", "dtype": "float32"},
    "text": {"array": "x.npy", "dtype": "<U2"},
    "a missing file": {"array": "missing.npy"},
    "itself": {"array": "tree.json"},
    "a folder": {"array": "sub"},
}


@pytest.mark.parametrize("name", BAD_NODES)
def test_a_description_that_is_damaged_is_refused(name: str, tmp_path: Path) -> None:
    folder = describe(tmp_path, BAD_NODES[name])
    with pytest.raises(PipelineError, match="MemmapSource"):
        MemmapSource(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"version": 1}', '{"tree": {}}', "\x00"])
def test_a_description_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    folder = describe(tmp_path, {})
    (folder / "tree.json").write_text(text)
    with pytest.raises(PipelineError, match="does not describe arrays"):
        MemmapSource(folder)


def test_another_version_is_refused(tmp_path: Path) -> None:
    folder = describe(tmp_path, {"array": "x.npy"}, version=3)
    with pytest.raises(PipelineError, match=r"version 3 .* upgrade cereal"):
        MemmapSource(folder)
