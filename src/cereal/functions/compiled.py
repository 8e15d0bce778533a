"""Functions that are traced at every call. Equal traces share one compiled program."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import jax

from ..base.capture import eager
from .meaning import Traced, trace


class Latest:
    """A table that keeps the values that were used last; thread-safe."""

    most = 64

    def __init__(self, most: int | None = None) -> None:
        if most is not None:
            self.most = most
        self._lock = threading.RLock()
        self._made: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Any] = lambda: None) -> Any:
        """The value of a key; `make()` makes it if there is none."""
        with self._lock:
            found = self._made.get(key)
            found = make() if found is None else found
            return None if found is None else self.put(key, found)

    def put(self, key: Hashable, value: Any) -> Any:
        """Keeps a value. If the table is full, drops the one that was unused for longest."""
        with self._lock:
            self._made.pop(key, None)
            self._made[key] = value
            if len(self._made) > self.most:
                self._made.popitem(last=False)
            return value

    def __len__(self) -> int:
        return len(self._made)

    def clear(self) -> None:
        with self._lock:
            self._made.clear()


compiled = Latest()


def compiled_once(
    key: Hashable, traced: Traced, run: Callable[..., Any], donate: tuple[int, ...] = ()
) -> Callable[..., Any]:
    """`run`, compiled. It calls `traced`, and depends on nothing else that is not in `key`."""
    make = lambda: jax.jit(lambda *args: run(*args), donate_argnums=donate)  # noqa: E731
    return make() if traced.meaning is None else compiled.get(key, make)


class TracedAgain:
    """A function that is traced once for each kind of arguments, while this object lives.

    `donate_first`: the program may overwrite the arrays of the first argument.
    """

    def __init__(self, fn: Callable[..., Any], *, donate_first: bool = False) -> None:
        self._fn, self._donate_first = fn, donate_first
        self._traced: dict[Hashable, tuple[Any, list[Any]]] = {}

    def __call__(self, *args: Any) -> Any:
        run, given = self.prepared(*args)
        return run(*given)

    def prepared(self, *args: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The compiled program, and what to call it with."""
        leaves, kind = jax.tree.leaves(args), kind_of(args)
        if kind not in self._traced:
            traced, arrays = trace(self._fn, *args, compiled_only=eager())
            if self._donate_first:
                run = compiled_once(("donated", traced), traced, _of_two(traced), donate=(1,))
            else:
                run = compiled_once(traced, traced, traced)
            self._traced[kind] = run, arrays
        run, arrays = self._traced[kind]
        if not self._donate_first:
            return run, (arrays, leaves)
        first = len(jax.tree.leaves(args[:1]))
        return run, (arrays, leaves[:first], leaves[first:])


def _of_two(traced: Traced) -> Callable[..., Any]:
    return lambda arrays, first, others: traced(arrays, [*first, *others])


def kind_of(values: Any) -> Hashable:
    """The structure and types of a tree of arrays, or of their specs."""
    leaves, structure = jax.tree.flatten(values)
    return structure, tuple(map(jax.typeof, leaves))
