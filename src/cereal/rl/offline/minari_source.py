"""Datasets of Minari."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from ...base.capture import callers_level
from ...base.errors import PipelineError
from ...base.pytree import pytree_dataclass
from .episode import Rules
from .episodic import Episodic, set_episodic
from .minari_arrow import arrow_episodes
from .minari_folder import METADATA, MinariFolder, open_folder
from .minari_hdf5 import hdf5_episodes

_OWNER = "MinariSource"


@pytree_dataclass
class MinariSource(Episodic):
    """The episodes of a Minari dataset, as `EpisodeSource` gives them; no environment is made.

        MinariSource("D4RL/pen/human-v2")                      a dataset that was downloaded
        MinariSource("runs/cartpole-v0", n_step=3)             a folder of one
        MinariSource("D4RL/pen/human-v2", window=16)           windows, for a sequence model
        MinariSource("D4RL/pen/human-v2", episodes=range(20))  only these, for training

    A name is looked up in the folder that the variable `MINARI_DATASETS_PATH` says, or else in
    `~/.minari/datasets`; `minari download D4RL/pen/human-v2` puts it there. The files are read by
    h5py (or pyarrow, as the dataset was written), and Minari need not be installed. Dict and Tuple
    spaces become dicts and tuples, and images that were stored as JPEG are decoded. All of it is
    kept in memory.

    `episodes` chooses episodes by their numbers: to validate, leave out whole episodes. `infos` are
    left out, unless you write `infos=True` or name some, `infos=["success"]`. All other options are
    those of `EpisodeSource`::

        source = cereal.rl.MinariSource("D4RL/pen/human-v2", n_step=3, gamma=0.99)
        loader = cereal.DataLoader([source, cereal.BatchTransform(256)])
        state, carry, losses = loader.scan_epoch(state, carry, update)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        episodes: Any = None,
        n_step: int | None = None,
        gamma: Any = 0.99,
        window: int | None = None,
        period: int = 1,
        pad: bool = True,
        infos: Any = False,
        unfinished: str = "error",
        ordering: Any = "shuffle",
        index_key: str | None = None,
    ) -> None:
        if hasattr(folder, "iterate_episodes"):
            raise PipelineError(
                f"{_OWNER} reads a folder or a name, got {type(folder).__name__}, which is open "
                f"already; write `EpisodeSource(dataset)`, or pass its name, `dataset.id`."
            )
        rules = Rules(_OWNER, infos, unfinished).checked()
        found = open_folder(folder, _OWNER)
        read = hdf5_episodes if found.format == "hdf5" else arrow_episodes
        recorded = read(found, episodes, rules.infos)
        set_episodic(
            self,
            _with_all_steps(recorded, found) if episodes is None else recorded,
            rules,
            n_step=n_step,
            gamma=gamma,
            window=window,
            period=period,
            pad=pad,
            ordering=ordering,
            index_key=index_key,
        )


def _with_all_steps(
    episodes: Iterable[tuple[str, Any]], folder: MinariFolder
) -> Iterator[tuple[str, Any]]:
    """All episodes; warns at the end if they have not as many steps as there should be.

    (No error: Minari counts steps of an Arrow episode twice that was written again.)
    """
    steps = 0
    for where, parts in episodes:
        yield where, parts  # and it is checked before it is counted
        steps += len(parts["rewards"])
    if folder.steps not in (None, steps):
        warnings.warn(
            f"{folder.owner}: the episodes of '{folder.data}' have {steps} steps, but "
            f"'{METADATA}' says that there are {folder.steps}; if some are missing, get the "
            f"dataset again.",
            UserWarning,
            stacklevel=callers_level(),
        )
