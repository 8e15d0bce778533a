"""What adapters to other libraries share: they hold one environment, and check what it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..core.errors import PipelineError
from ..core.held import Held


class Adapted:
    """An adapter around an environment of another library."""

    held: Held

    @property
    def env(self) -> Any:
        """The environment inside."""
        return self.held.value

    @property
    def name(self) -> str:
        """What a drawing calls it."""
        return type(getattr(self.env, "unwrapped", self.env)).__name__


def check_has(env: Any, names: Sequence[str], owner: str, write: str) -> None:
    """Refuses what lacks a method of the library's environments."""
    missing = [name for name in names if not hasattr(env, name)]
    if missing:
        library = owner.removesuffix("Environment")
        raise PipelineError(
            f"{owner}: `env` must be an environment of {library}, got {type(env).__name__}, which "
            f"has no `{missing[0]}`; write `{write}`."
        )


def layers(env: Any, inside: str) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """An environment and those that it wraps, each with the names of its classes.

    By name, so that wrappers of users and of other libraries count, and nothing is imported.
    """
    while env is not None:
        yield env, tuple(kind.__name__ for kind in type(env).__mro__)
        env = getattr(env, "__dict__", {}).get(inside)  # not by getattr: wrappers pass it on


def is_a(names: tuple[str, ...], *endings: str) -> bool:
    """Whether a class, or one that it derives from, is called so."""
    return any(name.endswith(endings) for name in names)
