"""Data on the host, and functions over it, as parts of a pytree.

The pytree holds only a number, and a table gives the data of that number. (JAX's caches keep what
is static in a pytree, so they would keep the data alive.) The data lives while somebody holds it,
and then until all programs that were called are done (`lingering`).
"""

from __future__ import annotations

import itertools
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import jax

from ..base.errors import CerealError
from ..functions.function import function_name
from .lingering import linger

_TRIES, _MOMENT = 20, 0.002
_numbers = itertools.count()
_living: weakref.WeakValueDictionary[int, HostData] = weakref.WeakValueDictionary()


class HostData:
    """Data on the host, as part of a pytree without leaves.

    A subclass holds the data, and copies of a pytree share it. It lives as long as a source that
    holds it. Compiled programs know only its number.
    """

    in_programs = False  # whether a traced program reads it
    read_at = 0.0  # when a program last read it

    def __init__(self) -> None:
        self.number = next(_numbers)
        _living[self.number] = self

    def enter_program(self) -> None:
        """Called when a program that will read this data is traced."""
        self.in_programs = True
        self.before_program()

    def __del__(self, _is_finalizing: Any = sys.is_finalizing) -> None:
        # Python calls this only once for an object, even if the object lives on afterwards. When
        # the interpreter ends, the names of this module may be gone.
        if self.in_programs and not _is_finalizing() and linger(self):
            _living[self.number] = self  # the garbage collector has cleared the weak reference

    def digest_of(self) -> Any:
        """A value that is the same in every process and differs for other data; names caches."""
        raise TypeError(f"{type(self).__name__} has no digest")

    def before_program(self) -> None:
        """Called before a program that reads this data is traced; subclasses prepare the data."""

    def __init_subclass__(cls) -> None:
        jax.tree_util.register_pytree_node(
            cls, lambda data: ((), data.number), lambda number, _: living(number)
        )


def living(number: int) -> Any:
    """The data that has this number."""
    for _ in range(_TRIES):
        found = _living.get(number)
        if found is not None:
            found.read_at = time.monotonic()
            return found
        # The garbage collector clears weak references before it calls `__del__`, which puts the
        # data back. So it may be there a moment later.
        time.sleep(_MOMENT)
    raise CerealError(
        "the data of a source on the host is gone: all sources and loaders that held it were "
        "deleted while a compiled program still reads it; keep the loader."
    )


class HostFunction(HostData):
    """A user's Python function in a host pipeline, with its first result (`sample`)."""

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
    """Names the programs that read this data; errors of their callbacks are kept under it."""
    return tuple(each.number for each in host_data_in(tree))
