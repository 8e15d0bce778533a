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
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import CerealError, PipelineError
from ...base.extras import needs
from ...base.paths import as_path

METADATA = "metadata.json"
_VARIABLE = "MINARI_DATASETS_PATH"
AGAIN = "get the dataset again, or name those episodes that you want, `episodes=[...]`"
RAW_ERRORS = (  # what h5py, pyarrow and PIL raise for files that are damaged
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


class MinariFolder(NamedTuple):
    """The files of a dataset, and what its metadata say."""

    data: Path
    format: str
    observations: Any  # the space, as JSON has it; None if it is not written down
    actions: Any
    total: int | None  # how many episodes there should be; None if it is not written down
    steps: int | None  # and how many steps all of them have
    owner: str

    def space(self, name: str) -> Any:
        return {"observations": self.observations, "actions": self.actions}.get(name)


def open_folder(folder: Any, owner: str) -> MinariFolder:
    """The dataset in a folder, or of this name in the folder where Minari keeps datasets."""
    data = _find(folder, owner)
    try:
        known = json.loads((data / METADATA).read_text())
        spaces = [_space(known.get(f"{name}_space")) for name in ("observation", "action")]
    except (ValueError, AttributeError) as error:
        raise PipelineError(
            f"{owner}: '{data / METADATA}' is no JSON of a Minari dataset: {error}."
        ) from error
    place = f"{owner}: '{data / METADATA}'"
    for name, space in zip(("observation_space", "action_space"), spaces, strict=True):
        _check_space(space, place, name)
    total, steps = (_count(known, name, place) for name in ("total_episodes", "total_steps"))
    found = known.get("data_format", "hdf5")
    if found not in ("hdf5", "arrow", "parquet"):
        raise PipelineError(
            f"{owner}: '{data}' has the format {found!r}, which is not known; known are 'hdf5', "
            f"'arrow' and 'parquet'. Read it by Minari itself: "
            f"`EpisodeSource(minari.load_dataset(name).iterate_episodes())`."
        )
    return MinariFolder(data, found, spaces[0], spaces[1], total, steps, owner)


def _space(text: Any) -> Any:
    return json.loads(text) if isinstance(text, str) else text


def _check_space(space: Any, place: str, name: str) -> None:
    """Refuses what is no space, as Minari writes them; None: it is not written down."""
    if space is None:
        return
    if not _is_space(space):
        raise PipelineError(
            f"{place}: `{name}` is no space that Minari writes, got {space!r:.80}; get the dataset "
            f"again, or correct it there."
        )
    inner = space.get("subspaces", {})
    for key, each in inner.items() if isinstance(inner, dict) else enumerate(inner):
        _check_space(each, place, f"{name}[{key!r}]")


def _is_space(space: Any) -> bool:
    kind = space.get("type") if isinstance(space, dict) else None
    if kind in ("Dict", "Tuple"):
        return isinstance(space.get("subspaces"), dict if kind == "Dict" else list)
    try:
        shape_of(space)
    except (KeyError, TypeError, ValueError):
        return False
    return isinstance(kind, str) and isinstance(space.get("subspaces", {}), dict | list)


def _count(known: dict[str, Any], name: str, place: str) -> int | None:
    number = known.get(name)
    if number is None or (type(number) is int and number >= 0):
        return number
    raise PipelineError(
        f"{place}: `{name}` must be a whole number, got {number!r:.60}; get the dataset again, or "
        f"correct it there."
    )


def _find(folder: Any, owner: str) -> Path:
    """The folder with `metadata.json`."""
    path = as_path(folder, "folder", owner)
    kept = Path(os.environ.get(_VARIABLE) or Path.home() / ".minari" / "datasets")
    for place in (path, kept / path):
        for data in (place / "data", place):
            if (data / METADATA).is_file():
                return data
    if path.exists():
        raise PipelineError(
            f"{owner}: '{path}' is no Minari dataset: it has no 'data/{METADATA}'; pass the "
            f"folder of one dataset, such as '{path}/door/human-v2'."
        )
    raise PipelineError(
        f"{owner}: there is no Minari dataset at '{path}', nor in '{kept}'. If it is a name, "
        f"download it first, by `minari download {folder}` (`pip install minari`); another place "
        f"for datasets is said by the variable {_VARIABLE}."
    )


@contextmanager
def reading(where: str, folder: MinariFolder) -> Iterator[None]:
    """Says which episode of which file it is that cannot be read."""
    try:
        yield
    except CerealError:
        raise
    except RAW_ERRORS as error:
        raise PipelineError(
            f"{folder.owner}: {where} cannot be read: {type(error).__name__}: {error}. The file "
            f"may be damaged: {AGAIN}."
        ) from error


def by_number(names: Iterable[str], prefix: str, folder: MinariFolder) -> dict[int, str]:
    """The names of the episodes by their numbers, in order."""
    found: dict[int, str] = {}
    for name in names:
        digits = name[len(prefix) :]
        if not (digits.isascii() and digits.isdecimal()):
            raise PipelineError(
                f"{folder.owner}: '{folder.data}' has {name!r}, which is no name of an episode; "
                f"rename it, as '{prefix}0', or take it out."
            )
        other = found.setdefault(int(digits), name)
        if other != name:
            raise PipelineError(
                f"{folder.owner}: '{folder.data}' has {min(name, other)!r} and "
                f"{max(name, other)!r}, which are both episode {int(digits)}; take one of them out."
            )
    return dict(sorted(found.items()))


def chosen(found: Sequence[int], episodes: Any, folder: MinariFolder) -> Sequence[int]:
    """The numbers of the episodes to read; `episodes=None`: all."""
    if not found:
        raise PipelineError(f"{folder.owner}: '{folder.data}' has no episodes.")
    known = set(found)
    if episodes is None:
        _check_total(known, folder)
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


def _check_total(known: set[int], folder: MinariFolder) -> None:
    """Refuses more episodes, or fewer, than the metadata say."""
    if folder.total is None:
        return
    missing = next((n for n in range(folder.total) if n not in known), None)
    if missing is None and len(known) == folder.total:
        return
    has = f"{len(known)} episodes" if missing is None else f"no episode {missing}"
    raise PipelineError(
        f"{folder.owner}: '{folder.data}' has {has}, but '{METADATA}' says that there are "
        f"{folder.total}; {AGAIN}."
    )


def _as_number(number: Any) -> int:
    if isinstance(number, bool | np.bool_):  # of a mask
        raise TypeError
    return index(number)


def check_parts(found: Collection[str], wanted: Collection[str], owner: str, name: str) -> None:
    """Refuses parts of a dict or tuple that are others than those of its space."""
    if set(found) != set(wanted):
        raise PipelineError(
            f"{owner}: `{name}` has the parts {sorted(found)}, but its space in '{METADATA}' has "
            f"{sorted(wanted)}; get the dataset again, or correct the space."
        )


def unlike_space(
    found: tuple[int, ...], shape: tuple[int, ...] | None, owner: str, name: str
) -> PipelineError:
    """The error for rows that are not of the shape of their space."""
    return PipelineError(
        f"{owner}: each row of `{name}` has the shape {found}, but its space in '{METADATA}' has "
        f"{shape}; get the dataset again, or correct the space."
    )


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
