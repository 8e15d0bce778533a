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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ...base.atomic import write_atomically
from ...base.errors import PipelineError
from ...base.paths import as_path
from ...base.spec import is_array_like
from ...reading.formats.array_folder import RaggedFile
from ...reading.formats.arrays.chosen import chosen
from ...reading.formats.arrays.npz import open_npz
from ...reading.formats.arrays.safetensors import open_safetensors
from ..array_trees import array_leaves
from .npy_file import NpyFile, is_plain

TREE = "tree.json"
_VERSION, _VERSION_OF_RAGGED = 1, 2
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
        if not is_plain(np.dtype(tree.dtype)):
            raise PipelineError(
                f"save_arrays: one .npy file cannot say that its array is {tree.dtype}; name a "
                f"folder instead."
            )
        write_atomically(target, lambda file: np.save(file, np.asarray(tree), allow_pickle=False))
        return
    _save_folder(target, tree, overwrite)


def _save_folder(target: Path, tree: Any, overwrite: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        made, old = Path(folder, "new"), Path(folder, "old")
        made.mkdir()

        def write(array: Any, names: Names) -> dict[str, Any]:
            name = names.new()
            _write_array(made / name, array)
            return {"array": name, "dtype": str(np.dtype(array.dtype))}

        write_tree(made, described(tree, write, "save_arrays"))
        put_in_place(made, old, target, _exists(target), overwrite=overwrite)


def write_tree(folder: Path, node: Any, **more: Any) -> None:
    """Writes `tree.json`: the node of the whole tree, and what else there is to say."""
    version = _VERSION_OF_RAGGED if _has_ragged(node) else _VERSION
    said = {"format": "cereal arrays", "version": version, **more, "tree": node}
    text = json.dumps(said, indent=1)
    write_atomically(folder / TREE, lambda file: file.write(text.encode()))


def _has_ragged(node: dict[str, Any]) -> bool:
    inner = [*node.get("dict", {}).values(), *node.get("list", ()), *node.get("tuple", ())]
    return "ragged" in node or any(map(_has_ragged, inner))


def put_in_place(
    made: Path, old: Path, target: Path, exists: Exception, *, overwrite: bool
) -> None:
    """Gives a folder its name. What had the name before becomes `old`, or is the error `exists`."""
    try:
        if overwrite and target.exists():
            os.rename(target, old)
        os.rename(made, target)
    except BaseException as error:
        if old.exists():
            os.rename(old, target)
        elif isinstance(error, OSError):
            raise exists from error
        raise


def _exists(target: Path) -> PipelineError:
    return PipelineError(
        f"save_arrays: {str(target)!r} exists; pass `overwrite=True`, or another path."
    )


class Names:
    """The names of the files of one leaf; `path` is its place in the tree."""

    def __init__(self, path: tuple[str, ...], used: set[str]) -> None:
        self._stem = ".".join(re.sub(r"[^A-Za-z0-9_-]+", "_", each) for each in path) or "array"
        self._used = used

    def new(self, ending: str = ".npy") -> str:
        """A name that no other file has."""
        name, number = f"{self._stem}{ending}", 1
        while name.lower() in self._used or name.startswith("."):
            name, number = f"{self._stem.lstrip('.')}-{number}{ending}", number + 1
        self._used.add(name.lower())
        return name


def described(tree: Any, leaf: Callable[[Any, Names], Any], owner: str) -> dict[str, Any]:
    """The node of a tree, for `tree.json`; `leaf(value, names)` gives those of its leaves."""
    used: set[str] = set()

    def node(tree: Any, path: tuple[str, ...]) -> dict[str, Any]:
        if isinstance(tree, dict):
            for key in tree:
                if not isinstance(key, str):
                    raise PipelineError(
                        f"{owner}: the keys of dicts must be strings, got {key!r:.40}."
                    )
            return {"dict": {key: node(tree[key], (*path, key)) for key in tree}}
        if type(tree) in (list, tuple):
            inner = [node(each, (*path, str(at))) for at, each in enumerate(tree)]
            return {type(tree).__name__: inner}
        if not hasattr(tree, "shape"):
            raise PipelineError(
                f"{owner}: a tree has dicts, lists, tuples and arrays, got {type(tree).__name__}; "
                f"write it as a dict."
            )
        return leaf(tree, Names(path, used))

    return node(tree, ())


def _write_array(path: Path, array: Any) -> None:
    """Writes an array in chunks, so that a file larger than memory can be copied."""
    file = NpyFile(path, array.dtype, array.ndim)
    try:
        rows = array.reshape(1) if array.ndim == 0 else array
        most = max(1, _CHUNK // max(1, rows.nbytes // max(1, len(rows))))
        for begin in range(0, len(rows), most):
            file.append(np.asarray(rows[begin : begin + most]))
        file.finish(array.shape)
    finally:
        file.close()


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
    if not (place / TREE).exists():
        return _by_name(place, owner)
    try:
        said = json.loads((place / TREE).read_text())
        version, node = said["version"], said["tree"]
        if version not in (_VERSION, _VERSION_OF_RAGGED):
            raise PipelineError(
                f"{owner}: {str(place)!r} was written in version {version} of the format, this "
                f"cereal reads versions up to {_VERSION_OF_RAGGED}; upgrade cereal."
            )
        return _read_tree(node, place, owner)
    except PipelineError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise PipelineError(
            f"{owner}: {str(place / TREE)!r} does not describe arrays ({type(error).__name__}: "
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
    if "ragged" in node:
        values = _read_array(node["ragged"]["values"], node["ragged"].get("dtype"), folder, owner)
        offsets = _read_array(node["ragged"]["offsets"], "int64", folder, owner)
        least, most = map(int, node["ragged"]["lengths"])
        return RaggedFile(values, offsets, node["kind"], (least, most)).check(f"{owner}: {folder}")
    return _read_array(node["array"], node.get("dtype"), folder, owner)


def _read_array(name: Any, said: Any, folder: Path, owner: str) -> np.ndarray:
    name = str(name)
    if name != os.path.basename(name) or name in ("", ".", ".."):
        raise PipelineError(f"{owner}: {str(folder)!r} names a file outside of it, {name!r}.")
    array = _open(folder / name, owner)
    dtype = np.dtype(array.dtype if said is None else said)
    if array.dtype == dtype:
        return array
    if array.dtype != np.dtype(f"V{dtype.itemsize}") or not is_array_like(np.empty(0, dtype)):
        raise PipelineError(
            f"{owner}: {str(folder / name)!r} has {array.dtype}, where {TREE} says {dtype}; "
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
