"""Single steps and elements of a loader, by their number."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..base.errors import UsageError
from ..base.numbers import as_count
from ..device.placement import is_spread, layout, put_words
from ..device.transfer import to_host
from ..functions.traced_stage import current
from ..order.position import starts
from ..pipeline.elements import read_one
from ..pipeline.pipeline import elements_of
from ..pipeline.positional import Positional
from ..pipeline.state import PipelineState, key_words, make_words


def positional(source: Any, name: str) -> Positional[Any]:
    """The source, if it is indexed; an error that names the method if not."""
    if not isinstance(source, Positional):
        raise UsageError(
            f"`{name}` needs an indexed pipeline; {source._label} is a stream, whose "
            f"batches depend on those before: step through it with `next_batch`."
        )
    return source


def steps_per_epoch(source: Any) -> int:
    """The number of steps in a whole epoch; an error if nobody knows it."""
    if source.traits.unknown_length:
        raise UsageError(
            "the number of batches in an epoch is not known: the data is an iterator. Pass "
            "`IterableSource(make_iterator, length=...)`, or `steps=` to `scan_epoch`; "
            "`iterate` ends with the data."
        )
    return source.steps_per_epoch


def state_at(source: Positional[Any], key: Any, step: int) -> PipelineState:
    """The state before a step, counted from 0 across epochs."""
    step = as_count(step, "step", "state_at", 0)
    epoch, offset = starts(np, 0, 0, step, **source._plan.arithmetic)
    key0, key1 = to_host(key_words(key)).tolist()
    words = make_words((key0, key1), int(epoch), int(offset))
    return PipelineState(put_words(words, source.traits.placement), source._fingerprint)


def indices_at(source: Positional[Any], key: Any, step: int) -> np.ndarray:
    """The indices of the elements of a step, computed on the host."""
    rows, _ = source._plan.rows_for(to_host(state_at(source, key, step).words), 1)
    index = rows.index.reshape(-1)
    return index if rows.valid is None else index[rows.valid.reshape(-1)]


def read_element(source: Positional[Any], index: int, key: Any, epoch: int) -> Any:
    """The element at an index, before batching."""
    elements = elements_of(current(source, None))
    last = len(elements) - 1
    whole = as_count(index, "index", "read_element", 0, last, error=UsageError)
    epoch = as_count(epoch, "epoch", "read_element", 0)
    return read_one(elements, whole, to_host(key_words(key)), epoch)


def abstract_batch(source: Any) -> tuple[Any, jax.ShapeDtypeStruct]:
    """A batch and its mask, as shapes, dtypes and shardings."""
    spec, placement = source.element_spec(), source.traits.placement
    mask = jax.ShapeDtypeStruct(source.traits.mask_shape, np.bool_)
    if not is_spread(placement):
        sharding = placement if isinstance(placement, jax.sharding.Sharding) else None
        if sharding is None:
            return spec, mask
        return jax.tree.map(_placed, (spec, mask), layout((spec, mask), sharding))
    return jax.tree.map(_placed, spec, placement.of(spec)), _placed(mask, placement.mask)


def _placed(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
