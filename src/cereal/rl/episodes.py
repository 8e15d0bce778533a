"""Statistics of episodes: how long they are, and what they return.

reward           1   1   1   1   1   1
done             .   .   x   .   x   .
episode_return   1   2   3   1   2   1     whole where done
episode_length   1   2   3   1   2   1
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from ..core.errors import PipelineError, UsageError
from ..core.positional import Positional
from ..core.pytree import pytree_dataclass, static_field
from ..core.source import Mask, Source, check_source
from ..core.spec import Spec, format_spec
from ..core.stage import Transform
from ..core.stream_stages import StreamWrapper
from ..core.traits import Traits
from .returns import aligned, backwards, check_leads

T_co = TypeVar("T_co", covariant=True)
_RETURN, _LENGTH = "episode_return", "episode_length"


@pytree_dataclass
class EpisodeStatisticsTransform(Transform[Any, Any]):
    """Adds `episode_return` and `episode_length`: of the running episode, up to and with this step.

        reward           1   1   1   1   1   1
        done             .   .   x   .   x   .
        episode_return   1   2   3   1   2   1     whole where done

        loader = cereal.DataLoader(
            [source, cereal.BatchTransform(128), cereal.rl.EpisodeStatisticsTransform()]
        )

    It comes after a source of rollouts, before or after batching, with the same numbers: sums are
    carried in the loader's state across batches and epochs, for each environment. Steps whose mask
    is False do not count. `episode_summary` takes the means of a batch.
    """

    def __call__(self, source: Source[Any]) -> Source[Any]:
        check_source(source, self._label)
        if isinstance(source, Positional):
            raise PipelineError(
                f"{self._label} carries sums from step to step, and {source._label} is an indexed "
                f"pipeline, whose batches know nothing of those before; put it over a stream, such "
                f"as a GymnaxSource. Of stored steps, compute them once: "
                f"`cereal.rl.episode_statistics(reward, done)`."
            )
        spec = source.element_spec()
        _check_keys(spec, self._label)
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
        return EpisodeStream(source, Spec({**spec, **added}))


def _check_keys(spec: Any, label: str) -> None:
    keys = sorted(spec) if isinstance(spec, dict) else format_spec(spec)
    if not isinstance(spec, dict) or not {"reward", "done"} <= set(spec):
        raise PipelineError(
            f"{label} needs elements with the keys 'reward' and 'done', got {keys}; give them "
            f"these names with a RenameTransform."
        )
    twice = [name for name in (_RETURN, _LENGTH) if name in spec]
    if twice:
        raise PipelineError(
            f"{label} adds {twice[0]!r}, but elements have that key already; rename it before, "
            f'with `RenameTransform({{"{twice[0]}": ...}})`.'
        )


class _Parts(NamedTuple):
    """Two of a kind: one for the sums of rewards, one for the counts of steps."""

    reward: Any
    done: Any


@pytree_dataclass
class EpisodeState:
    """The running sums of rewards and of steps, 0 where an episode has just ended."""

    source: Any
    total: jax.Array
    steps: jax.Array


@pytree_dataclass
class EpisodeStream(StreamWrapper[T_co]):
    """A stream with sums over its episodes."""

    source: Any
    spec: Spec = static_field()

    @property
    def _label(self) -> str:
        return "EpisodeStatisticsTransform"

    def _describe(self) -> Traits:
        return self.source.traits.but(light=False)

    def init_state(self, key: Any) -> EpisodeState:
        spec, axes = self.source.element_spec(), len(self.traits.lanes)
        total = jnp.zeros(spec["reward"].shape[axes:], jnp.float32)
        steps = jnp.zeros(spec["done"].shape[axes:], jnp.int32)
        return EpisodeState(self.source.init_state(key), total, steps)

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
            """All steps on one axis: the batches of a batch follow each other."""
            return x.reshape(math.prod(lanes), *x.shape[axes:])

        reward, done = values["reward"], values["done"]
        start = _Parts(state.total, state.steps)
        sums, after = _run(in_a_row(reward), in_a_row(done), in_a_row(mask), start)
        added = {
            _RETURN: sums.reward.reshape(reward.shape),
            _LENGTH: sums.done.reshape(done.shape),
        }
        return {**values, **added}, mask, EpisodeState(inner, after.reward, after.done)


def episode_statistics(reward: Any, done: Any, *, mask: Any = None) -> tuple[jax.Array, jax.Array]:
    """The return and the length of the running episode at each of T steps in a row.

        reward [T, ...], done [T, ...]  ->  float32[T, ...], int32[T, ...]

    For stored steps; in a stream, `EpisodeStatisticsTransform` does it.

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
    """The sums at each step, and what to start from after the last."""
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
    """Which steps of a segment belong to the first episode of each environment; its end included.

        done            . . x . x .
        first_episodes  x x x . . .

    To judge a policy, play from a new state for as long as an episode may last, and count each
    environment's first episode: of all that end, too many would be short ones.

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
    """How many episodes ended in a batch, and their mean return and length; 0 if none did.

        {"episodes": int32, "mean_return": float32, "mean_length": float32}

    Of a batch after `EpisodeStatisticsTransform`, with its mask; traceable, so that it can be an
    output of `scan_epoch`. A mean over several batches is weighted by their `episodes`.

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


def _mean(values: Any, where: jax.Array) -> jax.Array:
    values = jnp.asarray(values).astype(jnp.float32)
    where = jnp.broadcast_to(aligned(where, values), values.shape)
    count = jnp.maximum(jnp.sum(where, dtype=jnp.int32), 1).astype(jnp.float32)
    return jnp.sum(jnp.where(where, values, jnp.zeros_like(values))) / count
