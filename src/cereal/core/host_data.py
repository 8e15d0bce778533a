"""Data on the host, and functions over it, as parts of a pytree.

The pytree holds a number, under which the living data is found: JAX's caches keep what is static
in a pytree, and would keep the data alive. It lives as long as somebody holds it, and then until
the programs that were called are done (`lingering`).
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable
from typing import Any

import jax

from .errors import CerealError
from .function import function_name
from .lingering import linger

_TRIES, _MOMENT = 20, 0.002
_numbers = itertools.count()
_living: weakref.WeakValueDictionary[int, HostData] = weakref.WeakValueDictionary()


class HostData:
    """Data on the host, as part of a pytree without leaves.

    A subclass holds the data; copies of a pytree share it. It lives as long as a source that
    has it, however many compiled programs know its number.
    """

    in_programs = False  # whether a program that was traced reads it
    read_at = 0.0  # when one last did

    def __init__(self) -> None:
        self.number = next(_numbers)
        _living[self.number] = self

    def enter_program(self) -> None:
        """Called when a program that will read this data is traced."""
        self.in_programs = True
        self.before_program()

    def __del__(self) -> None:
        # Python calls this once in the life of an object, which may go on afterwards.
        if self.in_programs and linger(self):
            _living[self.number] = self  # the collector of cycles has cleared weak references

    def digest_of(self) -> Any:
        """What tells this data from other data, in any process; for the names of caches."""
        raise TypeError(f"{type(self).__name__} has no digest")

    def before_program(self) -> None:
        """What there is to do before a program may read it."""

    def __init_subclass__(cls) -> None:
        jax.tree_util.register_pytree_node(
            cls, lambda data: ((), data.number), lambda number, _: living(number)
        )


def living(number: int) -> Any:
    """The data of this number."""
    for _ in range(_TRIES):
        found = _living.get(number)
        if found is not None:
            found.read_at = time.monotonic()
            return found
        time.sleep(_MOMENT)  # the collector clears weak references before it calls `__del__`
    raise CerealError(
        "the data of a source on the host is gone: all sources and loaders that held it were "
        "deleted while a compiled program still reads it; keep the loader."
    )


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
        return self._called or function_name(self.fn)

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
