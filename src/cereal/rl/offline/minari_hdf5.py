"""Minari datasets that are stored in one HDF5 file.

data/main_data.hdf5     a group for each episode, "episode_7", with an array for each part
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...base.errors import PipelineError
from ...base.extras import needs
from .episode import chosen_infos
from .minari_folder import (
    AGAIN,
    RAW_ERRORS,
    MinariFolder,
    by_number,
    check_parts,
    chosen,
    decoded,
    reading,
    shape_of,
    unlike_space,
)

_LARGE, _MOST_PACKED = 1 << 26, 1100  # bytes; no compression of HDF5 makes 1 of more


def hdf5_episodes(folder: MinariFolder, episodes: Any, infos: Any) -> Iterator[tuple[str, Any]]:
    """The episodes of `main_data.hdf5`, each with its name for errors."""
    h5py, path = needs("h5py", "hdf5", folder.owner), folder.data / "main_data.hdf5"
    try:
        file = h5py.File(path, "r")
    except RAW_ERRORS as error:
        raise PipelineError(
            f"{folder.owner}: '{path}' cannot be opened: {error}. Get the dataset again."
        ) from error
    with file:
        with reading(f"'{path}'", folder):
            names = by_number(
                [name for name in file if name.startswith("episode_")], "episode_", folder
            )
        for number in chosen(list(names), episodes, folder):
            where = f"episode {number} of '{path}'"
            with reading(where, folder):
                group = _opened(file.id, names[number].encode())
                parts = _of_group(group, folder, infos, where)
            yield where, parts


def _of_group(group: Any, folder: MinariFolder, infos: Any, where: str) -> dict[str, Any]:
    """The parts of an episode. (By ids, not by objects of h5py, which take twice as long.)"""
    owner = f"{folder.owner}: {where}"
    if not _is_group(group):
        raise PipelineError(f"{owner} is no group of HDF5, but one array; {AGAIN}.")
    parts = {}
    for name in group:
        if name != b"infos":
            key = name.decode()
            parts[key] = _of_node(_opened(group, name), folder.space(key), owner, key)
        else:
            parts["infos"] = _infos_of(_opened(group, name), infos, owner) if infos else {}
    return parts


def _infos_of(group: Any, infos: Any, owner: str) -> dict[str, Any]:
    if not _is_group(group):
        raise PipelineError(
            f"{owner}: `infos` is no group of HDF5, but one array; leave it out, `infos=False`."
        )
    names = chosen_infos([name.decode() for name in group], infos, owner)
    return {
        key: _of_node(_opened(group, key.encode()), None, owner, f"infos[{key!r}]") for key in names
    }


def _opened(group: Any, name: bytes) -> Any:
    return needs("h5py", "hdf5", "MinariSource").h5o.open(group, name)


def _is_group(node: Any) -> bool:
    return isinstance(node, needs("h5py", "hdf5", "MinariSource").h5g.GroupID)


def _of_node(node: Any, space: Any, owner: str, name: str) -> Any:
    """A dataset as an array; a group as a dict, or as a tuple if that is what was written."""
    if not _is_group(node):
        return _images(_array(node), space, owner, name)
    nodes = {key.decode(): _opened(node, key) for key in node}
    inner, places = (space or {}).get("subspaces"), [f"_index_{at}" for at in range(len(nodes))]
    if isinstance(inner, list):
        check_parts(nodes, [f"_index_{at}" for at in range(len(inner))], owner, name)
    if not isinstance(inner, dict) and nodes and set(nodes) == set(places):
        spaces = inner or [None] * len(nodes)
        return tuple(
            _of_node(nodes[place], spaces[at], owner, f"{name}[{at}]")
            for at, place in enumerate(places)
        )
    known = inner if isinstance(inner, dict) else {}
    return {
        key: _of_node(each, known.get(key), owner, f"{name}[{key!r}]")
        for key, each in nodes.items()
    }


def _array(dataset: Any) -> np.ndarray:
    h5py = needs("h5py", "hdf5", "MinariSource")
    _check_stored(dataset)
    if dataset.dtype.hasobject or not dataset.shape or not all(dataset.shape):
        return np.asarray(h5py.Dataset(dataset)[()])
    array = np.empty(dataset.shape, dataset.dtype)
    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return array


def _check_stored(dataset: Any) -> None:
    """Refuses a shape that cannot be true, before memory is filled with what is not there."""
    size = math.prod(dataset.shape or ()) * dataset.dtype.itemsize
    if size > _LARGE and size > _MOST_PACKED * dataset.get_storage_size():
        raise ValueError(
            f"an array of shape {dataset.shape} is said to be in "
            f"{dataset.get_storage_size()} bytes of the file"
        )


def _images(array: np.ndarray, space: Any, owner: str, name: str) -> np.ndarray:
    """The array; if Minari has written images as JPEG files, their pixels."""
    shape = shape_of(space)
    ragged = array.dtype == object and array.ndim and _are_bytes(array)
    if ragged or (shape is not None and len(shape) > 1 and array.ndim == 2):
        if not (ragged or _are_jpeg(array)):
            raise unlike_space(array.shape[1:], shape, owner, name)
        return decoded([np.asarray(each).tobytes() for each in array], owner, name)
    return array


def _are_bytes(rows: np.ndarray) -> bool:
    return len(rows) > 0 and all(getattr(row, "dtype", None) == np.uint8 for row in rows)


def _are_jpeg(array: np.ndarray) -> bool:
    """Whether some row begins as a JPEG file does; other rows may be damaged."""
    return array.dtype == np.uint8 and bool((array[:, :2] == [0xFF, 0xD8]).all(axis=1).any())
