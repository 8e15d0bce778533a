"""JAX's settings belong to a thread; a worker takes over those of who asked for its work."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import jax


class Settings(NamedTuple):
    """What a thread must have for a pipeline to mean the same."""

    wide: bool
    device: Any

    @contextlib.contextmanager
    def __call__(self, *, executes: bool = True) -> Any:
        """Within it, this thread has them; `executes=False`: JAX refuses to run anything."""
        with contextlib.ExitStack() as stack:
            here = current_settings()
            if here.wide != self.wide:
                stack.enter_context(jax.enable_x64(self.wide))
            if here.device != self.device:
                stack.enter_context(jax.default_device(self.device))
            if not executes:
                stack.enter_context(jax.no_execution())
            yield


def current_settings() -> Settings:
    """The settings of this thread."""
    config: Any = jax.config
    return Settings(config.jax_enable_x64, config.jax_default_device)
