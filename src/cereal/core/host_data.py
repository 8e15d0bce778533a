"""Data on the host, and functions over it, as parts of a pytree.

The pytree holds a number, under which the living data is found: JAX's caches keep what is static
in a pytree, and would keep the data alive.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import jax

from .errors import CerealError

_numbers = itertools.count()
_living: weakref.WeakValueDictionary[int, HostData] = weakref.WeakValueDictionary()


class HostData:
    """Data on the host, as part of a pytree without leaves.

    A subclass holds the data; copies of a pytree share it. It lives as long as a source that
    has it, however many compiled programs know its number.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        _living[self.number] = self

    def digest_of(self) -> Any:
        """What tells this data from other data, in any process; for the names of caches."""
        raise TypeError(f"{type(self).__name__} has no digest")

    def before_program(self) -> None:
        """Called when a program that will read this data is traced."""

    def __init_subclass__(cls) -> None:
        jax.tree_util.register_pytree_node(
            cls, lambda data: ((), data.number), lambda number, _: living(number)
        )


def living(number: int) -> Any:
    """The data of this number."""
    try:
        return _living[number]
    except KeyError:
        raise CerealError(
            "the data of a source on the host is gone: all sources and loaders that held it were "
            "deleted while a compiled program still reads it; keep the loader."
        ) from None


class HostFunction(HostData):
    """A user's Python function in a host pipeline, with what it gave first."""

    def __init__(self, fn: Callable[..., Any], sample: Any = None, called: str = "") -> None:
        super().__init__()
        self.fn = fn
        self.sample = sample
        self._called = called

    def __call__(self, *args: Any) -> Any:
        return self.fn(*args)

    @property
    def name(self) -> str:
        inner = getattr(self.fn, "func", self.fn)  # functools.partial
        return self._called or getattr(inner, "__name__", type(inner).__name__)

    def digest_of(self) -> Any:
        return self.fn

    def __reduce__(self) -> tuple[Any, ...]:
        return HostFunction, (self.fn, self.sample, self._called)


def host_data_in(tree: Any) -> list[HostData]:
    """All data on the host that a pytree holds."""
    found = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, HostData))
    return [each for each in found if isinstance(each, HostData)]


def identity_on_host(tree: Any) -> tuple[int, ...]:
    """What tells programs that read this data from others; for the errors of their callbacks."""
    return tuple(each.number for each in host_data_in(tree))
