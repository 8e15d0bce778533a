"""Data in the shape of RLDS."""

from __future__ import annotations

from os import PathLike
from typing import Any

from ...base.pytree import pytree_dataclass
from ...reading.bridges.tfds import is_data_source
from .episode import Rules
from .episodic import Episodic, set_episodic
from .rlds import rlds_episodes

_OWNER = "RLDSSource"


@pytree_dataclass
class RLDSSource(Episodic):
    """Episodes in the shape of RLDS, as `EpisodeSource` gives them.

        RLDSSource("~/tensorflow_datasets/d4rl_mujoco_hopper/v2-medium/1.2.0")    a folder of TFDS
        RLDSSource(tfds.load("robosuite_panda_pick_place_can", split="train"))    a tf.data.Dataset
        RLDSSource(builder.as_data_source("train"), window=16)                    by random access
        RLDSSource([{"steps": [{"observation": ..., ...}, ...]}, ...])            plain Python

    An episode has `steps`: dicts with `observation`, `action`, `reward`, `is_last` and
    `is_terminal`, one after another or stacked. The last step has only an observation: its action
    and reward mean nothing, and it is no transition of its own. An episode terminated if its last
    step is `is_terminal`; otherwise it was truncated.

    All episodes are read when the source is built, and kept in memory. Folders and data sources are
    read without TensorFlow, 30 times as fast as a `tf.data.Dataset`; only what is compressed in
    their records is left to TFDS. `split` chooses a split of a folder. `infos` are the other keys
    of steps, such as `discount`: `infos=True`, or a list of them; by default they are left out. All
    other options are those of `EpisodeSource`; with `unfinished="truncate"` an episode without a
    last step ends one transition earlier.

    >>> import cereal
    >>> def step(t, last):
    ...     end = {"is_first": t == 0, "is_last": t == last, "is_terminal": t == last}
    ...     return {"observation": float(t), "action": 10 * t, "reward": 1.0, **end}
    >>> episodes = [{"steps": [step(t, last) for t in range(last + 1)]} for last in (2, 1)]
    >>> source = cereal.rl.RLDSSource(episodes, ordering="sequential")
    >>> batch, mask = cereal.DataLoader([source, cereal.BatchTransform(3)]).batch_at(0, 0)
    >>> batch["state"].tolist(), batch["next_state"].tolist(), batch["done"].tolist()
    ([0.0, 1.0, 0.0], [1.0, 2.0, 1.0], [False, True, True])
    """

    def __init__(
        self,
        data: Any,
        *,
        split: str | None = None,
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
        # Only a list has all episodes at once; files are read into new arrays.
        reused = not (isinstance(data, list | tuple | str | PathLike) or is_data_source(data))
        rules = Rules(_OWNER, infos, unfinished, reused).checked()
        set_episodic(
            self,
            rlds_episodes(data, split, rules),
            rules,
            n_step=n_step,
            gamma=gamma,
            window=window,
            period=period,
            pad=pad,
            ordering=ordering,
            index_key=index_key,
        )
