"""Objects of other libraries inside a pytree."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from ..base.errors import PipelineError
from ..base.pytree import is_pytree, pytree_dataclass, static_field

_WRITE = "write `@cereal.pytree_dataclass` above its class"


@pytree_dataclass
class Opaque:
    """Holds an object that may or may not be a pytree.

    A pytree is a child: its arrays are arguments of compiled programs. Anything else is part of the
    structure: it is compared by its own `==`, which is most often identity.
    """

    holds_code: ClassVar[bool] = True

    tree: Any
    fixed: Any = static_field(default=None)

    @property
    def value(self) -> Any:
        return self.tree if self.fixed is None else self.fixed


H = TypeVar("H", bound=Opaque)


def hold(value: Any, owner: str, write: str = _WRITE, kind: type[H] = Opaque) -> H:
    """Holds what is a pytree or can be hashed; `write` says in the error what to do otherwise."""
    if is_pytree(value):
        return kind(value)
    try:
        hash(value)
    except TypeError as error:
        raise PipelineError(
            f"{owner}: {type(value).__name__} is neither a pytree nor hashable, so JAX cannot tell "
            f"whether it changed; {write}."
        ) from error
    return kind(None, value)
