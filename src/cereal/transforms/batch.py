"""Batching."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ..base.capture import callers_level
from ..base.errors import PipelineError
from ..base.numbers import as_count
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..base.spec import Spec, as_override
from ..host.element_spec import check_arrays
from ..host.host_data import HostFunction
from ..order.position import Remainder, steps_in
from ..pipeline.host_stage import as_host_function, below_host_stage
from ..pipeline.pipeline import attach, root_of
from ..pipeline.placed import Batching
from ..pipeline.positional import Positional
from ..pipeline.source import Mask, Source, check_source
from ..pipeline.stage import Transform
from ..pipeline.stream_stages import StreamWrapper
from ..pipeline.traits import Traits
from .collated import check_batch, collate_with

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@pytree_dataclass
class BatchTransform(Transform[Any, Any]):
    """Stacks elements into batches; all batches have the same shape.

        10 elements, batch_size=4
        default                0123 4567 89|01 2345 6789|01 ...   wraps: each once per pass
        pad_last_batch=True    0123 4567 89__ | 0123 ...          mask is False at __
        drop_last=True         0123 4567 | 0123 ...               2 of the order are left out

    Padding repeats elements of the epoch, so it is always valid input; the mask is False there.
    A second BatchTransform adds a second axis: [4, 8, ...] microbatches.

    `collate` is a Python function that makes a batch in another way: it gets a list of elements and
    returns a tree of arrays. The first axis of each array must be the batch, and every batch must
    have the same shapes. To learn the shapes, a first batch is read when the pipeline is built;
    or state them: `spec=` is a tree of `jax.ShapeDtypeStruct` of a whole batch.

    >>> import cereal
    >>> batches = cereal.BatchTransform(4, pad_last_batch=True)(cereal.RangeSource(6))
    >>> [(batch.tolist(), mask.tolist()) for batch, mask in cereal.DataLoader(batches)]
    [([0, 1, 2, 3], [True, True, True, True]), ([4, 5, 0, 1], [True, True, False, False])]
    """

    batch_size: int = static_field()
    drop_last: bool = static_field(default=False)
    pad_last_batch: bool = static_field(default=False)
    collate: Any = None
    spec: Spec | None = static_field(default=None)

    def __init__(
        self,
        batch_size: int,
        *,
        drop_last: bool = False,
        pad_last_batch: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        spec: Any = None,
    ) -> None:
        size = as_count(batch_size, "batch_size", "BatchTransform")
        if drop_last and pad_last_batch:
            raise PipelineError(
                "BatchTransform: `drop_last=True` and `pad_last_batch=True` contradict each "
                "other; pass one of them, or neither to wrap into the next epoch."
            )
        set_fields(
            self,
            batch_size=size,
            drop_last=bool(drop_last),
            pad_last_batch=bool(pad_last_batch),
            collate=None if collate is None else _as_collate(collate),
            spec=_as_spec(spec, size, collate),
        )

    @property
    def remainder(self) -> Remainder:
        """The rule for the end of an epoch."""
        return "drop" if self.drop_last else "pad" if self.pad_last_batch else "wrap"

    @property
    def _label(self) -> str:
        rule = {"drop": ", drop_last=True", "pad": ", pad_last_batch=True", "wrap": ""}
        collate = "" if self.collate is None else f", collate={self.collate.name}"
        return f"BatchTransform({self.batch_size}{rule[self.remainder]}{collate})"

    def __call__(self, source: Source[T]) -> Source[T]:
        check_source(source, self._label)
        traits = source.traits
        if traits.callbacks != root_of(source).traits.callbacks:
            raise PipelineError(
                f"{self._label} comes after a HostCallbackTransform, which runs once per batch; "
                f"put the callback after the BatchTransform."
            )
        if isinstance(traits.placement, jax.sharding.Sharding):
            raise PipelineError(
                f"{self._label} comes after a DevicePutTransform with a sharding, which lays out "
                f"batches; put the DevicePutTransform after the BatchTransform."
            )
        if self.collate is not None:
            return self._checked(self._collated(source), source)
        check_arrays(
            source.element_spec(),
            self._label,
            "turn it into one in a HostMapTransform before, or pass `collate=`, a function from a "
            "list of elements to a batch of arrays",
        )
        spec = Spec(source.element_spec()).batched(self.batch_size)
        if isinstance(source, Positional):
            placed = Batching(self, spec, traits.lanes, _agreed(self, source))
            return self._checked(attach(source, placed), source)
        if self.drop_last:
            _check_fits((self.batch_size,), source.steps_per_epoch)
        if self.pad_last_batch and traits.callbacks:
            raise PipelineError(
                f"{self._label} over {root_of(source)._label}: padding makes steps and throws "
                f"them away, which Python cannot undo; leave `pad_last_batch` out."
            )
        return BatchedStream(source, self, spec)

    def _collated(self, source: Any) -> Any:
        source = below_host_stage(source, self._label)
        if source.traits.lanes:
            raise PipelineError(
                f"{self._label} collates elements, but comes after {source._label}; collate in the "
                f"first BatchTransform."
            )
        return attach(source, collate_with(self, source))

    def _checked(self, batched: Positional[Any], source: Any) -> Any:
        if batched.traits.remainder == "drop":
            _check_fits(batched.traits.lanes, batched.traits.length)
        _warn_of_repeats(batched, source)
        return batched


def _as_collate(collate: Any) -> HostFunction:
    return as_host_function(collate, "BatchTransform", "", "collate")[0]


def _as_spec(tree: Any, size: int, collate: Any) -> Spec | None:
    if tree is not None and collate is None:
        raise PipelineError(
            "BatchTransform: `spec=` says what a `collate=` function returns, and there is none; "
            "leave it out: elements are stacked."
        )
    spec = as_override(tree, "BatchTransform", "spec")
    if spec is not None:
        check_batch(spec, size, "BatchTransform: `spec` says", "of a batch, not of an element:")
    return spec


def _check_fits(lanes: tuple[int, ...], n: int) -> None:
    """Refuses a `drop_last=True` that would leave out all elements."""
    if n < math.prod(lanes):
        size = " x ".join(map(str, lanes))
        raise PipelineError(
            f"BatchTransform: `drop_last=True` with `batch_size={size}` drops all {n} elements; "
            f"pass `pad_last_batch=True`, or a batch of at most {n}."
        )


def _agreed(batch: BatchTransform, source: Positional[Any]) -> Remainder:
    """The rule for the end of an epoch, for batches of batches: both must agree, or one wraps."""
    known = source.traits
    if not known.lanes or known.remainder in ("wrap", batch.remainder):
        return batch.remainder
    if batch.remainder == "wrap":
        return known.remainder
    raise PipelineError(
        f"{batch._label} over {source._label}: the two batchings have different rules for the end "
        f"of an epoch; give the rule once, to the outer one."
    )


def _warn_of_repeats(batched: Positional[Any], source: Positional[Any]) -> None:
    """Warns if every batch has elements several times."""
    size, traits = batched._plan.batch, batched.traits
    n = traits.length
    if traits.remainder != "wrap" or source._order.samples or not source._plan.batch <= n < size:
        return
    if not traits.fixed:  # a mixture: its next epoch has other elements
        return
    warnings.warn(
        f"{batched._label} over {n} element{'s' if n > 1 else ''}: {size} is larger than the data, "
        f"so every batch has elements several times, of {-(-size // n)} epochs or more; for one "
        f"batch with all elements write `BatchTransform({n})`, or pass `pad_last_batch=True` and "
        f"use the mask. (If you want this, write `RepeatSource(source, {-(-size // n)})`.)",
        stacklevel=callers_level(),
    )


@pytree_dataclass
class BatchedStreamState:
    """The state of padded batches over a stream; `step` is how many batches the epoch has given."""

    source: Any
    step: jax.Array


@pytree_dataclass
class BatchedStream(StreamWrapper[T_co]):
    """Batches of a stream: a batch is `batch_size` steps of it.

    Nothing of a stream is dropped: when an epoch ends, the next one continues where it is.
    """

    source: Any
    batch: BatchTransform
    spec: Spec = static_field()

    @property
    def _label(self) -> str:
        return self.batch._label

    def _describe(self) -> Traits:
        return self.source.traits.batched(self.batch.batch_size, self.batch.remainder)

    @property
    def steps_per_epoch(self) -> int:  # type: ignore[override]
        steps = self.source.steps_per_epoch
        return steps_in(steps, self.batch.batch_size, self.batch.remainder)

    def init_state(self, key: Any) -> Any:
        inner = self.source.init_state(key)
        return BatchedStreamState(inner, jnp.uint32(0)) if self.batch.pad_last_batch else inner

    def _step(self, state: Any) -> tuple[T_co, Mask, Any]:
        if not self.batch.pad_last_batch:
            return self.source._step_many(state, self.batch.batch_size)
        return self._padded(state)

    def _padded(self, state: BatchedStreamState) -> tuple[T_co, Mask, Any]:
        size, n = self.batch.batch_size, self.source.steps_per_epoch
        left = jnp.uint32(n) - state.step * jnp.uint32(size)

        def one(inner: Any, lane: jax.Array) -> tuple[Any, tuple[Any, Any]]:
            value, mask, after = self.source._step(inner)
            real = lane < left
            after = jax.tree.map(lambda new, old: jnp.where(real, new, old), after, inner)
            return after, (value, mask & real)

        lanes = jnp.arange(size, dtype=jnp.uint32)
        inner, (values, mask) = jax.lax.scan(one, state.source, lanes)
        step = (state.step + 1) % jnp.uint32(self.steps_per_epoch)
        return values, mask, BatchedStreamState(inner, step)
