"""What a source is: anything that gives elements one after another, from a state.

    Source           a stream: `next`, and a state of any kind
    └── Positional   a batch is a function of (key, position); the state is twenty bytes
        └── IndexedSource   it has a length and a batched read by index

The other two are in `positional`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

import jax

from ..base.elsewhere import refuse_elsewhere
from ..base.errors import PipelineError, said
from ..base.spec import Spec
from .execute import many_steps
from .traits import Traits

T_co = TypeVar("T_co", covariant=True)
Mask = jax.Array
_FIELDS = {"ordering"}  # fields that a source may have, although a base class has the name


class Source(ABC, Generic[T_co]):
    """Gives elements one after another: `next` takes a state and returns the next one.

        init_state(key) -> state --next--> element, mask, state --next--> ...

    A subclass is a pytree dataclass whose `next` is a pure JAX function:

    >>> import cereal, jax, jax.numpy as jnp
    >>> @cereal.pytree_dataclass
    ... class RandomWalk(cereal.Source):
    ...     steps_per_epoch: int = cereal.static_field(default=100)
    ...     def element_spec(self):
    ...         return jax.ShapeDtypeStruct((), jnp.float32)
    ...     def init_state(self, key):
    ...         return {"place": jnp.float32(0), "key": key}
    ...     def next(self, state):
    ...         key, step = jax.random.split(state["key"])
    ...         place = state["place"] + jax.random.normal(step)
    ...         return place, jnp.bool_(True), {"place": place, "key": key}
    >>> loader = cereal.DataLoader([RandomWalk(), cereal.BatchTransform(4)])
    >>> batch, state, mask = loader.next_batch(loader.init_state(jax.random.key(0)))
    >>> batch.shape
    (4,)
    """

    def __new__(cls, *_: Any, **options: Any) -> Self:
        """Raises an error for options of other libraries, which says what to write here."""
        if options:
            refuse_elsewhere(cls, options)
        return super().__new__(cls)

    @classmethod
    def _check_fields(cls, fields: tuple[str, ...]) -> None:
        """Refuses fields whose name is already a method or attribute of all sources."""
        for base in cls.__mro__[1:]:
            own = {field.name for field in dataclasses.fields(base)} if _has_fields(base) else ()
            for name in set(fields) - _FIELDS if base.__module__.startswith("cereal") else ():
                if name in vars(base) and name not in own:
                    raise PipelineError(
                        f"{cls.__name__}: a field cannot be called `{name}`, because every "
                        f"{base.__name__} has an attribute `{name}`; give the field another name."
                    )

    steps_per_epoch: int
    """How many times `next` is called in an epoch."""

    @abstractmethod
    def element_spec(self) -> Any:
        """The tree of `jax.ShapeDtypeStruct` of one element."""

    @abstractmethod
    def init_state(self, key: Any) -> Any:
        """The state at the beginning, a pytree of arrays."""

    @abstractmethod
    def next(self, state: Any) -> tuple[T_co, Mask, Any]:
        """The next element, whether it is real, and the state after it."""

    def next_many(self, state: Any, n: int) -> tuple[T_co, Mask, Any]:
        """The next n elements, stacked, their masks, and the state after them.

        By default a scan of `next`. Batches are made by this method: override it if the source can
        make n elements at once.
        """
        return many_steps(self, state, n)

    def close(self) -> None:
        """Gives back what the source holds outside of JAX, such as processes."""

    @cached_property
    def traits(self) -> Traits:
        """The properties of this source, computed once."""
        return self._describe()

    def __repr__(self) -> str:
        return said(lambda: self._label, f"{type(self).__name__}(...)")

    # What the library's own sources override

    def _describe(self) -> Traits:
        return Traits(random=None)  # not known for a user's own stream

    @property
    def _label(self) -> str:
        """The name of this source in drawings and error messages."""
        return type(self).__name__

    @cached_property
    def _spec(self) -> Spec:
        """The spec of a step; the same object as long as the source lives."""
        return Spec(self.element_spec())

    @property
    def _upstream(self) -> Source[Any] | None:
        """The source that this one reads, if a drawing should show it too."""
        return None

    def _step(self, state: Any) -> tuple[T_co, Mask, Any]:
        """`next` as it is traced. (In cereal's own sources, `next` compiles and places this.)"""
        return self.next(state)

    def _step_many(self, state: Any, n: int) -> tuple[T_co, Mask, Any]:
        """`next_many` as it is traced."""
        return self.next_many(state, n)


def check_source(source: Any, label: str) -> None:
    """Raises an error if the transform `label` was called with something that is not a source."""
    if not isinstance(source, Source):
        raise PipelineError(
            f"{label} must be called with a source, got {type(source).__name__}; write "
            f"`{label.partition('(')[0]}(...)(source)`."
        )


def _has_fields(base: type) -> bool:
    return "__dataclass_fields__" in vars(base)
