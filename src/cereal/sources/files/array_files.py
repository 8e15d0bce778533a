"""Trees of arrays as folders of `.npy` files, without pickle.

    save_arrays("digits", {"image": ..., "label": ...})

    digits/
      tree.json     which file is which part of the tree
      image.npy     NumPy's own format: any program can read it
      label.npy

The folder gets its name only when all files are written.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.lib import format as npy

from ...base.atomic import write_atomically
from ...base.errors import PipelineError
from ...base.paths import as_path
from ...base.spec import is_array_like
from ...reading.formats.npz import open_npz
from ...reading.formats.safetensors import open_safetensors
from ...reading.tables.chosen import chosen
from ..array_trees import array_leaves

_TREE = "tree.json"
_VERSION = 1
_CHUNK = 64 * 2**20
_ARCHIVES = {".npz": open_npz, ".safetensors": open_safetensors}
_AGAIN = "write the folder again with `save_arrays`"


def save_arrays(path: str | os.PathLike[str], tree: Any, *, overwrite: bool = False) -> None:
    """Writes a tree of arrays as a folder of `.npy` files, for `MemmapSource`.

        {"image": uint8[60000,28,28], "label": int32[60000]}  -->  image.npy, label.npy, tree.json

    The tree may have dicts, lists and tuples. Its arrays may be NumPy or JAX arrays, or `np.memmap`
    files larger than memory. The folder gets its name only when all files are written. A path that
    ends in `.npy` writes one array to one file. If the path exists, this is an error, unless you
    pass `overwrite=True`.

    >>> import cereal, numpy as np, os, tempfile
    >>> folder = tempfile.mkdtemp() + "/numbers"
    >>> cereal.save_arrays(folder, {"x": np.zeros((3, 2)), "y": np.arange(3)})
    >>> sorted(os.listdir(folder))
    ['tree.json', 'x.npy', 'y.npy']
    """
    target = as_path(path, "path", "save_arrays")
    leaves = array_leaves(tree, "save_arrays", "tree")
    for name, leaf in leaves:
        if not isinstance(leaf.dtype, np.dtype):
            raise PipelineError(
                f"save_arrays: {name} must be an array of numbers, got {leaf.dtype}; for random "
                f"keys write `jax.random.key_data(keys)`."
            )
    if target.exists() and not overwrite:
        raise _exists(target)
    if target.suffix == ".npy":
        if len(leaves) != 1 or leaves[0][1] is not tree:
            raise PipelineError(
                "save_arrays: a path that ends in .npy holds one array, not a tree of them; name "
                "a folder instead."
            )
        if not _plain(np.dtype(tree.dtype)):
            raise PipelineError(
                f"save_arrays: one .npy file cannot say that its array is {tree.dtype}; name a "
                f"folder instead."
            )
        write_atomically(target, lambda file: np.save(file, np.asarray(tree), allow_pickle=False))
        return
    _save_folder(target, tree, overwrite)


def _plain(dtype: np.dtype[Any]) -> bool:
    """Whether the `.npy` format can name this dtype; it cannot name bfloat16, for example."""
    return npy.descr_to_dtype(npy.dtype_to_descr(dtype)) == dtype


def _save_folder(target: Path, tree: Any, overwrite: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        made, old = Path(folder, "new"), Path(folder, "old")
        made.mkdir()
        node = _write(tree, made, (), set())
        text = json.dumps({"format": "cereal arrays", "version": _VERSION, "tree": node}, indent=1)
        write_atomically(made / _TREE, lambda file: file.write(text.encode()))
        try:
            if overwrite and target.exists():
                os.rename(target, old)
            os.rename(made, target)
        except BaseException as error:
            if old.exists():
                os.rename(old, target)
            elif isinstance(error, OSError):
                raise _exists(target) from error
            raise


def _exists(target: Path) -> PipelineError:
    return PipelineError(
        f"save_arrays: {str(target)!r} exists; pass `overwrite=True`, or another path."
    )


def _write(tree: Any, folder: Path, path: tuple[str, ...], used: set[str]) -> dict[str, Any]:
    if isinstance(tree, dict):
        for key in tree:
            if not isinstance(key, str):
                raise PipelineError(
                    f"save_arrays: the keys of dicts must be strings, got {key!r:.40}."
                )
        return {"dict": {key: _write(tree[key], folder, (*path, key), used) for key in tree}}
    if type(tree) in (list, tuple):
        inner = [_write(x, folder, (*path, str(i)), used) for i, x in enumerate(tree)]
        return {type(tree).__name__: inner}
    if not hasattr(tree, "shape"):
        raise PipelineError(
            f"save_arrays: a tree has dicts, lists, tuples and arrays, got {type(tree).__name__}; "
            f"write it as a dict."
        )
    stem = ".".join(re.sub(r"[^A-Za-z0-9_-]+", "_", each) for each in path) or "array"
    name, number = f"{stem}.npy", 1
    while name.lower() in used or name.startswith("."):
        name, number = f"{stem.lstrip('.')}-{number}.npy", number + 1
    used.add(name.lower())
    _write_array(folder / name, tree)
    return {"array": name, "dtype": str(np.dtype(tree.dtype))}


def _write_array(path: Path, array: Any) -> None:
    """Writes an array in chunks, so that a file larger than memory can be copied."""
    dtype = np.dtype(array.dtype)
    stored = dtype if _plain(dtype) else np.dtype(f"V{dtype.itemsize}")  # such as bfloat16
    header = {"descr": npy.dtype_to_descr(stored), "fortran_order": False, "shape": array.shape}
    with open(path, "wb") as file:
        npy.write_array_header_2_0(file, header)
        array = array.reshape(1) if array.ndim == 0 else array
        rows = max(1, _CHUNK // max(1, array.nbytes // max(1, len(array))))
        for begin in range(0, len(array), rows):
            part = np.asarray(array[begin : begin + rows])
            file.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def open_arrays(path: str | os.PathLike[str], owner: str, keys: Any = None) -> Any:
    """The tree of arrays in a file or folder, mapped into memory, read-only.

    `keys` chooses some of them, if they have names.
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise PipelineError(f"{owner}: {str(place)!r} does not exist; write it with `save_arrays`.")
    if place.is_file():
        read = _ARCHIVES.get(place.suffix)
        if read is not None:
            return read(place, keys, owner)
        if keys is not None:
            raise PipelineError(
                f"{owner}: {place.name!r} has one array, so there is nothing to choose; leave "
                f"`keys` out."
            )
        return _open(place, owner)
    found = _open_folder(place, owner)
    return chosen(found, keys, owner, repr(place.name))


