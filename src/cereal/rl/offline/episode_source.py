"""Recorded episodes in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from typing import Any

from ...base.errors import PipelineError
from ...base.pytree import pytree_dataclass
from ...pipeline.source import Source
from .episode import Rules
from .episodic import Episodic, set_episodic

_OWNER = "EpisodeSource"


@pytree_dataclass
class EpisodeSource(Episodic):
    """Transitions of recorded episodes, or windows of them: an indexed source, without a simulator.

        episodes                  0: o0 o1 o2 o3            1: o0 o1 o2
        an element                {"state": o1, "action": a1, "reward": r1, "next_state": o2, ...}
        n_step=2                  ... and the return of the next two steps
        window=2                  [s0 s1] [s1 s2] [s2 --]      [s0 s1] [s1 --]       mask [2]
        window=2, period=2        [s0 s1] [s2 --]              [s0 s1]
        window=2, pad=False       [s0 s1] [s1 s2]              [s0 s1]

    `episodes` is a list (or another iterable) of dicts under Minari's names: `observations` of
    T + 1 rows, `actions`, `rewards`, `terminations` and `truncations` of T rows, and perhaps
    `infos`, a dict of arrays. Observations, actions and infos may be trees of arrays. Episodes may
    have any lengths. All of it is copied to the default device once.

    Elements are as those of a rollout, see `cereal.rl.Transition`. `info` has `terminated` and
    `truncated`, and the `infos` (of `infos=["success"]` only these). `n_step=3, gamma=0.99` adds
    `n_step_return`, `bootstrap_state` and `bootstrap_discount` as an `NStepReturnTransform` does,
    over whole episodes.

    `window=16` gives windows of 16 steps, all of them of one episode. They begin at the steps 0,
    `period`, 2 * `period`, ... of each. Where the episode ends earlier, the last step is repeated,
    and the mask is False there: the mask of a batch is `[batch, window]`. Neither host stages nor
    a `ReplayTransform` can follow such windows. `pad=False` leaves out windows that do not fit; the
    mask is then `[batch]`, as of any source.

    The last step of an episode must be terminated or truncated. `unfinished="truncate"` takes the
    end of episodes that are neither as a truncation.

    >>> import cereal, numpy as np
    >>> def episode(steps):
    ...     return {
    ...         "observations": np.arange(steps + 1.0),
    ...         "actions": np.arange(steps),
    ...         "rewards": np.ones(steps),
    ...         "terminations": np.arange(steps) == steps - 1,
    ...         "truncations": np.zeros(steps, bool),
    ...     }
    >>> episodes = [episode(3), episode(2)]
    >>> source = cereal.rl.EpisodeSource(episodes, n_step=2, gamma=0.5, ordering="sequential")
    >>> batch, mask = cereal.DataLoader([source, cereal.BatchTransform(5)]).batch_at(0, 0)
    >>> batch["state"].tolist(), batch["n_step_return"].tolist()
    ([0.0, 1.0, 2.0, 0.0, 1.0], [1.5, 1.5, 1.0, 1.5, 1.0])
    >>> windows = cereal.rl.EpisodeSource(episodes, window=2, period=2, ordering="sequential")
    >>> batch, mask = cereal.DataLoader([windows, cereal.BatchTransform(3)]).batch_at(0, 0)
    >>> batch["action"].tolist(), mask.tolist()
    ([[0, 1], [2, 2], [0, 1]], [[True, True], [True, False], [True, True]])
    """

    def __init__(
        self,
        episodes: Iterable[Any],
        *,
        n_step: int | None = None,
        gamma: Any = 0.99,
        window: int | None = None,
        period: int = 1,
        pad: bool = True,
        infos: Any = True,
        unfinished: str = "error",
        ordering: Any = "shuffle",
        index_key: str | None = None,
    ) -> None:
        set_episodic(
            self,
            _named(episodes),
            Rules(_OWNER, infos, unfinished, reused=not isinstance(episodes, list | tuple)),
            n_step=n_step,
            gamma=gamma,
            window=window,
            period=period,
            pad=pad,
            ordering=ordering,
            index_key=index_key,
        )


def _named(episodes: Any) -> Iterator[tuple[str, Any]]:
    """The episodes, each with its name for errors."""
    if isinstance(episodes, Mapping):
        raise PipelineError(
            f"{_OWNER}: `episodes` is one dict, with the keys {sorted(map(str, episodes))[:8]}; "
            f"pass a list of episodes, each with its own arrays. Of one episode, write "
            f"`[episode]`; of many in one array, cut them after each `terminations | truncations`."
        )
    if isinstance(episodes, str | PathLike):
        raise PipelineError(
            f"{_OWNER}: `episodes` must be a list of dicts, got the path {str(episodes)!r:.80}; "
            f"write `MinariSource(...)` or `RLDSSource(...)` to read files."
        )
    if isinstance(episodes, Source) or not hasattr(episodes, "__iter__"):
        raise PipelineError(
            f"{_OWNER}: `episodes` must be a list of dicts, got {type(episodes).__name__}."
        )
    return ((f"episode {number}", episode) for number, episode in enumerate(episodes))
