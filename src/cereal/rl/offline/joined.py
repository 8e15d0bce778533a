"""All episodes in one: their steps follow each other, and so do their observations.

episodes       0            1
steps          0  1  2      3  4
observations   0  1  2  3   4  5  6         row of step s: s + the number of its episode

window=2, period=1, pad=True      [0 1] [1 2] [2 -]   [3 4] [4 -]      - repeats the step before
window=2, period=1, pad=False     [0 1] [1 2]         [3 4]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from ...base.errors import PipelineError
from ...base.fitting import canonical, narrowed
from ...order.permutation import MAX_TRACED
from .episode import Episode, Rules, read_episode

TERMINATED, TRUNCATED = 1, 2  # bits of `flags`


class Joined(NamedTuple):
    """The arrays of all episodes, in NumPy, and how many steps each episode has."""

    observations: Any
    steps: dict[str, Any]  # action, reward, flags, infos
    lengths: np.ndarray


def join(episodes: Iterable[tuple[str, Any]], rules: Rules) -> Joined:
    """Reads all episodes; each comes with its name for errors."""
    rules, first = rules.checked(), None
    parts: list[list[np.ndarray]] = []
    lengths = []
    for where, value in episodes:
        owner = f"{rules.owner}: {where}"
        found = _Arrays.of(read_episode(value, where, rules), owner, rules.reused)
        if first is None:
            first, parts = found, [[] for _ in found.leaves]
        elif not found.is_like(first):
            raise _unlike(found, first, owner)
        lengths.append(len(found.tree["reward"]))
        for kept, leaf in zip(parts, found.leaves, strict=True):
            kept.append(leaf)
    if first is None:
        raise PipelineError(f"{rules.owner}: there are no episodes; it needs at least one.")
    whole = []
    for kept in parts:
        whole.append(np.concatenate(kept))
        kept.clear()
    tree = jax.tree.unflatten(first.structure, whole)
    return Joined(tree.pop("observations"), tree, np.asarray(lengths, np.int64))


class _Arrays(NamedTuple):
    """The arrays of an episode, with the dtypes that JAX uses."""

    tree: dict[str, Any]
    leaves: list[np.ndarray]
    structure: Any

    @staticmethod
    def of(episode: Episode, owner: str, copy: bool) -> _Arrays:
        flags = episode.terminated * np.uint8(TERMINATED) | episode.truncated * np.uint8(TRUNCATED)
        tree = {
            "observations": episode.observations,
            "action": episode.actions,
            "reward": episode.rewards,
            "flags": flags,
            "infos": episode.infos,
        }
        found, structure = jax.tree.flatten(tree)
        arrays = _Arrays(tree, [], structure)
        for at, leaf in enumerate(map(np.asarray, found)):
            name = lambda at=at: f"{owner}: {arrays.names[at]}"  # noqa: E731
            array = narrowed(leaf, canonical(leaf.dtype), name)
            arrays.leaves.append(array.copy() if copy and array is leaf else array)
        return arrays

    @property
    def names(self) -> list[str]:
        """The names of the arrays as the user wrote them; for errors."""
        written = {"action": "actions", "reward": "rewards"}
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(self.tree)[0]]
        keys = [written.get(path[0].key, path[0].key) for path in paths]
        return [
            f"`{key}{jax.tree_util.keystr(path[1:])}`"
            for key, path in zip(keys, paths, strict=True)
        ]

    def is_like(self, other: _Arrays) -> bool:
        return self.structure == other.structure and all(map(_same, self.leaves, other.leaves))


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape[1:] == other.shape[1:]


def _unlike(found: _Arrays, first: _Arrays, owner: str) -> PipelineError:
    """The error for an episode whose arrays are not like those of the first."""
    names, firsts = found.names, first.names
    for here, there, what in ((names, firsts, "has"), (firsts, names, "lacks")):
        if set(here) - set(there):
            other = "which the first episode lacks" if what == "has" else "which the first has"
            return PipelineError(
                f"{owner} {what} {min(set(here) - set(there))}, {other}; all episodes need the "
                f"same parts."
            )
    for name, leaf, other in zip(names, found.leaves, first.leaves, strict=True):
        if not _same(leaf, other):
            return PipelineError(
                f"{owner}: each row of {name} is {_in_words(leaf)}, but in the first episode "
                f"{_in_words(other)}; make them alike."
            )
    return PipelineError(
        f"{owner}: its arrays are in other containers than those of the first episode; use the "
        f"same dicts and tuples in all."
    )


def _in_words(array: np.ndarray) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape[1:]))}]"


def rows_of_steps(lengths: np.ndarray) -> np.ndarray:
    """For each step, the row of its observation."""
    return np.arange(lengths.sum()) + np.repeat(np.arange(len(lengths)), lengths)


def check_countable(lengths: np.ndarray, further: int, owner: str) -> None:
    """Refuses more steps than compiled code can count; it counts `further` steps past the end."""
    total = int(lengths.sum()) + len(lengths) + further
    if total > MAX_TRACED:
        raise PipelineError(
            f"{owner}: {int(lengths.sum())} steps in {len(lengths)} episodes are more than "
            f"compiled code can count ({MAX_TRACED}); cut them into several sources."
        )


def windows(lengths: np.ndarray, size: int, period: int, pad: bool, owner: str) -> np.ndarray:
    """For each window: its first step, the row of its first observation, how many steps are real.

    Windows begin at the steps 0, period, 2 * period, ... of each episode.
    """
    last = lengths - 1 if pad else lengths - size
    counts = np.maximum(last // period + 1, 0)
    if not counts.any():
        raise PipelineError(
            f"{owner}: no episode has the {size} steps of a window, the longest has "
            f"{lengths.max()}; shorten `window`, or pass `pad=True`."
        )
    episode = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    offset = number * period
    start = (np.cumsum(lengths) - lengths)[episode] + offset
    real = np.minimum(lengths[episode] - offset, size)
    return np.stack([start, start + episode, real], axis=1)
