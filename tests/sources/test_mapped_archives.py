"""`.npz` and `.safetensors` files are mapped; damaged ones are errors, never a crash."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from cereal import BatchTransform, ConcatSource, DataLoader, MemmapSource, PipelineError
from cereal.reading.readers import mapped_files
from cereal.reading.readers.arrays import Arrays, take_rows

N = 9
X = np.random.default_rng(0).normal(size=(N, 2, 3)).astype(np.float32)
Y = np.arange(N, dtype=np.int32) * 7


def safetensors(tensors: dict[str, Any], extra: dict[str, Any] | None = None) -> bytes:
    """A file of this format: tensors as (dtype, shape, bytes)."""
    header, data = dict(extra or {}), b""
    for name, (dtype, shape, content) in tensors.items():
        place = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": place}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def write(path: Path, kind: str) -> Path:
    path = path / f"data.{kind}"
    if kind == "npz":
        np.savez(path, x=X, y=Y, short=Y[:3])
    else:
        parts = {"x": ("F32", X.shape, X.tobytes()), "y": ("I32", Y.shape, Y.tobytes())}
        parts["short"] = ("U8", (3,), b"abc")
        path.write_bytes(safetensors(parts, {"__metadata__": {"made": "by hand"}}))
    return path


def take(source: Any, indices: Any) -> Any:
    return source._take_host(np.asarray(indices))


KINDS = ["npz", "safetensors"]


@pytest.mark.parametrize("kind", KINDS)
def test_its_arrays_are_mapped_and_read_by_row(kind: str, tmp_path: Path) -> None:
    source: Any = MemmapSource(write(tmp_path, kind), keys=["x", "y"])
    assert all(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(source.data.tree))
    assert not any(leaf.flags.writeable for leaf in jax.tree.leaves(source.data.tree))
    found = take(source, [7, 3, 3])
    np.testing.assert_array_equal(found["x"], X[[7, 3, 3]])
    np.testing.assert_array_equal(found["y"], Y[[7, 3, 3]])
    again = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(take(again, [1])["x"], X[[1]])
    assert len(pickle.dumps(source._reader)) < 2000


def test_a_loader_gives_them_with_their_index(tmp_path: Path) -> None:
    source = MemmapSource(write(tmp_path, "npz"), keys=["x", "y"], index_key="at")
    loader = DataLoader([source, BatchTransform(3)], workers=0)
    assert "index_key='at'" in repr(loader)
    for batch, _ in loader.iterate(loader.init_state(0)):
        np.testing.assert_array_equal(batch["x"], X[batch["at"]])
        np.testing.assert_array_equal(batch["y"], Y[batch["at"]])
    with pytest.raises(PipelineError, match="has a key 'x' already"):
        MemmapSource(tmp_path / "data.npz", keys=["x", "y"], index_key="x")


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_different_lengths_are_named_and_chosen(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path, kind)
    with pytest.raises(PipelineError, match=r"one length, got .*'short'\]` 3.*`keys="):
        MemmapSource(path)
    assert take(MemmapSource(path, keys="y"), [2]).tolist() == [14]
    with pytest.raises(PipelineError, match=r"names 'z', which 'data\.\w+' does not have; it has"):
        MemmapSource(path, keys=["x", "z"])
    with pytest.raises(PipelineError, match=r"names 'x' twice"):
        MemmapSource(path, keys=["x", "x"])
    for bad in ([], 3, [1]):
        with pytest.raises(PipelineError, match="must be names of arrays"):
            MemmapSource(path, keys=bad)


def test_the_files_of_a_folder_are_chosen_too(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name, array in {"x": X, "inner/y": Y, "inner/z": Y[:2]}.items():
        np.save(tmp_path / f"{name}.npy", array)
    source = MemmapSource(tmp_path, keys=["x", "inner/y"])
    assert jax.tree.map(np.shape, take(source, [1, 2])) == {"x": (2, 2, 3), "inner": {"y": (2,)}}
    with pytest.raises(PipelineError, match="nothing to choose"):
        MemmapSource(tmp_path / "x.npy", keys=["x"])
    with pytest.raises(PipelineError, match="pass those that you want"):
        MemmapSource({"x": X}, keys=["x"])


def test_several_files_are_written_as_sources(tmp_path: Path) -> None:
    paths = [tmp_path / "a.npz", tmp_path / "b.npz"]
    for path, part in zip(paths, (slice(0, 4), slice(4, N)), strict=True):
        np.savez(path, x=X[part], y=Y[part])
    with pytest.raises(PipelineError, match=r"ConcatSource\(\[MemmapSource\(path\) for path in"):
        MemmapSource(paths)
    joined = ConcatSource([MemmapSource(path, "sequential") for path in paths])
    loader = DataLoader([joined, BatchTransform(N)], workers=0)
    ((batch, _),) = loader
    np.testing.assert_array_equal(batch["x"], X)


# Types


NPZ = {
    "big-endian": X.astype(">f4"),
    "fortran order": np.asfortranarray(X),
    "float64": X.astype(np.float64),
    "one column": np.arange(N, dtype=np.int16),
    "bools": X > 0,
    "empty rows": np.zeros((N, 0), np.float32),
}


@pytest.mark.parametrize("name", NPZ)
def test_arrays_of_all_kinds_wherever_they_begin(name: str, tmp_path: Path) -> None:
    for before in ("a", "ab", "abc"):  # members begin anywhere, so numbers are not aligned
        np.savez(tmp_path / "a.npz", **{before: np.zeros((N, 1), np.uint8), "x": NPZ[name]})
        found = take(MemmapSource(tmp_path / "a.npz", keys="x"), [5, 0])
        np.testing.assert_array_equal(found, NPZ[name][[5, 0]].astype(found.dtype))


def test_numbers_that_are_not_aligned_are_not_copied_as_a_whole() -> None:
    raw = np.arange(4 * N * 6 + 1, dtype=np.uint8)
    for shape in ((N, 6), (N * 6,), (N, 2, 3)):
        odd = raw[1:].view(np.int32).reshape(shape)
        assert not odd.flags.aligned
        np.testing.assert_array_equal(take_rows(odd, np.array([3, 0, 8]), ""), odd[[3, 0, 8]])


TENSORS = {
    "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2, "F16": np.float16, "F64": np.float64, "I64": np.int64,
    "U16": np.uint16, "BOOL": np.bool_, "C64": np.complex64,
}  # fmt: skip


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_of_all_kinds(kind: str, tmp_path: Path) -> None:
    array = np.arange(N * 2).reshape(N, 2).astype(TENSORS[kind])
    (tmp_path / "a.safetensors").write_bytes(
        safetensors({"odd": ("U8", (1,), b"x"), "t": (kind, array.shape, array.tobytes())})
    )
    found = take(MemmapSource(tmp_path / "a.safetensors", keys=["t"]), [4, 1])["t"]
    np.testing.assert_array_equal(found, array[[4, 1]].astype(found.dtype))


# Damaged files


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_objects_are_refused_by_name_and_never_unpickled(tmp_path: Path) -> None:
    bombs = np.array([Bomb(tmp_path / "exploded")], object)
    np.savez(tmp_path / "a.npz", x=X, bomb=bombs, allow_pickle=True)
    with pytest.raises(PipelineError, match=r"'bomb\.npy' of .* Python objects.*keys="):
        MemmapSource(tmp_path / "a.npz")
    assert not (tmp_path / "exploded").exists()
    assert len(MemmapSource(tmp_path / "a.npz", keys=["x"])) == N


def test_compressed_arrays_are_told_what_to_write(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=X)
    with pytest.raises(PipelineError, match=r"ArraySampleSource\(dict\(np\.load.*save_arrays"):
        MemmapSource(tmp_path / "a.npz")


def test_a_zip_with_something_else_in_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("notes.txt", "no array")
    with pytest.raises(PipelineError, match=r"'notes\.txt' of .* is no array"):
        MemmapSource(tmp_path / "a.npz")
    with zipfile.ZipFile(tmp_path / "a.npz", "w"):
        pass
    with pytest.raises(PipelineError, match="has no arrays"):
        MemmapSource(tmp_path / "a.npz")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x.npy", b"")
    with pytest.raises(PipelineError, match="two arrays called 'x'"):
        MemmapSource(tmp_path / "a.npz")


def test_every_npz_that_is_cut_or_changed_is_an_error_or_read(tmp_path: Path) -> None:
    made, path = io.BytesIO(), tmp_path / "a.npz"
    np.savez(made, x=X, y=Y)
    whole = made.getvalue()
    for size in range(0, len(whole), 29):
        path.write_bytes(whole[:size])
        with pytest.raises(PipelineError, match="MemmapSource"):
            MemmapSource(path)
    rng = np.random.default_rng(0)
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[int(rng.integers(len(whole)))] = int(rng.integers(256))
        path.write_bytes(damaged)
        with contextlib.suppress(PipelineError):
            take(MemmapSource(path), [0, N - 1])


def header(entry: Any, data: bytes = b"") -> bytes:
    text = entry if isinstance(entry, bytes) else json.dumps(entry).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype: Any = "U8", shape: Any = (4,), place: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": place}


DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "only 0 bytes"),
    "a long header": (struct.pack("<Q", 2**63) + b"{}", "cut off: its first 8 bytes"),
    "a header beyond the end": (struct.pack("<Q", 100) + b"{}", "cut off"),
    "no header": (struct.pack("<Q", 0), "cut off"),
    "no json": (header(b"{no"), "header cannot be read"),
    "no text": (header(b"\xff\xfe{}"), "header cannot be read"),
    "deep": (header(b"[" * 100_000), "header cannot be read"),
    "a list": (header([1]), "it is no dict"),
    "nothing": (header({}), "no tensors"),
    "only words": (header({"__metadata__": {"a": "b"}}), "no tensors"),
    "twice": (header(b'{"a": {}, "a": {}}'), "a name twice"),
    "no entry": (header({"a": 3}), "not given by whole numbers"),
    "no shape": (header({"a": {"dtype": "U8"}}), "not given by whole numbers"),
    "a negative shape": (header({"a": tensor(shape=[-4])}, b"abcd"), "whole numbers"),
    "a shape of words": (header({"a": tensor(shape=["4"])}, b"abcd"), "whole numbers"),
    "a shape of truths": (header({"a": tensor(shape=[True] * 4)}, b"abcd"), "whole numbers"),
    "a huge shape": (header({"a": tensor(shape=[2**62, 4])}, b"abcd"), "has 4 bytes"),
    "three offsets": (header({"a": tensor(place=[0, 2, 4])}, b"abcd"), "whole numbers"),
    "backwards": (header({"a": tensor(place=[4, 0])}, b"abcd"), "ends before it begins"),
    "cut off": (header({"a": tensor()}, b"abc"), "cut off: the tensor 'a' ends at byte 4"),
    "too long": (header({"a": tensor()}, b"abcde"), "1 bytes belong to no tensor"),
    "a gap": (header({"a": tensor(place=[1, 5])}, b"abcde"), "begins after a gap"),
    "overlapping": (
        header({"a": tensor(), "b": tensor(place=[2, 6])}, b"abcdef"),
        "'b' overlaps 'a'",
    ),
    "another size": (header({"a": tensor(shape=[3])}, b"abcd"), r"U8\[3\], has 4 bytes"),
    "another dtype": (header({"a": tensor("F4")}, b"abcd"), "'F4', which NumPy does not have"),
    "a dtype that is none": (header({"a": tensor([1])}, b"abcd"), "NumPy does not have"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_of_tensors_is_an_error(name: str, tmp_path: Path) -> None:
    content, pattern = DAMAGED[name]
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(PipelineError, match=pattern):
        MemmapSource(tmp_path / "a.safetensors")


# Files that change


@pytest.mark.parametrize("kind", ["npy", *KINDS])
def test_a_file_that_is_cut_off_later_is_an_error_and_no_crash(kind: str, tmp_path: Path) -> None:
    if kind == "npy":
        path = tmp_path / "data.npy"
        np.save(path, np.zeros((4096, 64), np.float32))
        source = MemmapSource(path)
    else:
        source = MemmapSource(write(tmp_path, kind), keys=["x"])
        path = tmp_path / f"data.{kind}"
    take(source, [1])
    os.truncate(path, 100)
    with pytest.raises(PipelineError, match=r"was cut off while it was being read: it has 100"):
        take(source, [1])


def test_a_file_that_is_written_to_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_files, "_PAUSE", 0)
    path = write(tmp_path, "npz")
    source: Any = MemmapSource(path, keys=["x"])
    sent = pickle.dumps(source._reader)
    assert pickle.loads(sent).take(np.array([1]))[0].shape == (1, 2, 3)  # in another process
    with open(path, "r+b") as file:
        file.seek(200)
        file.write(b"\xff")
    os.utime(path, ns=(1, 1))
    for read in (lambda: take(source, [1]), lambda: pickle.loads(sent)):
        with pytest.raises(PipelineError, match="has changed since the source was built"):
            read()


def test_a_file_that_is_replaced_is_read_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_files, "_PAUSE", 0)
    path = write(tmp_path, "npz")
    source = MemmapSource(path, keys=["x"])
    np.savez(tmp_path / "other.npz", x=X * 0)
    os.replace(tmp_path / "other.npz", path)
    np.testing.assert_array_equal(take(source, [1])["x"], X[[1]])
    os.remove(path)
    np.testing.assert_array_equal(take(source, [2])["x"], X[[2]])


def test_arrays_that_the_user_has_opened_may_be_written_to(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    opened = np.load(tmp_path / "a.npy", mmap_mode="r+")
    source = MemmapSource({"x": opened})
    opened[1] = 5
    opened.flush()
    assert (take(source, [1])["x"] == 5).all()
    assert Arrays([X]).files.seen == {}
