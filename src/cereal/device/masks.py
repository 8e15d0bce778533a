"""Masks that are combined; and masks of full batches, for batches that are only moved.

A program that makes a batch also makes its mask. If no program makes the batch, moving a mask to a
GPU would cost 80 µs more. So many masks are made in one call, ahead of time. Each mask is handed
out once, since the user may donate it to a program.

Over a mesh, the program makes every part on its device: to move a mask there takes ten times as
long.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp

from .placement import place

_AT_ONCE = 16


@partial(jax.jit, static_argnames="lanes")
def _full(lanes: tuple[int, ...]) -> list[Any]:
    return [jnp.ones(lanes, jnp.bool_) for _ in range(_AT_ONCE)]


@lru_cache(maxsize=64)
def _full_over(lanes: tuple[int, ...], sharding: Any) -> Any:
    return jax.jit(lambda: _full(lanes), out_shardings=sharding)


def both(one: Any, other: Any) -> Any:
    """Where both masks are True. One may be finer: it has a mask inside of each element.

    [B] and [B, T]  ->  [B, T]
    """
    one, other = with_axes(one, other.ndim), with_axes(other, one.ndim)
    return one & other


def with_axes(mask: Any, ndim: int) -> Any:
    """The mask with as many axes, those at the end of length 1, so that it broadcasts."""
    return mask.reshape(mask.shape + (1,) * (ndim - mask.ndim))


class FullMasks:
    """Masks for one iterator, whose batches have one shape and go to one place; with `spread`, over
    the mesh of a sharding."""

    def __init__(self, lanes: tuple[int, ...], placement: Any, *, spread: bool = False) -> None:
        self._lanes, self._placement, self._spread = lanes, placement, spread
        self._made: list[Any] = []
        self._device: Any = None

    def take(self) -> Any:
        """A mask that is all True, on the device where JAX would put a new array now."""
        config: Any = jax.config
        device = config.jax_default_device
        if not self._made or device != self._device:
            self._made, self._device = self._more(), device
        return self._made.pop()

    def _more(self) -> list[Any]:
        if self._spread:
            return _full_over(self._lanes, self._placement)()
        made = _full(self._lanes)
        return made if self._placement is None else place(made, self._placement)
