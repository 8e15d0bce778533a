"""Masks of full batches, for batches that no program makes.

A program that makes a batch makes its mask too. Where a batch is only moved to the device, moving a
mask too would cost a GPU 80 µs, so masks are made ahead, many in one call. Each is handed out once,
since the user may donate it to a program.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from .placement import place

_AT_ONCE = 16


@partial(jax.jit, static_argnames="lanes")
def _full(lanes: tuple[int, ...]) -> list[Any]:
    return [jnp.ones(lanes, jnp.bool_) for _ in range(_AT_ONCE)]


class FullMasks:
    """Belongs to one iterator: batches of one shape, for one place."""

    def __init__(self, lanes: tuple[int, ...], placement: Any) -> None:
        self._lanes, self._placement = lanes, placement
        self._made: list[Any] = []
        self._device: Any = None

    def take(self) -> Any:
        """A mask that is True everywhere, where an array would be put now."""
        config: Any = jax.config
        device = config.jax_default_device
        if not self._made or device != self._device:
            made = _full(self._lanes)
            self._made = made if self._placement is None else place(made, self._placement)
            self._device = device
        return self._made.pop()
