"""Statistics of episodes: their lengths and returns.

reward           1   1   1   1   1   1
done             .   .   x   .   x   .
episode_return   1   2   3   1   2   1     complete where done
episode_length   1   2   3   1   2   1
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from ..base.errors import PipelineError, UsageError
from ..base.numbers import as_count, as_flag
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..base.spec import Spec, format_spec
from ..pipeline.positional import Positional
from ..pipeline.source import Mask, Source, check_source
from ..pipeline.stage import Transform
from ..pipeline.stream_stages import StreamWrapper
from ..pipeline.traits import Traits
from .replay.items import refuse_drawn
from .returns import aligned, backwards, check_leads

T_co = TypeVar("T_co", covariant=True)
_RETURN, _LENGTH = "episode_return", "episode_length"
_MOST_COMPARED = 1 << 14  # fewer comparisons than this are faster than a search by halves


@pytree_dataclass
class EpisodeStatisticsTransform(Transform[Any, Any]):
    """Adds `episode_return` and `episode_length` of the current episode, this step included.

        reward           1   1   1   1   1   1
        done             .   .   x   .   x   .
        episode_return   1   2   3   1   2   1     complete where done

        loader = cereal.DataLoader(
            [source, cereal.BatchTransform(128), cereal.rl.EpisodeStatisticsTransform()]
        )

    Put it after a source of rollouts; before and after batching the numbers are the same. The
    loader's state carries the sums of each environment across batches and epochs. Steps whose mask
    is False do not count. `episode_summary` computes the means of a batch.

    Batches of a replay buffer are not what was just played. Put this stage before the buffer, and
    `recent_episodes(state)` tells how the newest `recent` episodes went. With `add=False` the
    elements stay as they are, so the buffer does not store the two numbers.
    """

    recent: int = static_field()
    add: bool = static_field()

    def __init__(self, *, recent: int = 100, add: bool = True) -> None:
        owner = type(self).__name__
        set_fields(self, recent=as_count(recent, "recent", owner), add=as_flag(add, "add", owner))

    def __call__(self, source: Source[Any]) -> Source[Any]:
        check_source(source, self._label)
        refuse_drawn(source, self._label)
        if isinstance(source, Positional):
            raise PipelineError(
                f"{self._label} carries sums from step to step, and {source._label} is an indexed "
                f"pipeline, whose batches know nothing of those before; put it over a stream, such "
                f"as a GymnaxSource. Of stored steps, compute them once: "
                f"`cereal.rl.episode_statistics(reward, done)`."
            )
        spec = source.element_spec()
        _check_keys(spec, self._label, adds=self.add)
        parts = _Parts(spec["reward"].shape, spec["done"].shape)
        added = {
            _RETURN: jax.ShapeDtypeStruct(parts.reward, jnp.float32),
            _LENGTH: jax.ShapeDtypeStruct(parts.done, jnp.int32),
        }
        if parts.reward[: len(parts.done)] != parts.done:
            raise PipelineError(
                f"{self._label}: `reward` is {format_spec(spec['reward'])} and `done` "
                f"{format_spec(spec['done'])}; there must be one `done` for each reward."
            )
        spec = Spec({**spec, **added} if self.add else spec)
        return EpisodeStream(source, self.recent, self.add, spec)


def _check_keys(spec: Any, label: str, *, adds: bool) -> None:
    keys = sorted(spec) if isinstance(spec, dict) else format_spec(spec)
    if not isinstance(spec, dict) or not {"reward", "done"} <= set(spec):
        raise PipelineError(
            f"{label} needs elements with the keys 'reward' and 'done', got {keys}; give them "
            f"these names with a RenameTransform."
        )
    twice = [name for name in (_RETURN, _LENGTH) if adds and name in spec]
    if twice:
        raise PipelineError(
            f"{label} adds {twice[0]!r}, but elements have that key already; rename it before, "
            f'with `RenameTransform({{"{twice[0]}": ...}})`.'
        )


class _Parts(NamedTuple):
    """Two values of one kind: one for the sums of rewards, one for the counts of steps."""

    reward: Any
    done: Any


@pytree_dataclass
class Recent:
    """The newest episodes that have ended, the newest last, and how many there are."""

    returns: jax.Array
    lengths: jax.Array
    count: jax.Array

    def and_then(self, ended: jax.Array, returns: jax.Array, lengths: jax.Array) -> Recent:
        """With those that ended in some steps. Nothing is scattered: each place looks for its own.

        before   a b c d
        ended    e f
        after    c d e f
        """
        size, numbers = self.lengths.shape[0], jnp.cumsum(ended, dtype=jnp.int32)
        new, places = numbers[-1], jnp.arange(size, dtype=jnp.int32)
        is_new = places >= size - new
        wanted = new - (size - 1 - places)  # the first that ended is number 1
        few = ended.shape[0] * size <= _MOST_COMPARED
        at = jnp.searchsorted(numbers, wanted, method="compare_all" if few else "scan")
        old = jnp.minimum(places + new, size - 1)

        def shifted(kept: jax.Array, given: jax.Array) -> jax.Array:
            return jnp.where(aligned(is_new, kept), given.at[at].get(mode="clip"), kept[old])

        count = jnp.minimum(self.count + jnp.minimum(new, size), size)
        return Recent(shifted(self.returns, returns), shifted(self.lengths, lengths), count)


@pytree_dataclass
class EpisodeState:
    """The running sums of rewards and of steps, 0 where an episode has just ended."""

    source: Any
    total: jax.Array
    steps: jax.Array
    recent: Recent


@pytree_dataclass
class EpisodeStream(StreamWrapper[T_co]):
    """A stream with sums over its episodes."""

    source: Any
    recent: int = static_field()
    adds: bool = static_field()
    spec: Spec = static_field()

    @property
    def _label(self) -> str:
        return "EpisodeStatisticsTransform"

    def _describe(self) -> Traits:
        return self.source.traits.but(light=False)

    def init_state(self, key: Any) -> EpisodeState:
        spec, axes = self.source.element_spec(), len(self.traits.lanes)
        one = _Parts(spec["reward"].shape[axes:], spec["done"].shape[axes:])
        per_episode = one.reward[len(one.done) :]
        recent = Recent(
            jnp.zeros((self.recent, *per_episode), jnp.float32),
            jnp.zeros(self.recent, jnp.int32),
            jnp.zeros((), jnp.int32),
        )
        sums = jnp.zeros(one.reward, jnp.float32), jnp.zeros(one.done, jnp.int32)
        return EpisodeState(self.source.init_state(key), *sums, recent)

    def _step(self, state: EpisodeState) -> tuple[T_co, Mask, EpisodeState]:
        return self._counted(state, self.source._step(state.source), self.traits.lanes)

    def _step_many(self, state: EpisodeState, n: int) -> tuple[T_co, Mask, EpisodeState]:
        return self._counted(
            state, self.source._step_many(state.source, n), (n, *self.traits.lanes)
        )

    def _counted(
        self, state: EpisodeState, stepped: tuple[Any, Any, Any], lanes: tuple[int, ...]
    ) -> tuple[Any, Mask, EpisodeState]:
        values, mask, inner = stepped
        axes = len(lanes)

        def in_a_row(x: Any) -> jax.Array:
            """All steps on one axis; in a batch of batches, one batch after another."""
            return x.reshape(math.prod(lanes), *x.shape[axes:])

        reward, done, real = in_a_row(values["reward"]), in_a_row(values["done"]), in_a_row(mask)
        sums, after = _run(reward, done, real, _Parts(state.total, state.steps))
        ended = done.astype(jnp.bool_) & aligned(real.astype(jnp.bool_), done)
        per_episode = sums.reward.shape[ended.ndim :]
        recent = state.recent.and_then(
            ended.reshape(-1), sums.reward.reshape(-1, *per_episode), sums.done.reshape(-1)
        )
        if self.adds:
            added = sums.reward.reshape(values["reward"].shape)
            lengths = sums.done.reshape(values["done"].shape)
            values = {**values, _RETURN: added, _LENGTH: lengths}
        return values, mask, EpisodeState(inner, after.reward, after.done, recent)


def episode_statistics(reward: Any, done: Any, *, mask: Any = None) -> tuple[jax.Array, jax.Array]:
    """The return and the length of the current episode, at each of T consecutive steps.

        reward [T, ...], done [T, ...]  ->  float32[T, ...], int32[T, ...]

    Use it for stored steps; in a pipeline of rollouts, use `EpisodeStatisticsTransform`.

    >>> import cereal, jax.numpy as jnp
    >>> done = jnp.array([False, False, True, False])
    >>> returns, lengths = cereal.rl.episode_statistics(jnp.full(4, 0.5), done)
    >>> returns.tolist(), lengths.tolist()
    ([0.5, 1.0, 1.5, 0.5], [1, 2, 3, 1])
    """
    reward, done = jnp.asarray(reward), jnp.asarray(done)
    real = jnp.ones(done.shape[:1], jnp.bool_) if mask is None else jnp.asarray(mask)
    check_leads("episode_statistics", "done", done, "reward", reward)
    if real.ndim:
        check_leads("episode_statistics", "mask", real, "done", done)
    start = _Parts(jnp.zeros(reward.shape[1:], jnp.float32), jnp.zeros(done.shape[1:], jnp.int32))
    return tuple(_run(reward, done, real, start)[0])


def _run(
    reward: jax.Array, done: jax.Array, mask: jax.Array, start: _Parts
) -> tuple[_Parts, _Parts]:
    """The sums at each step, and the sums with which the next segment starts."""
    real = aligned(mask.astype(jnp.bool_), done)
    ended = done.astype(jnp.bool_) & real
    goes_on = jnp.concatenate([jnp.ones_like(ended[:1]), ~ended[:-1]])

    def sums(added: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
        added = added.at[0].add(start)
        factor = aligned(goes_on, added).astype(added.dtype)
        total = jnp.flip(backwards(jnp.flip(factor, 0), jnp.flip(added, 0)), 0)
        return total, jnp.where(aligned(ended[-1], start), jnp.zeros_like(start), total[-1])

    rewards = reward.astype(jnp.float32)
    rewards = jnp.where(aligned(real, rewards), rewards, jnp.zeros_like(rewards))
    counts = jnp.broadcast_to(real, done.shape).astype(jnp.int32)
    (totals, total), (lengths, length) = sums(rewards, start.reward), sums(counts, start.done)
    return _Parts(totals, lengths), _Parts(total, length)


def first_episodes(done: Any) -> jax.Array:
    """Whether each step of a segment belongs to the first episode of its environment.

        done            . . x . x .
        first_episodes  x x x . . .

    The last step of that episode is included. To evaluate a policy, begin with a new state, play
    for as long as an episode may last, and count only the first episode of each environment. The
    mean over all episodes that end would be wrong: short episodes end more often.

    >>> import cereal, jax.numpy as jnp
    >>> done = jnp.array([[False, True], [True, False], [False, True]])
    >>> first = cereal.rl.first_episodes(done)
    >>> reward = jnp.array([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
    >>> (reward * first).sum(axis=0).tolist()
    [3.0, 1.0]
    """
    done = jnp.asarray(done).astype(jnp.int32)
    if not done.ndim:
        raise UsageError("`first_episodes` works on steps in a row: pass `done` of shape [T, ...].")
    return jnp.cumsum(done, axis=0) - done == 0


def episode_summary(batch: Any, mask: Any = None) -> dict[str, jax.Array]:
    """The number of episodes that ended in a batch, and their mean return and length.

        {"episodes": int32, "mean_return": float32, "mean_length": float32}

    `batch` comes from a pipeline with `EpisodeStatisticsTransform`. If no episode ended, the means
    are 0. You can call it inside `jit` and `scan_epoch`. For a mean over several batches, weight
    each batch by its `episodes`.

    >>> import cereal, jax.numpy as jnp
    >>> done = jnp.array([False, True, True, False])
    >>> returns, lengths = jnp.array([1.0, 3.0, 5.0, 9.0]), jnp.array([1, 2, 4, 3])
    >>> batch = {"done": done, "episode_return": returns, "episode_length": lengths}
    >>> {name: float(x) for name, x in cereal.rl.episode_summary(batch).items()}
    {'episodes': 2.0, 'mean_return': 4.0, 'mean_length': 3.0}
    """
    missing = [name for name in ("done", _RETURN, _LENGTH) if name not in batch]
    if missing:
        raise UsageError(
            f"`episode_summary` needs a batch with {missing[0]!r}, got {sorted(batch)}; put "
            f"`cereal.rl.EpisodeStatisticsTransform()` into the pipeline."
        )
    done = jnp.asarray(batch["done"]).astype(jnp.bool_)
    if mask is not None:
        mask = jnp.asarray(mask).astype(jnp.bool_)
        if mask.ndim:
            check_leads("episode_summary", "mask", mask, "done", done)
        done = done & aligned(mask, done)
    return {
        "episodes": jnp.sum(done, dtype=jnp.int32),
        "mean_return": _mean(batch[_RETURN], done),
        "mean_length": _mean(batch[_LENGTH], done),
    }


def recent_episodes(state: Any) -> dict[str, jax.Array]:
    """How the newest episodes went that have ended, from the loader's state.

        loader = cereal.DataLoader([
            rollouts, cereal.rl.EpisodeStatisticsTransform(add=False), cereal.ReplayTransform(...),
        ])
        state, params, _ = loader.scan_epoch(state, params, update, feedback=feedback)
        cereal.rl.recent_episodes(state)["mean_return"]

        {"episodes": int32, "mean_return": float32, "mean_length": float32}

    The means are over the newest 100 episodes (`EpisodeStatisticsTransform(recent=100)`), or as
    many as have ended; 0 if none has. You can call it inside `jit` and `scan`. In a Python loop,
    write `batches.look_at(cereal.rl.recent_episodes)`, which does not copy the buffer. States of
    `jax.vmap` give a number for each. These are episodes as they were played, with all exploration,
    and short ones end sooner: to evaluate a policy, see `first_episodes`.
    """
    found = jax.tree.leaves(state, is_leaf=_is_episodes)
    parts = [each.recent for each in found if _is_episodes(each)]
    if not parts:
        raise UsageError(
            "`recent_episodes`: this state has none; put `cereal.rl.EpisodeStatisticsTransform()` "
            "after the source of rollouts, and pass the loader's state, not a batch."
        )
    count = sum(jnp.asarray(part.count) for part in parts)
    some = jnp.maximum(count, 1).astype(jnp.float32)
    return {
        "episodes": jnp.asarray(count),
        "mean_return": sum(_total(part, part.returns) for part in parts) / some,
        "mean_length": sum(_total(part, part.lengths) for part in parts) / some,
    }


def _is_episodes(node: Any) -> bool:
    return isinstance(node, EpisodeState)


def _total(recent: Recent, values: Any) -> jax.Array:
    """The sum over the episodes, of states of `jax.vmap` for each; of several rewards, the mean."""
    values, states = jnp.asarray(values), jnp.ndim(recent.count)
    size = values.shape[states]
    ended = jnp.arange(size) >= size - jnp.asarray(recent.count)[..., None]
    values = values.reshape(*ended.shape, -1).astype(jnp.float32).mean(axis=-1)
    return jnp.sum(jnp.where(ended, values, jnp.zeros_like(values)), axis=-1)


def _mean(values: Any, where: jax.Array) -> jax.Array:
    values = jnp.asarray(values).astype(jnp.float32)
    where = jnp.broadcast_to(aligned(where, values), values.shape)
    count = jnp.maximum(jnp.sum(where, dtype=jnp.int32), 1).astype(jnp.float32)
    return jnp.sum(jnp.where(where, values, jnp.zeros_like(values))) / count
