"""`ReplayTransform`: its options, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, get_args

import jax
import jax.numpy as jnp
import numpy as np

from ...base.errors import PipelineError
from ...base.numbers import as_count, as_optional_count
from ...base.pytree import pytree_dataclass, set_fields, static_field
from ...base.spec import format_spec
from ...functions.function import Function, as_function
from ...pipeline.source import Source, check_source
from ...pipeline.stage import Transform
from ..returns import as_fraction
from .items import ItemAxes, item_axes
from .replay_stream import ReplayStream
from .source_checks import check_epoch_fits, check_fits, check_keys, check_source_of
from .state import Layout, Sample, Write
from .storage.ring import MOST_ITEMS

_OWNER = "ReplayTransform"
_NAMES_ELSEWHERE = {  # of flashbax, Dopamine, Brax and Stable-Baselines3
    **dict.fromkeys(("max_length", "max_size", "buffer_size"), "write `capacity=`"),
    **dict.fromkeys(("min_length", "min_size", "learning_starts"), "write `prefill=`"),
    **dict.fromkeys(("sample_batch_size",), "write `batch_size=`"),
    **dict.fromkeys(("add_batch_size",), "write `num_envs=`, in the source of rollouts"),
    **dict.fromkeys(("sample_sequence_length",), "write `sequence=`"),
    **dict.fromkeys(("priority_exponent",), "write `alpha=`"),
    **dict.fromkeys(("importance_sampling_exponent",), "write `beta=`"),
    **dict.fromkeys(("n_steps", "update_horizon"), "write `n_step=`"),
    **dict.fromkeys(("train_freq", "train_every", "update_period"), "write `collect=`"),
}


@pytree_dataclass
class ReplayTransform(Transform[Any, Any]):
    """Stores what comes, and gives batches of what is stored: a replay buffer.

        source            -- collect=4 steps -->  [ a ring of `capacity` items ]
        environments [64]      4 x 64 items                |  draw
                                                           v
                                         a batch of `batch_size` items

    An item is one element; in rollouts, one step of one environment. Each batch first collects
    `collect` steps of the source. The mask of a batch is False until `prefill` items are stored.
    An item may be in a batch several times.

    The buffer is in the loader's state. It is changed in place in `scan_epoch`, in `iterate`, and
    in your own `jit` if you donate the state. (`next_batch` outside of `jit` copies it.)

    >>> import cereal, jax, numpy as np
    >>> replay = cereal.ReplayTransform(100, batch_size=4, prefill=8, collect=8)
    >>> loader = cereal.DataLoader([cereal.RangeSource(1000), replay])
    >>> batch, state, mask = loader.next_batch(loader.init_state(jax.random.key(0)))
    >>> sorted(set(batch.tolist()) - set(range(8))), mask.tolist()
    ([], [True, True, True, True])

    Args:
        capacity: How many items are stored at most; then new ones replace the oldest.
        batch_size: How many items a batch has.
        prefill: How many items must be stored before a batch is real. By default as many as a batch
            has.
        collect: How many steps of the source each batch collects first; an epoch has so many times
            fewer batches than the source has steps. With 0, `init_state` stores
            one epoch of an indexed source, and nothing is collected later: offline data.
        sample: "uniform"; "prioritized": in proportion to `priority**alpha`, and batches have
            `index`, `weight` and `probability` too; "queue": each item once, in order.
        write: "fifo": new items replace the oldest. "reservoir": of all items ever seen, each is
            kept with the same probability.
        n_step: Batches have `n_step_return`, `bootstrap_state` and `bootstrap_discount` of so many
            steps, as `NStepReturnTransform` makes them.
        gamma: The discount of `n_step`.
        sequence: Batches have so many steps in a row, [batch_size, sequence, ...]. A sequence ends
            with its episode: then its mask, [batch_size, sequence], is False.
        period: Sequences begin at every `period`-th step.
        alpha: The exponent of priorities: 0 is uniform, 1 in proportion.
        beta: `weight` is the importance weight with this exponent, divided by the largest of the
            batch. A number, or a function of the number of batches so far.
        episode_end: The key of elements that says where an episode ends, for sequences; None if
            there are no episodes.
        storage: "device", or "host": the memory of the host, if the items do not fit on the device.
        num_envs: The length of the axis of environments, for a stream of your own: each of them is
            an item. A RolloutSource says it itself.
    """

    capacity: int | None = static_field()
    batch_size: int = static_field()
    prefill: int = static_field()
    collect: int = static_field()
    sample: Sample = static_field()
    write: Write = static_field()
    n_step: int | None = static_field()
    sequence: int | None = static_field()
    period: int = static_field()
    alpha: float = static_field()
    episode_end: str | None = static_field()
    storage: str = static_field()
    num_envs: int | None = static_field()
    waits: bool = static_field()  # `prefill` was passed: more items than the data has may come
    numbers: tuple[float | None, float | None] = static_field()  # gamma and beta, if no arrays
    arrays: tuple[Any, Any]  # ... if they are arrays, or `beta` a function
    _elsewhere: ClassVar[dict[str, str]] = _NAMES_ELSEWHERE

    def __init__(
        self,
        capacity: int | None = None,
        batch_size: int | None = None,
        *,
        prefill: int | None = None,
        collect: int = 1,
        sample: Sample = "uniform",
        write: Write = "fifo",
        n_step: int | None = None,
        gamma: Any = 0.99,
        sequence: int | None = None,
        period: int = 1,
        alpha: float = 0.6,
        beta: float | Callable[[jax.Array], Any] = 0.4,
        episode_end: str | None = "done",
        storage: str = "device",
        num_envs: int | None = None,
    ) -> None:
        collect = as_count(collect, "collect", _OWNER, 0)
        if capacity is None and collect:
            raise PipelineError(
                f"{_OWNER} needs a capacity; write `{_OWNER}(100_000, batch_size=256)`. (It may be "
                f"left out with `collect=0`: then it is the length of the data.)"
            )
        capacity = (
            None if capacity is None else as_count(capacity, "capacity", _OWNER, most=MOST_ITEMS)
        )
        waits = prefill is not None and capacity is not None
        size = as_count(batch_size, "batch_size", _OWNER, hint="say how many items a batch has")
        prefill = as_count(size if prefill is None else prefill, "prefill", _OWNER)
        _check_choice("sample", sample, get_args(Sample))
        _check_choice("write", write, get_args(Write))
        _check_choice("storage", storage, ("device", "host"))
        set_fields(
            self,
            capacity=capacity,
            batch_size=size,
            prefill=prefill,
            collect=collect,
            sample=sample,
            write=write,
            n_step=as_optional_count(n_step, "n_step", _OWNER),
            sequence=as_optional_count(sequence, "sequence", _OWNER),
            period=as_count(period, "period", _OWNER),
            alpha=_as_alpha(alpha),
            episode_end=episode_end,
            storage=storage,
            num_envs=as_optional_count(num_envs, "num_envs", _OWNER),
            waits=waits,
            **_numbers_and_arrays(gamma, beta),
        )
        self._check_options()

    @property
    def span(self) -> int:
        """How many steps in a row belong to an item."""
        return self.sequence or self.n_step or 1

    @property
    def in_a_row(self) -> bool:
        """Whether it counts steps: for windows of several, or those at which windows begin."""
        return self.span > 1 or self.period > 1

    @property
    def _label(self) -> str:
        words = [] if self.capacity is None else [str(self.capacity)]
        words.append(f"batch_size={self.batch_size}")
        words += [f"collect={self.collect}"] if self.collect != 1 else []
        words += [f'sample="{self.sample}"'] if self.sample != "uniform" else []
        words += [f'write="{self.write}"'] if self.write != "fifo" else []
        words += [f"n_step={self.n_step}"] if self.n_step else []
        words += [f"sequence={self.sequence}"] if self.sequence else []
        words += [f"period={self.period}"] if self.period > 1 else []
        words += ['storage="host"'] if self.storage == "host" else []
        return f"{_OWNER}({', '.join(words)})"

    def _check_options(self) -> None:
        if self.capacity is not None:
            self._check_prefill(self.capacity)
        if self.batch_size > self.prefill:
            raise PipelineError(
                f"{_OWNER}: `batch_size={self.batch_size}` is more than `prefill={self.prefill}`, "
                f"so the first batches would have items several times; raise `prefill` to at "
                f"least {self.batch_size}."
            )
        if self.n_step and self.sequence:
            raise PipelineError(
                f"{_OWNER}: `n_step` and `sequence` exclude each other; draw sequences, and call "
                f"`cereal.rl.n_step_returns` on them in your training step."
            )
        if self.period > 1 and not self.sequence:
            raise PipelineError(
                f"{_OWNER}: `period={self.period}` says where sequences begin, and there are none; "
                f"pass `sequence=` too, or leave `period` out."
            )
        if self.in_a_row and (self.write == "reservoir" or self.sample == "queue"):
            other = 'write="reservoir"' if self.write == "reservoir" else 'sample="queue"'
            raise PipelineError(
                f"{_OWNER}: `{other}` knows single items, not steps in a row; leave out "
                f"`{'sequence' if self.sequence else 'n_step'}`. (Steps in a row, each once, are "
                f"what `BatchTransform(T)` gives.)"
            )
        if self.write == "reservoir" and self.storage == "host":
            raise PipelineError(
                f'{_OWNER}: `storage="host"` writes the items of a step side by side, and a '
                f'reservoir writes them anywhere; leave `storage` out, or pass `write="fifo"`.'
            )
        if self.n_step and self.episode_end != "done":
            raise PipelineError(
                f"{_OWNER}: `episode_end={self.episode_end!r}` is for sequences; n-step returns "
                f'end where "done" is True, so give your key that name, with a RenameTransform.'
            )
        if self.sample == "queue" and not self.collect:
            raise PipelineError(
                f"{_OWNER}: a queue with `collect=0` would be empty after one epoch; for each "
                f"element once, in order, write `BatchTransform({self.batch_size})`."
            )
        if self.write == "reservoir" and self.sample != "uniform":
            raise PipelineError(
                f'{_OWNER}: a reservoir has items of all times in no order, and `sample="'
                f'{self.sample}"` needs to know their order; pass `write="fifo"`.'
            )

    def _check_prefill(self, capacity: int) -> None:
        if self.prefill > capacity:
            full = capacity == self.capacity
            what, fix = "capacity", ", or raise `capacity`"
            if not full:
                what = "the length of the data"
                fix = ". (If `fill_replay` adds more, pass `capacity` and `prefill`)"
            raise PipelineError(
                f"{_OWNER}: `prefill={self.prefill}` is more than {what}, {capacity}, so no batch "
                f"would ever be real; lower `prefill` and `batch_size`{fix}."
            )

    def __call__(self, source: Source[Any]) -> Source[Any]:
        check_source(source, self._label)
        axes = item_axes(source, max(self.collect, 1), self._label, self.num_envs)
        check_source_of(self, source)
        capacity = axes.capacity_for(self)
        self._check_prefill(
            capacity if self.collect or self.waits else min(capacity, axes.items_of_epoch)
        )
        if capacity > MOST_ITEMS:
            raise PipelineError(
                f"{self._label}: {source._label} has {capacity} items, more than the {MOST_ITEMS} "
                f"that a buffer can count; pass a smaller `capacity`."
            )
        check_epoch_fits(self, source, capacity, axes)
        check_fits(self, capacity, axes)
        check_keys(self, axes)
        return ReplayStream(source, self, self._layout(capacity, axes), axes)

    def _layout(self, capacity: int, axes: ItemAxes) -> Layout:
        return Layout(
            capacity,
            axes.columns,
            self.span,
            self.period,
            self.sample,
            self.write,
            self.alpha,
            block=axes.added if self.storage == "host" else 1,
            ends=None if self.span == 1 else "done" if self.n_step else self.episode_end,
            returns=bool(self.n_step),
        )

    @property
    def gamma(self) -> Any:
        """The discount of n-step returns."""
        return self.numbers[0] if self.arrays[0] is None else self.arrays[0]

    def weight_exponent(self, batches: jax.Array) -> Any:
        """beta, after so many batches."""
        beta = self.numbers[1] if self.arrays[1] is None else self.arrays[1]
        if not isinstance(beta, Function):
            return jnp.asarray(beta, jnp.float32)
        most = np.uint32(np.iinfo(np.int32).max)  # it counts no further
        count = jnp.where(batches[0] > 0, most, jnp.minimum(batches[1], most))
        made = jnp.asarray(beta(count.astype(jnp.int32)))
        if made.shape:
            raise PipelineError(
                f"{self._label}: `beta` must return one number, returned {format_spec(made)}."
            )
        return made.astype(jnp.float32)


def _numbers_and_arrays(gamma: Any, beta: Any) -> dict[str, Any]:
    """A Python number is part of the program; it is not sent to the device in every step."""
    parts = [as_fraction(gamma, "gamma", _OWNER)]
    parts += [as_function(beta, _OWNER) if callable(beta) else as_fraction(beta, "beta", _OWNER)]
    return {
        "numbers": tuple(part if isinstance(part, float) else None for part in parts),
        "arrays": tuple(None if isinstance(part, float) else part for part in parts),
    }


def _check_choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        words = ", ".join(f'"{each}"' for each in known)
        raise PipelineError(f"{_OWNER}: `{name}` must be one of {words}, got {value!r:.40}.")


def _as_alpha(alpha: Any) -> float:
    wrong = isinstance(alpha, bool | str) or not hasattr(alpha, "__float__")
    if wrong or not 0 <= float(alpha) < math.inf:
        raise PipelineError(f"{_OWNER}: `alpha` must be a number of at least 0, got {alpha!r:.40}.")
    return float(alpha)
