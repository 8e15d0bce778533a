"""The mean over elements that are not masked."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..base.capture import is_traced
from ..base.errors import UsageError
from ..base.spec import at_least_float32


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean of the values whose mask is True (or 1); 0 if there are none.

        values [B] or [B, ...], mask [B]

    `(values * mask[:, None]).mean()` would be wrong twice: it broadcasts to [B, B], and it counts
    the padding in the division. A mask with numbers other than 0 and 1 is an error; if the mask is
    traced, so that its numbers are not known, the mean is nan instead.

    >>> import cereal, jax.numpy as jnp
    >>> float(cereal.masked_mean(jnp.array([1.0, 3.0, 99.0]), jnp.array([True, True, False])))
    2.0
    """
    values, mask = _numbers(values, "values"), _numbers(mask, "mask")
    if values.shape[: mask.ndim] != mask.shape:
        raise UsageError(
            f"`masked_mean` needs values whose first axes are the mask's, got values of shape "
            f"{values.shape} and a mask of shape {mask.shape}; pass one value per element."
        )
    if not jnp.issubdtype(values.dtype, jnp.inexact):
        values = values.astype(jnp.float32)
    good, mask = _as_mask(mask)
    wide = mask.reshape(mask.shape + (1,) * (values.ndim - mask.ndim))
    wide = jnp.broadcast_to(wide, values.shape)
    # In float32 at least: float16 cannot count beyond 65,504, nor bfloat16 beyond 256.
    exact = at_least_float32(values.dtype)
    count = jnp.maximum(jnp.sum(wide, dtype=jnp.int32), 1).astype(exact)
    total = jnp.sum(jnp.where(wide, values, jnp.zeros_like(values)), dtype=exact)
    mean = (total / count).astype(values.dtype)
    return mean if good is None else jnp.where(good, mean, jnp.full_like(mean, jnp.nan))


def _numbers(value: Any, name: str) -> jax.Array:
    try:
        if isinstance(value, str | bytes):  # JAX would warn of a dtype of this name first
            raise TypeError
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"`masked_mean(values, mask)` needs arrays, got {type(value).__name__} ({value!r:.60}) "
            f"for `{name}`; pass one value, and one True or False, per element."
        ) from error


def _as_mask(mask: jax.Array) -> tuple[Any, jax.Array]:
    """The mask as booleans; and, if it is traced numbers, a check that they are all 0 or 1."""
    if mask.dtype == jnp.bool_:
        return None, mask
    good = jnp.all((mask == 0) | (mask == 1))
    if not is_traced(good) and not good:
        raise UsageError(
            f"`masked_mean` needs a mask of True and False, or of 1 and 0, got "
            f"{mask.dtype}{list(mask.shape)} with other numbers; write `mask > 0` for which "
            f"elements count. For weights, write `(weights * values).sum() / weights.sum()`."
        )
    return good if is_traced(good) else None, mask.astype(jnp.bool_)


def note_unbatched(error: Exception, mask: jax.Array) -> None:
    """If nothing batches: adds a note to a function's error that it got a single element."""
    if jnp.ndim(mask) == 0:
        error.add_note(
            "cereal: nothing batches in this pipeline, so `batch` was a single element, without an "
            "axis of elements; add `BatchTransform(128)` to the list of stages."
        )
