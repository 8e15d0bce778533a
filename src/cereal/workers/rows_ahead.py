"""Computes which rows the next steps read, before they are read.

One compiled call computes the rows of many steps. It runs on the CPU: on an accelerator it would
wait for the training step. Inside of callbacks JAX must not run, so NumPy computes the rows.
"""

from __future__ import annotations

from typing import Any

import jax

from ..device.transfer import to_host
from ..order.position import Remainder
from ..pipeline.execute import routed_rows, stripped
from ..pipeline.positional import Positional

_LANES = 1 << 14
_MOST_TABLES = 64 * 2**20


class Routes:
    """The rows of steps 0, 1, 2, ... from a position on."""

    def __init__(
        self,
        source: Positional[Any],
        words: Any,
        *,
        remainder: Remainder | None = None,
        steps_at_once: int | None = None,
        total: int | None = None,
        compiled: bool = True,
    ) -> None:
        self._chunks = steps_at_once is not None  # a step here is several: [steps, *lanes]
        self._each = steps_at_once or 1
        self._remainder: Remainder | None = remainder
        compiled = compiled and not source._plan.wide
        self._lanes = source._lanes_here
        lanes = source._plan.batch if self._lanes is None else max(1, self._lanes.size)
        lanes *= self._each
        most = _LANES if compiled else _LANES // 8
        self._size = max(1, most // lanes)
        if total is not None:  # a power of two: every size needs a program, so there are few sizes
            self._size = max(1, min(self._size, 1 << (max(total, 1) - 1).bit_length()))
        self._words, self._source = words, source
        self._device = None
        if compiled:
            self._source, self._words, self._device, compiled = _on_cpu(source, words)
        self._compiled = compiled
        self._begin = 0  # the first step of the block
        self._block: Any = None

    def __call__(self, step: int) -> Any:
        """The rows of a step. Steps are asked for in order; those of the last block also again."""
        while self._block is None or step >= self._begin + self._size:
            begin = 0 if self._block is None else self._begin + self._size
            rows, words = self._next_block()
            # In one line, so that Ctrl-C does not leave them half set.
            self._begin, self._block, self._words = begin, rows, words
        assert step >= self._begin
        block, at = self._block, (step - self._begin) * self._each
        return block[at : at + self._each] if self._chunks else block[at]

    def _next_block(self) -> tuple[Any, Any]:
        steps = self._size * self._each
        if self._compiled:
            with jax.default_device(self._device):
                return routed_rows(self._source, self._words, steps, self._remainder, self._lanes)
        plan = self._source._plan.ending(self._remainder)
        rows, words = plan.rows_for(to_host(self._words), steps, self._lanes)
        return self._source._route(rows), words


def _on_cpu(source: Any, words: Any) -> tuple[Any, Any, Any, bool]:
    """The source without its data, the words, and the device for a program on the CPU; and whether
    to compile.

    Tables of an order are copied from another device. If they are too large, NumPy is used instead.
    """
    light = stripped(source)
    if jax.default_backend() == "cpu":
        config: Any = jax.config
        return light, words, config.jax_default_device, True
    tables = jax.tree.leaves(light)
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS names the accelerator only
        return source, words, None, False
    if sum(x.nbytes for x in tables) > _MOST_TABLES:
        return source, words, None, False
    return jax.tree.map(to_host, light), to_host(words), cpu, True
