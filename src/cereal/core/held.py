"""Objects of other libraries inside a pytree."""

from __future__ import annotations

from typing import Any, ClassVar

from .errors import PipelineError
from .pytree import is_pytree, pytree_dataclass, static_field


@pytree_dataclass
class Held:
    """An object that JAX may or may not see into.

    A pytree is a child: its arrays are arguments of compiled programs. Anything else is structure:
    compared by its own equality, most often by identity.
    """

    holds_code: ClassVar[bool] = True

    tree: Any
    fixed: Any = static_field(default=None)

    @property
    def value(self) -> Any:
        """The object itself."""
        return self.tree if self.fixed is None else self.fixed


def hold(value: Any, owner: str) -> Held:
    """Holds what is a pytree or can be hashed."""
    if is_pytree(value):
        return Held(value)
    try:
        hash(value)
    except TypeError as error:
        raise PipelineError(
            f"{owner}: {type(value).__name__} is neither a pytree nor hashable, so JAX cannot tell "
            f"whether it changed; write `@cereal.pytree_dataclass` above its class."
        ) from error
    return Held(None, value)
