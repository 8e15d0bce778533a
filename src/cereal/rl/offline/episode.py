"""One recorded episode: its arrays under Minari's names, checked.

step             0     1     2
observations     o0    o1    o2    o3        one more than steps
actions          a0    a1    a2
rewards          r0    r1    r2
terminations     .     .     x               one of these two at the last step,
truncations      .     .     .               and nowhere else
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ...base.capture import any_traced
from ...base.errors import PipelineError
from ...base.fitting import is_numeric
from ...sources.array_trees import array_leaves, leaves_of_tree, without_tensors

NAMES = ("observations", "actions", "rewards", "terminations", "truncations")
_ALSO = ("infos", "id", "seed", "options")  # of these, only `infos` are data
_FLAGS = ("terminated", "truncated")


class Rules(NamedTuple):
    """How episodes are read: who says so in errors, which infos to keep, what an end is."""

    owner: str
    infos: Any = True
    unfinished: str = "error"
    reused: bool = False  # an iterator may write the next episode into the arrays of this one

    def checked(self) -> Rules:
        if self.unfinished not in ("error", "truncate"):
            raise PipelineError(
                f'{self.owner}: `unfinished` must be "error" or "truncate", got '
                f"{self.unfinished!r}."
            )
        infos = self.infos
        if isinstance(infos, bool):
            return self
        if isinstance(infos, str) or not isinstance(infos, Sequence):
            raise PipelineError(
                f"{self.owner}: `infos` must be True, False or a list of names, got {infos!r:.60}; "
                f'write `infos=["success"]`.'
            )
        return self._replace(infos=tuple(infos))


class Episode(NamedTuple):
    """The arrays of an episode of T steps: observations `[T + 1, ...]`, the others `[T, ...]`."""

    observations: Any
    actions: Any
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    infos: dict[str, Any]


def read_episode(value: Any, where: str, rules: Rules) -> Episode:
    """The episode; raises an error that says what is wrong with it. `where`: "episode 3"."""
    owner = f"{rules.owner}: {where}"
    parts = _parts(value, owner)
    rewards = _per_step(parts["rewards"], "rewards", owner)
    steps = len(rewards)
    if not steps:
        raise PipelineError(f"{owner} has no steps; leave it out.")
    flags = [as_flags(parts[name], name, steps, owner) for name in NAMES[3:]]
    observations = _tree(parts["observations"], "observations", owner)
    for place, count in _wrong_rows(observations, (steps + 1,), owner, "observations"):
        raise PipelineError(
            f"{owner}: {place} has {count} rows, but there are {steps} rewards; it needs "
            f"{steps + 1} rows, with the observation after the last step."
        )
    actions = _tree(parts["actions"], "actions", owner)
    for place, count in _wrong_rows(actions, (steps,), owner, "actions"):
        raise PipelineError(
            f"{owner}: {place} has {count} rows, but there are {steps} rewards; it needs one for "
            f"each step."
        )
    terminated, truncated = _ended(flags[0], flags[1], owner, rules)
    infos = _infos(parts.get("infos"), steps, owner, rules)
    return Episode(observations, actions, rewards, terminated, truncated, infos)


def _parts(value: Any, owner: str) -> dict[str, Any]:
    """The parts of an episode by their names: of a dict, or of an object such as Minari's."""
    if not isinstance(value, Mapping):
        if all(hasattr(value, name) for name in NAMES):
            return {name: getattr(value, name, None) for name in (*NAMES, "infos")}
        raise PipelineError(
            f"{owner} must be a dict with the keys {list(NAMES)}, got {type(value).__name__}."
        )
    if "steps" in value:
        raise PipelineError(f"{owner} has 'steps', as RLDS data; write `RLDSSource(...)`.")
    missing = [name for name in NAMES if name not in value]
    unknown = [name for name in value if name not in (*NAMES, *_ALSO)]
    if missing:
        also = f"; it has {sorted(map(str, value))}" if value else ""
        raise PipelineError(
            f"{owner} has no key {missing[0]!r}{also}. Give its arrays the names {list(NAMES)}"
            f"{_absent_flags(missing)}."
        )
    if unknown:
        raise PipelineError(
            f"{owner} has a key {unknown[0]!r}, which is no part of an episode; put it into "
            f"`infos`, as `{{'infos': {{{unknown[0]!r}: ...}}}}`, or take it out."
        )
    return dict(value)


def _absent_flags(missing: list[str]) -> str:
    if set(missing) <= set(NAMES[3:]):
        return "; if no episode ended that way, write `np.zeros(steps, bool)`"
    return ""


def _tree(tree: Any, name: str, owner: str) -> Any:
    if type(tree) is np.ndarray and tree.ndim and is_numeric(tree.dtype):
        return tree  # what most parts are: there may be a hundred thousand episodes
    if isinstance(tree, list):
        raise PipelineError(
            f"{owner}: `{name}` is a list; write `np.stack({name})`, or a tuple if it has parts."
        )
    tree = without_tensors(tree, owner, name)
    if any_traced(tree):
        raise PipelineError(f"{owner}: `{name}` is traced; build the source outside of `jit`.")
    for place, leaf in array_leaves(tree, owner, name):
        if not leaf.ndim:
            raise PipelineError(f"{owner}: {place} is one number; it needs an axis of steps.")
        if not isinstance(leaf.dtype, np.dtype):
            raise PipelineError(
                f"{owner}: {place} holds random keys; write `jax.random.key_data(keys)`."
            )
        refuse_masked(leaf, place, owner)
    return tree