def _open_folder(place: Path, owner: str) -> Any:
    if not (place / _TREE).exists():
        return _by_name(place, owner)
    try:
        described = json.loads((place / _TREE).read_text())
        version, node = described["version"], described["tree"]
        if version != _VERSION:
            raise PipelineError(
                f"{owner}: {str(place)!r} was written in version {version} of the format, this "
                f"cereal reads version {_VERSION}; upgrade cereal."
            )
        return _read_tree(node, place, owner)
    except PipelineError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise PipelineError(
            f"{owner}: {str(place / _TREE)!r} does not describe arrays ({type(error).__name__}: "
            f"{error}); {_AGAIN}."
        ) from error


def _by_name(folder: Path, owner: str) -> dict[str, Any]:
    """The arrays of a folder without `tree.json`: a dict by the names of files and folders."""
    found: dict[str, Any] = {}
    for each in sorted(folder.iterdir()):
        if each.suffix == ".npy" and each.is_file():
            found[each.stem] = _open(each, owner)
        elif each.is_dir() and not each.name.startswith("."):
            found[each.name] = _by_name(each, owner)
    if not jax.tree.leaves(found):
        others = sorted(each.name for each in folder.iterdir() if each.suffix in _ARCHIVES)
        fix = f"name the file {others[0]!r} itself" if others else "write them with `save_arrays`"
        raise PipelineError(f"{owner}: {str(folder)!r} has no .npy files; {fix}.")
    return found


def _read_tree(node: Any, folder: Path, owner: str) -> Any:
    if "dict" in node:
        return {key: _read_tree(inner, folder, owner) for key, inner in node["dict"].items()}
    for kind, make in (("list", list), ("tuple", tuple)):
        if kind in node:
            return make(_read_tree(inner, folder, owner) for inner in node[kind])
    name = str(node["array"])
    if name != os.path.basename(name) or name in ("", ".", ".."):
        raise PipelineError(f"{owner}: {str(folder)!r} names a file outside of it, {name!r}.")
    array = _open(folder / name, owner)
    dtype = np.dtype(node.get("dtype", array.dtype))
    if array.dtype == dtype:
        return array
    if array.dtype != np.dtype(f"V{dtype.itemsize}") or not is_array_like(np.empty(0, dtype)):
        raise PipelineError(
            f"{owner}: {str(folder / name)!r} has {array.dtype}, where {_TREE} says {dtype}; "
            f"{_AGAIN}."
        )
    return array.view(dtype)


def _open(path: Path, owner: str) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # the header is Python code, which NumPy parses: many may come
        raise PipelineError(
            f"{owner}: {str(path)!r} cannot be mapped into memory: {error}. It must be a .npy file "
            f"of numbers; objects, which NumPy would unpickle, are not read."
        ) from error
