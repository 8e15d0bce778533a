"""The folder of a Minari dataset, read without Minari and without its environment.

D4RL/pen/human-v2/
└── data/
    ├── metadata.json       the format of the files, the spaces of observations and actions
    ├── main_data.hdf5      "hdf5": a group for each episode
    └── 0/ 1/ 2/ ...        "arrow", "parquet": a folder for each episode
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import PipelineError
from ...base.extras import needs
from ...base.paths import as_path
from .episode import chosen_infos

_METADATA = "metadata.json"
_VARIABLE = "MINARI_DATASETS_PATH"


class MinariFolder(NamedTuple):
    """The files of a dataset, and what its metadata say."""

    data: Path
    format: str
    observations: Any  # the space, as JSON has it; None if it is not written down
    actions: Any
    total: Any  # how many episodes there should be; None if it is not written down
    owner: str

    def space(self, name: str) -> Any:
        return {"observations": self.observations, "actions": self.actions}.get(name)


def open_folder(folder: Any, owner: str) -> MinariFolder:
    """The dataset in a folder, or of this name in the folder where Minari keeps datasets."""
    data = _find(folder, owner)
    try:
        known = json.loads((data / _METADATA).read_text())
        spaces = [_space(known.get(f"{name}_space")) for name in ("observation", "action")]
    except (ValueError, AttributeError) as error:
        raise PipelineError(
            f"{owner}: '{data / _METADATA}' is no JSON of a Minari dataset: {error}."
        ) from error
    found = known.get("data_format", "hdf5")
    if found not in ("hdf5", "arrow", "parquet"):
        raise PipelineError(
            f"{owner}: '{data}' has the format {found!r}, which is not known; known are 'hdf5', "
            f"'arrow' and 'parquet'. Read it by Minari itself: "
            f"`EpisodeSource(minari.load_dataset(name).iterate_episodes())`."
        )
    return MinariFolder(data, found, spaces[0], spaces[1], known.get("total_episodes"), owner)


def _space(text: Any) -> Any:
    return json.loads(text) if isinstance(text, str) else text


def _find(folder: Any, owner: str) -> Path:
    """The folder with `metadata.json`."""
    path = as_path(folder, "folder", owner)
    kept = Path(os.environ.get(_VARIABLE) or Path.home() / ".minari" / "datasets")
    for place in (path, kept / path):
        for data in (place / "data", place):
            if (data / _METADATA).is_file():
                return data
    if path.exists():
        raise PipelineError(
            f"{owner}: '{path}' is no Minari dataset: it has no 'data/{_METADATA}'; pass the "
            f"folder of one dataset, such as '{path}/door/human-v2'."
        )
    raise PipelineError(
        f"{owner}: there is no Minari dataset at '{path}', nor in '{kept}'. If it is a name, "
        f"download it first, by `minari download {folder}` (`pip install minari`); another place "
        f"for datasets is said by the variable {_VARIABLE}."
    )


def chosen(found: Sequence[int], episodes: Any, folder: MinariFolder) -> Sequence[int]:
    """The numbers of the episodes to read; `episodes=None`: all."""
    if not found:
        raise PipelineError(f"{folder.owner}: '{folder.data}' has no episodes.")
    known = set(found)
    if episodes is None:
        missing = [n for n in range(folder.total or 0) if n not in known]
        if missing:
            raise PipelineError(
                f"{folder.owner}: '{folder.data}' has no episode {missing[0]}, but '{_METADATA}' "
                f"says that there are {folder.total}; get the dataset again, or name those that "
                f"you want, `episodes=[...]`."
            )
        return found
    try:
        wanted = [_as_number(number) for number in episodes]
    except (TypeError, ValueError):
        raise PipelineError(
            f"{folder.owner}: `episodes` must be numbers of episodes, got {episodes!r:.60}; write "
            f"`episodes=range(10)`."
        ) from None
    wrong = [number for number in wanted if number not in known]
    if wrong or not wanted:
        what = f"there is no episode {wrong[0]}" if wrong else "`episodes` is empty"
        raise PipelineError(
            f"{folder.owner}: {what}; '{folder.data}' has the episodes {found[0]} to {found[-1]}."
        )
    return wanted


def _as_number(number: Any) -> int:
    if isinstance(number, bool | np.bool_):  # of a mask
        raise TypeError
    return index(number)


# HDF5


def hdf5_episodes(folder: MinariFolder, episodes: Any, infos: Any) -> Iterator[tuple[str, Any]]:
    """The episodes of `main_data.hdf5`, each with its name for errors."""
    h5py, path = needs("h5py", "hdf5", folder.owner), folder.data / "main_data.hdf5"
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise PipelineError(f"{folder.owner}: '{path}' cannot be opened: {error}.") from error
    with file:
        numbers = sorted(int(name[8:]) for name in file if name.startswith("episode_"))
        for number in chosen(numbers, episodes, folder):
            where = f"episode {number} of '{path}'"
            yield where, _of_group(file[f"episode_{number}"].id, folder, infos, where)


def _of_group(group: Any, folder: MinariFolder, infos: Any, where: str) -> dict[str, Any]:
    """The parts of an episode. (By ids, not by objects of h5py, which take twice as long.)"""
    owner = f"{folder.owner}: {where}"
    parts = {}
    for name, node in _nodes(group).items():
        if name == "infos":
            inner = _nodes(node)
            parts[name] = {
                key: _of_node(inner[key], None, owner, f"infos[{key!r}]")
                for key in chosen_infos(list(inner), infos, owner)
            }
        else:
            parts[name] = _of_node(node, folder.space(name), owner, name)
    return parts


def _nodes(group: Any) -> dict[str, Any]:
    opened = needs("h5py", "hdf5", "MinariSource").h5o.open
    return {name.decode(): opened(group, name) for name in group}


def _of_node(node: Any, space: Any, owner: str, name: str) -> Any:
    """A dataset as an array; a group as a dict, or as a tuple if that is what was written."""
    h5py = needs("h5py", "hdf5", "MinariSource")
    if not isinstance(node, h5py.h5g.GroupID):
        return _images(_array(node, h5py), space, owner, name)
    nodes, inner = _nodes(node), (space or {}).get("subspaces")
    if not isinstance(inner, dict) and nodes and all(key == f"_index_{key[7:]}" for key in nodes):
        spaces = inner or [None] * len(nodes)
        return tuple(
            _of_node(nodes[f"_index_{at}"], spaces[at], owner, f"{name}[{at}]")
            for at in range(len(nodes))
        )
    spaces = inner or {}
    return {
        key: _of_node(each, spaces.get(key), owner, f"{name}[{key!r}]")
        for key, each in nodes.items()
    }


def _array(dataset: Any, h5py: Any) -> np.ndarray:
    if dataset.dtype.hasobject or not dataset.shape or not all(dataset.shape):
        return np.asarray(h5py.Dataset(dataset)[()])
    array = np.empty(dataset.shape, dataset.dtype)
    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return array


def _images(array: np.ndarray, space: Any, owner: str, name: str) -> np.ndarray:
    """The array; if Minari has written images as JPEG files, their pixels."""
    shape = shape_of(space)
    ragged = array.dtype == object and len(array) and isinstance(array[0], np.ndarray)
    if ragged or (shape is not None and len(shape) > 1 and array.ndim == 2):
        return decoded([np.asarray(each).tobytes() for each in array], owner, name)
    return array


def shape_of(space: Any) -> tuple[int, ...] | None:
    """The shape of an element of a space, as JSON has the space; None if it says none."""
    if not isinstance(space, dict):
        return None
    kind = space.get("type")
    if kind == "Box":
        return tuple(space["shape"])
    if kind == "MultiDiscrete":
        return np.shape(space["nvec"])
    if kind == "MultiBinary":
        return tuple(np.atleast_1d(space["n"]).tolist())
    return () if kind == "Discrete" else None


def decoded(files: Sequence[bytes], owner: str, name: str) -> np.ndarray:
    """The pixels of JPEG files of one size."""
    pil = needs("PIL.Image", "images", owner)
    images = []
    for row, file in enumerate(files):
        try:
            images.append(np.asarray(pil.open(io.BytesIO(file))))
        except OSError as error:
            raise PipelineError(
                f"{owner}: row {row} of `{name}` is an image that cannot be decoded: {error}."
            ) from error
        if images[-1].shape != images[0].shape:
            raise PipelineError(
                f"{owner}: row {row} of `{name}` is an image of shape {images[-1].shape}, the "
                f"first of {images[0].shape}."
            )
    return np.stack(images)
