"""Arithmetic that leaves padding out."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .errors import UsageError
from .spec import at_least_float32


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean of the values whose mask is True; 0 if there are none.

        values [B] or [B, ...], mask [B]

    Multiplying by `mask[:, None]` and taking the mean is wrong twice: it broadcasts to [B, B],
    and it divides by the padding too.

    >>> import cereal, jax.numpy as jnp
    >>> float(cereal.masked_mean(jnp.array([1.0, 3.0, 99.0]), jnp.array([True, True, False])))
    2.0
    """
    values, mask = jnp.asarray(values), jnp.asarray(mask)
    if values.shape[: mask.ndim] != mask.shape:
        raise UsageError(
            f"`masked_mean` needs values whose first axes are the mask's, got values of shape "
            f"{values.shape} and a mask of shape {mask.shape}; pass one value per element."
        )
    if not jnp.issubdtype(values.dtype, jnp.inexact):
        values = values.astype(jnp.float32)
    wide = mask.astype(jnp.bool_).reshape(mask.shape + (1,) * (values.ndim - mask.ndim))
    wide = jnp.broadcast_to(wide, values.shape)
    # In float32 at least: float16 cannot count beyond 65,504, nor bfloat16 beyond 256.
    exact = at_least_float32(values.dtype)
    count = jnp.maximum(jnp.sum(wide, dtype=jnp.int32), 1).astype(exact)
    total = jnp.sum(jnp.where(wide, values, jnp.zeros_like(values)), dtype=exact)
    return (total / count).astype(values.dtype)


def note_unbatched(error: Exception, mask: jax.Array) -> None:
    """Writes into an error of a function of batches that it was given a single element."""
    if jnp.ndim(mask) == 0:
        error.add_note(
            "cereal: nothing batches in this pipeline, so `batch` was a single element, without an "
            "axis of elements; add `BatchTransform(128)` to the list of stages."
        )
