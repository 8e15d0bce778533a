"""Computes which rows the next steps read, before they are read.

One compiled call computes the rows of many steps. It runs on the CPU: on an accelerator it would
wait for the training step. While these are read, it computes those of the steps after them. Inside
of callbacks JAX must not run, so NumPy computes the rows.
"""

from __future__ import annotations

from typing import Any

import jax

from ..device.transfer import to_host
from ..order.position import Remainder
from ..pipeline.execute import rows_begun, stripped
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
        self._ahead: Any = None  # the block after it, which is being computed, and the words then
        self._total = total

    def __call__(self, step: int) -> Any:
        """The rows of a step. Steps are asked for in order; those of the last block also again."""
        at = self._place(step)
        return self._block[at : at + self._each] if self._chunks else self._block[at]

    def many(self, step: int, most: int) -> tuple[Any, int]:
        """The rows of up to so many steps, on a leading axis, and how many they are."""
        at = self._place(step)
        n = min(most, self._begin + self._size - step)
        n = n if self._total is None else min(n, self._total - step)
        return self._block[at : at + n], n

    def _place(self, step: int) -> int:
        """Where the rows of a step begin in the block, which is the one that has them."""
        while self._block is None or step >= self._begin + self._size:
            begin = 0 if self._block is None else self._begin + self._size
            block, words = self._ahead or self._begun(self._words)
            ahead = self._begun(words) if self._goes_on(begin) else None
            block = jax.device_get(block) if self._compiled else block
            # In one line, so that Ctrl-C does not leave them half set.
            self._begin, self._block, self._words, self._ahead = begin, block, words, ahead
        assert step >= self._begin
        return (step - self._begin) * self._each

    def _goes_on(self, begin: int) -> bool:
        """Whether the block after the one that begins at this step will be needed, too."""
        if not self._compiled:
            return False
        return begin > 0 if self._total is None else begin + self._size < self._total

    def _begun(self, words: Any) -> tuple[Any, Any]:
        """The rows of the block from these words on, and the words after it."""
        steps = self._size * self._each
        if self._compiled:
            with jax.default_device(self._device):
                return rows_begun(self._source, words, steps, self._remainder, self._lanes)
        plan = self._source._plan.ending(self._remainder)
        rows, words = plan.rows_for(to_host(words), steps, self._lanes)
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
