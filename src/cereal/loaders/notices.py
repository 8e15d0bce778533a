"""What a state noticed inside of programs, which cannot warn: said when it comes back to Python.

A state says it in `_noticed`: a small array, and a function from it to a warning, or None. To wait
for the array, which may still be computed, would hold up the loop: it is looked at later.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import jax

from ..base.capture import callers_level, is_concrete

_waiting: deque[tuple[Any, Callable[[Any], str | None]]] = deque(maxlen=64)


def warn_of_notices(source: Any, state: Any) -> None:
    """Warns of what this state has noticed, and earlier ones, as far as it is known."""
    if not source.traits.in_place:
        return
    _waiting.extend(each for each in _noticed_in(state) if is_concrete(each[0]))
    for _ in range(len(_waiting)):
        array, in_words = _waiting.popleft()
        if array.is_deleted():
            continue
        if not array.is_ready():
            _waiting.append((array, in_words))
        elif words := in_words(array):
            warnings.warn(words, UserWarning, stacklevel=callers_level())


def _noticed_in(state: Any, inside: bool = False) -> Iterator[tuple[Any, Callable[[Any], Any]]]:
    """What the parts of a state say, and the parts of these."""

    def says(node: Any) -> bool:
        return hasattr(type(node), "_noticed") and not (inside and node is state)

    for node in filter(says, jax.tree.leaves(state, is_leaf=says)):
        yield node._noticed
        yield from _noticed_in(node, inside=True)
