"""Metrics over every element of a pipeline, exactly once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ..core.callback import raise_kept, raising
from ..core.capture import eager, resolve
from ..core.errors import UsageError
from ..core.function import Function, as_function, takes_second
from ..core.host_data import identity_on_host
from ..core.masked import note_unbatched
from ..core.position import Remainder
from ..core.positional import Positional
from ..core.source import Source
from ..core.spec import at_least_float32
from ..core.wrapper import Wrapper
from ..transforms.batch import BatchedStream, BatchTransform
from .closures import Identity, identity_of, lifted
from .epoch_scan import scan_read, scan_steps
from .host_scan import scan_host
from .loader import DataLoader

_WRITE = 'return one value per element, such as `{"loss": losses}` with losses of shape [batch]'


def evaluate(loader: DataLoader[Any], fn: Callable[..., Any], *, key: Any = 0) -> Any:
    """The mean of `fn(batch)` over every element of an epoch, each exactly once.

        batch [B, ...]  --fn-->  {"loss": [B], "correct": [B]}  --mean-->  {"loss": [], ...}

    `fn(batch)` or `fn(batch, mask)` returns a tree of values per element. Whatever the rule for the
    end of an epoch is, nothing is left out and nothing counts twice; padding and masked elements
    do not count; where nothing counts, the mean is nan. It runs as one compiled program, made
    once: arrays that `fn` closes over, the parameters say, are its arguments. `key` is for
    pipelines that are random.

    >>> import cereal
    >>> loader = cereal.DataLoader([cereal.RangeSource(10), cereal.BatchTransform(4)])
    >>> metrics = cereal.evaluate(loader, lambda batch: {"mean": batch, "even": batch % 2 == 0})
    >>> {name: float(value) for name, value in metrics.items()}
    {'even': 0.5, 'mean': 4.5}
    """
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"`evaluate` needs a DataLoader, got {type(loader).__name__}; write "
            f"`evaluate(DataLoader([source, BatchTransform(128)]), fn)`."
        )
    function = as_function(fn, "evaluate")
    source, state = loader.running, loader.init_state(key)
    remainder: Remainder | None = None
    steps = loader.steps_per_epoch
    if isinstance(source, Positional):
        remainder = "pad"
        steps = source.plan.ending(remainder).steps
    else:
        source = _padded(source)
        state, steps = DataLoader(source).init_state(key), source.steps_per_epoch
    source = resolve(source, state)
    if isinstance(source, Positional) and source.host:
        raise_kept((identity_on_host(source),))
    with raising(source.callbacks):
        if eager():
            run = partial(_run, loader, source, state, function, steps, remainder)
            try:
                return run(lift=True)
            except jax.errors.ConcretizationTypeError:  # it needs the value of what was lifted
                return run(lift=False)
        _, _, sums = scan_steps(source, state, None, _adding(function), steps, 1, remainder)
        return _means(sums)


def _padded(stream: Source[Any]) -> Any:
    """A stream with the same stages, whose batches pad the end of an epoch."""
    if not isinstance(stream, Wrapper):
        return stream
    source: Any = stream
    inner = _padded(source.source)
    if isinstance(source, BatchedStream):
        batch = BatchTransform(source.batch.batch_size, pad_last_batch=True)
        return dataclasses.replace(source, source=inner, batch=batch)
    return dataclasses.replace(source, source=inner)


def _run(
    loader: DataLoader[Any],
    source: Source[Any],
    state: Any,
    function: Function,
    steps: int,
    remainder: Remainder | None,
    lift: bool,
) -> Any:
    """`evaluate` outside of traced functions, by a program that the loader keeps."""
    identity, given, rebuild = _apart(function, lift)
    if isinstance(source, Positional) and source.host:

        def make_host() -> Any:
            def sums_of_rows(source: Any, rows: Any, given: Any) -> tuple[Any, Any]:
                return given, scan_read(source, rows, None, _adding(rebuild(given)), 1)[1]

            return jax.jit(sums_of_rows)

        program = loader.programs.get(identity, ("evaluate rows", lift), make_host)
        return _means_of(scan_host(source, state, given, program, steps, remainder)[2])

    def make() -> Any:
        def means(source: Any, state: Any, given: Any) -> Any:
            body = _adding(rebuild(given))
            return _means(scan_steps(source, state, None, body, steps, 1, remainder)[2])

        return jax.jit(means)

    return loader.programs.get(identity, ("evaluate", steps, lift), make)(source, state, given)


def _apart(
    function: Function, lift: bool
) -> tuple[Identity | None, Any, Callable[[Any], Function]]:
    """What tells a program of this function, what to pass to it, and the function from that."""
    fn = function.value
    found = lifted(fn) if lift else None
    if found is None:
        return identity_of(fn), None, lambda _: function
    rebuild = found.rebuild  # not `found`, which has the arrays
    return found.identity, found.arrays, lambda arrays: as_function(rebuild(arrays), "evaluate")


def _adding(function: Function) -> Any:
    """A scan's body that gives, per batch, the sums of the metrics and the number of elements."""
    with_mask = takes_second(function, "mask")

    def body(carry: None, batch: Any, mask: Any) -> tuple[None, Any]:
        try:
            values = function(batch, mask) if with_mask else function(batch)
        except Exception as error:
            note_unbatched(error, mask)
            raise
        return carry, (jax.tree_util.tree_map_with_path(summed(mask), values), _count(mask))

    def summed(mask: Any) -> Any:
        return lambda path, leaf: _masked_sum(leaf, mask, jax.tree_util.keystr(path))

    return body


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


def _count(mask: Any) -> Any:
    return jnp.sum(mask, dtype=jnp.int32)


def _means(sums: Any) -> Any:
    values, counts = sums
    count = jnp.sum(counts)
    return jax.tree.map(lambda x: _by_halves(x) / count.astype(_float(x)), values)


_means_of = jax.jit(_means)


def _by_halves(sums: Any) -> Any:
    """The sum over the first axis, in pairs, so that a million batches lose no digits."""
    sums = sums.astype(_float(sums)) if sums.dtype != jnp.int32 else jnp.sum(sums, axis=0)[None]
    while sums.shape[0] > 1:
        if sums.shape[0] % 2:
            sums = jnp.concatenate([sums, jnp.zeros_like(sums[:1])])
        sums = sums[0::2] + sums[1::2]
    return sums[0].astype(_float(sums))


def _float(x: Any) -> Any:
    return at_least_float32(x.dtype)