def refuse_masked(array: Any, place: str, owner: str) -> None:
    """Refuses a masked array with masked numbers: what lies below a mask means nothing."""
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        count = int(np.ma.getmaskarray(array).sum())
        raise PipelineError(
            f"{owner}: {place} is a masked array, {count} of whose {array.size} numbers are "
            f"masked, and there is no mask for them; fill it: `x.filled(0)`."
        )


def stacked(values: Any) -> np.ndarray:
    """A list or tuple as one array; if parts of it are masked, so are those of the array."""
    if any(isinstance(each, np.ma.MaskedArray) for each in values):
        return np.ma.stack(values)
    return np.asarray(values)


def _wrong_rows(
    tree: Any, counts: tuple[int, ...], owner: str, name: str
) -> Iterator[tuple[str, int]]:
    """The arrays of a tree that have another number of rows, by their names."""
    if any(len(leaf) not in counts for leaf in jax.tree.leaves(tree)):
        for place, leaf in array_leaves(tree, owner, name):
            if len(leaf) not in counts:
                yield place, len(leaf)


def _per_step(values: Any, name: str, owner: str) -> np.ndarray:
    """One number for each step."""
    if isinstance(values, list | tuple):
        try:
            values = stacked(values)
        except ValueError:  # ragged
            raise PipelineError(f"{owner}: `{name}` is not one number for each step.") from None
    array = np.asarray(_tree(values, name, owner))
    if array.ndim != 1:
        last = f"; write `{name}[:, 0]`" if array.ndim == 2 and array.shape[1] == 1 else ""
        raise PipelineError(
            f"{owner}: `{name}` of shape {array.shape} is not one number for each step{last}."
        )
    return array


def as_flags(values: Any, name: str, steps: int, owner: str) -> np.ndarray:
    """True or False for each step."""
    array = _per_step(values, name, owner)
    if len(array) != steps:
        raise PipelineError(
            f"{owner}: `{name}` has {len(array)} rows, but there are {steps} rewards; it needs one "
            f"for each step."
        )
    flags = array != 0
    if array.dtype != np.bool_ and (array[flags] != 1).any():
        raise PipelineError(f"{owner}: `{name}` must be True or False (1 or 0) for each step.")
    return flags


def _ended(
    terminated: np.ndarray, truncated: np.ndarray, owner: str, rules: Rules
) -> tuple[np.ndarray, np.ndarray]:
    """The two kinds of ends, if there is one of them at the last step, and nowhere else."""
    ended = terminated | truncated
    early = np.flatnonzero(ended[:-1])
    if early.size:
        at, last = int(early[0]), len(ended) - 1
        how = "terminates" if terminated[at] else "is truncated"
        raise PipelineError(
            f"{owner} {how} at step {at}, before its last step {last}; cut it into two episodes "
            f"after step {at}: the first has the observations `[:{at + 2}]`."
        )
    if ended[-1]:
        return terminated, truncated
    if rules.unfinished == "error":
        raise PipelineError(
            f"{owner} has no end: its last step, {len(ended) - 1}, is neither terminated nor "
            f'truncated. If the recording stopped there, pass `unfinished="truncate"`, which '
            f"takes it as a truncation."
        )
    truncated[-1] = True
    return terminated, truncated


def _infos(infos: Any, steps: int, owner: str, rules: Rules) -> dict[str, Any]:
    """The infos that are kept, one row for each step."""
    if rules.infos is False:
        return {}
    infos = {} if infos is None else infos
    if not isinstance(infos, Mapping):
        raise PipelineError(
            f"{owner}: `infos` must be a dict of arrays, got {type(infos).__name__}."
        )
    chosen = chosen_infos(list(infos), rules.infos, owner)
    if not all(isinstance(name, str) for name in chosen):
        leaves_of_tree(dict.fromkeys(chosen, 0), owner, "infos")  # can they be sorted?
    for name in chosen:
        if name in _FLAGS:
            raise PipelineError(
                f"{owner} has an info {name!r}, but `info` has that key already; choose others "
                f"with `infos=[...]`."
            )
    return {name: _after_steps(infos[name], f"infos[{name!r}]", steps, owner) for name in chosen}


def chosen_infos(has: list[str], infos: Any, owner: str) -> Sequence[str]:
    """The names of those infos that are kept, of those that an episode has."""
    if isinstance(infos, bool):
        return has if infos else ()
    missing = [name for name in infos if name not in has]
    if missing:
        raise PipelineError(
            f"{owner} has no info {missing[0]!r}; it has {sorted(map(str, has))}, of which "
            f"`infos=` chooses."
        )
    return infos


def _after_steps(tree: Any, name: str, steps: int, owner: str) -> Any:
    """An info `[T, ...]`; of T + 1 rows the first is what `reset` gave, and is left out."""
    tree = stacked(tree) if isinstance(tree, list) else tree
    tree = _tree(tree, name, owner)
    for place, count in _wrong_rows(tree, (steps, steps + 1), owner, name):
        raise PipelineError(
            f"{owner}: {place} has {count} rows, but there are {steps} rewards; an info has one "
            f"row for each step, and may have one more, of the reset, in front."
        )
    return jax.tree.map(lambda leaf: leaf[len(leaf) - steps :], tree)
