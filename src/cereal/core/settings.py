"""JAX's settings belong to a thread; a worker takes over those of who asked for its work."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import jax

_NOTHING = contextlib.nullcontext()


class Settings(NamedTuple):
    """What a thread must have for a pipeline to mean the same."""

    wide: bool
    device: Any
    precision: Any
    keys: Any
    promotion: Any

    def __call__(self, *, executes: bool = True) -> contextlib.AbstractContextManager[Any]:
        """Within it, this thread has them; `executes=False`: JAX refuses to run anything."""
        here = current_settings()
        if here == self and executes:
            return _NOTHING
        stack = contextlib.ExitStack()
        if here.wide != self.wide:
            stack.enter_context(jax.enable_x64(self.wide))
        if here.device != self.device:
            stack.enter_context(jax.default_device(self.device))
        if here.precision != self.precision:
            stack.enter_context(jax.default_matmul_precision(self.precision))
        if here.keys != self.keys:
            stack.enter_context(jax.default_prng_impl(self.keys))
        if here.promotion != self.promotion:
            stack.enter_context(jax.numpy_dtype_promotion(self.promotion))
        if not executes:
            stack.enter_context(jax.no_execution())
        return stack


def current_settings() -> Settings:
    """The settings of this thread."""
    config: Any = jax.config
    return Settings(
        config.jax_enable_x64,
        config.jax_default_device,
        config.jax_default_matmul_precision,
        config.jax_default_prng_impl,
        config.jax_numpy_dtype_promotion,
    )
