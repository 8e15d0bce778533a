"""The compiled programs of one loader, found again by what their functions are made of."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import jax

from .closures import Identity, identity_of
from .epoch_scan import check_body, checked_body, scan_read, scan_steps

_MOST = 32


class Programs:
    """Programs, the latest used last; a few are kept, and they die with the loader."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._made: OrderedDict[Hashable, tuple[Any, Any]] = OrderedDict()

    def get(self, identity: Identity | None, rest: Hashable, make: Callable[[], Any]) -> Any:
        """The program of a function of this identity, made if there is none yet."""
        if identity is None:
            return make()
        key = (identity.key, rest)
        with self._lock:
            found = self._made.pop(key, None)
            found = (make(), identity.held) if found is None else found
            self._made[key] = found
            if len(self._made) > _MOST:
                self._made.popitem(last=False)
            return found[0]

    # Closures: JAX's caches would keep the arguments of a `partial` alive, and with a body that
    # refers to the loader the data.

    def over_steps(self, body_fn: Any, steps: int, unroll: int | bool, feedback: Any = None) -> Any:
        """`(source, state, carry) -> (state, carry, outputs)` for so many steps."""

        def make() -> Any:
            check_body(body_fn, feedback)

            def scan_epoch(source: Any, state: Any, carry: Any) -> tuple[Any, Any, Any]:
                return scan_steps(source, state, carry, body_fn, steps, unroll, feedback=feedback)

            return jax.jit(scan_epoch)

        return self._of(body_fn, feedback, rest=("steps", steps, unroll), make=make)

    def over_rows(self, body_fn: Any, unroll: int | bool) -> Any:
        """`(source, rows, carry) -> (carry, outputs)` for rows that were fetched."""

        def make() -> Any:
            check_body(body_fn)
            body = checked_body(body_fn)

            def scan_rows(source: Any, rows: Any, carry: Any) -> tuple[Any, Any]:
                return scan_read(source, rows, carry, body, unroll)

            return jax.jit(scan_rows)

        return self._of(body_fn, rest=("rows", unroll), make=make)

    def _of(self, *functions: Any, rest: Hashable, make: Callable[[], Any]) -> Any:
        """The very same functions are known by themselves, as `jax.jit` knows them; new ones by all
        that they are made of. Arrays that they refer to count in both."""
        same = identity_of(functions, deep=False)
        if same is None:
            return make()
        same = Identity((*map(id, functions), same.key), same.held)
        return self.get(same, rest, lambda: self.get(identity_of(functions), rest, make))
