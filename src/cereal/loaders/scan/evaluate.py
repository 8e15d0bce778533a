"""Metrics over every element of a pipeline, exactly once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ...base.capture import eager, resolve
from ...base.errors import UsageError
from ...base.spec import at_least_float32
from ...device.placement import check_given
from ...functions.function import arguments_taken
from ...functions.traced_stage import current
from ...host.callbacks import raise_kept, raising
from ...host.host_data import identity_on_host
from ...order.position import Remainder
from ...pipeline.positional import Positional
from ...pipeline.source import Source
from ...pipeline.stream_stages import StreamWrapper
from ...transforms.batch import BatchedStream, BatchTransform
from ..loader import DataLoader
from ..masked_mean import note_unbatched
from .epoch_scan import scan_read, scan_steps
from .host_scan import scan_host
from .programs import Body, program

_WRITE = 'return one value per element, such as `{"loss": losses}` with losses of shape [batch]'


def evaluate(loader: DataLoader[Any], fn: Callable[..., Any], *args: Any, key: Any = 0) -> Any:
    """The mean of `fn(batch, *args)` over every element of an epoch, each exactly once.

        batch [B, ...]  --fn-->  {"loss": [B], "correct": [B]}  --mean-->  {"loss": [], ...}

    `fn` takes `(batch, *args)`, or `(batch, mask, *args)` if its second argument is called `mask`.
    It returns a tree of arrays with one value for each element. Every element counts once, also if
    the pipeline drops or wraps the last batch; padding and masked elements do not count. If no
    element counts, the mean is nan. `key` is for random pipelines.

    It runs as one compiled program. If `fn` is a function of a module and you pass parameters as
    `args`, it is traced and compiled once. Any other function is traced in every call and compiled
    once: arrays from outside become arguments, and their present values are always used.

    >>> import cereal
    >>> loader = cereal.DataLoader([cereal.RangeSource(10), cereal.BatchTransform(4)])
    >>> def metrics(batch, scale):
    ...     return {"mean": scale * batch, "even": batch % 2 == 0}
    >>> found = cereal.evaluate(loader, metrics, 2.0)
    >>> {name: float(value) for name, value in found.items()}
    {'even': 0.5, 'mean': 9.0}
    """
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"`evaluate` needs a DataLoader, got {type(loader).__name__}; write "
            f"`evaluate(DataLoader([source, BatchTransform(128)]), fn)`."
        )
    if not callable(fn):
        raise UsageError(
            f"`evaluate` needs a function of a batch, got {type(fn).__name__} ({fn!r:.60}); write "
            f"`evaluate(loader, lambda batch: ...)`."
        )
    state = loader.init_state(key)
    source = current(loader.running, state)
    remainder: Remainder | None = None
    steps = loader.steps_per_epoch  # raises if the length is not known
    if isinstance(source, Positional):
        remainder = "pad"
        steps = source._plan.ending(remainder).steps
    else:
        source = _padded(source)
        state, steps = DataLoader(source).init_state(key), source.steps_per_epoch
    source = resolve(source, state)
    if source.traits.host:
        raise_kept((identity_on_host(source),))
    with raising(source.traits.callbacks):
        if eager():
            loader.together.begin_scan(state, steps)
            check_given(source.traits.placement, loader=source, state=state)
            return _run(source, state, fn, args, steps, remainder)
        body = _with(args, _metrics(fn))
        return _means(scan_steps(source, state, None, body, steps, 1, remainder)[2])


def _padded(stream: Source[Any]) -> Any:
    """The same stream, but its batches pad the end of an epoch."""
    if not isinstance(stream, StreamWrapper):
        return stream
    source: Any = stream
    inner = _padded(source.source)
    if isinstance(source, BatchedStream):
        batch = BatchTransform(source.batch.batch_size, pad_last_batch=True)
        return dataclasses.replace(source, source=inner, batch=batch)
    return dataclasses.replace(source, source=inner)


def _run(
    source: Source[Any], state: Any, fn: Any, args: Any, steps: int, remainder: Remainder | None
) -> Any:
    """`evaluate` outside of traced functions."""
    body = Body(_metrics(fn), (fn,), args, source)
    if source.traits.host:

        def sums(metrics: Any, source: Any, rows: Any, args: Any) -> tuple[Any, Any]:
            return args, scan_read(source, rows, None, _with(args, metrics), 1)[1]

        run = program(("sums", len(args)), body, sums)
        return _means_of(scan_host(source, state, args, run, steps, remainder)[2])

    def means(metrics: Any, source: Any, state: Any, args: Any) -> Any:
        return _means(scan_steps(source, state, None, _with(args, metrics), steps, 1, remainder)[2])

    return program(("means", steps, remainder), body, means)(source, state, args)


def _with(args: Any, metrics: Any) -> Any:
    """The body of a scan that carries nothing."""
    return lambda carry, batch, mask: (carry, metrics(args, batch, mask))


def _metrics(fn: Any) -> Any:
    """From a batch to the sums of the metrics and the number of elements."""

    def metrics(args: Any, batch: Any, mask: Any) -> Any:
        try:
            values = fn(batch, mask, *args) if _takes_mask(fn, args) else fn(batch, *args)
        except Exception as error:
            note_unbatched(error, mask)
            raise
        summed = lambda path, leaf: _masked_sum(leaf, mask, jax.tree_util.keystr(path))  # noqa: E731
        sums = jax.tree_util.tree_map_with_path(summed, values)
        return sums, jnp.sum(mask, dtype=jnp.int32)

    return metrics


def _takes_mask(fn: Any, args: tuple[Any, ...]) -> bool:
    """Whether the second argument is the mask; with `args`, only if it is called `mask`."""
    taken = arguments_taken(fn, ("", "mask"), least=1)
    return len(taken) == 2 and (not args or taken[1] == "mask")


def _masked_sum(leaf: Any, mask: Any, path: str) -> Any:
    if leaf is None or not hasattr(leaf, "shape") or leaf.shape[: mask.ndim] != mask.shape:
        found = getattr(leaf, "shape", type(leaf).__name__)
        raise UsageError(
            f"`evaluate`: `fn` must {_WRITE}; `metrics{path}` is {found}, and a batch has "
            f"{mask.shape} elements. (The mean over elements is taken for you.)"
        )
    leaf = jnp.asarray(leaf)
    wide = jnp.broadcast_to(mask.reshape(mask.shape + (1,) * (leaf.ndim - mask.ndim)), leaf.shape)
    axes = tuple(range(mask.ndim))
    if leaf.dtype == jnp.bool_:
        return jnp.sum(leaf & wide, axis=axes, dtype=jnp.int32)  # counted exactly
    leaf = leaf.astype(at_least_float32(leaf.dtype))
    return jnp.sum(jnp.where(wide, leaf, jnp.zeros_like(leaf)), axis=axes)


def _means(sums: Any) -> Any:
    values, counts = sums
    count = jnp.sum(counts)
    return jax.tree.map(lambda x: _by_halves(x) / count.astype(_float(x)), values)


_means_of = jax.jit(_means)


def _by_halves(sums: Any) -> Any:
    """The sum over the first axis, added in pairs, so that a million batches lose no digits."""
    sums = sums.astype(_float(sums)) if sums.dtype != jnp.int32 else jnp.sum(sums, axis=0)[None]
    while sums.shape[0] > 1:
        if sums.shape[0] % 2:
            sums = jnp.concatenate([sums, jnp.zeros_like(sums[:1])])
        sums = sums[0::2] + sums[1::2]
    return sums[0].astype(_float(sums))


def _float(x: Any) -> Any:
    return at_least_float32(x.dtype)
