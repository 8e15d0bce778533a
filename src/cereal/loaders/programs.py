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

    def over_steps(self, body_fn: Any, steps: int, unroll: int | bool) -> Any:
        """`(source, state, carry) -> (state, carry, outputs)` for so many steps."""

        def make() -> Any:
            check_body(body_fn)

            def scan_epoch(source: Any, state: Any, carry: Any) -> tuple[Any, Any, Any]:
                return scan_steps(source, state, carry, body_fn, steps, unroll)

            return jax.jit(scan_epoch)

        return self._of_body(body_fn, ("steps", steps, unroll), make)

    def over_rows(self, body_fn: Any, unroll: int | bool) -> Any:
        """`(source, rows, carry) -> (carry, outputs)` for rows that were fetched."""

        def make() -> Any:
            check_body(body_fn)
            body = checked_body(body_fn)

            def scan_rows(source: Any, rows: Any, carry: Any) -> tuple[Any, Any]:
                return scan_read(source, rows, carry, body, unroll)

            return jax.jit(scan_rows)

        return self._of_body(body_fn, ("rows", unroll), make)

    def _of_body(self, body_fn: Any, rest: Hashable, make: Callable[[], Any]) -> Any:
        """The very same function is known by itself, as `jax.jit` knows it; a new one by all that
        it is made of. Arrays that it refers to count in both."""
        same = identity_of(body_fn, deep=False)
        if same is None:
            return make()
        same = Identity((id(body_fn), same.key), same.held)
        return self.get(same, rest, lambda: self.get(identity_of(body_fn), rest, make))
