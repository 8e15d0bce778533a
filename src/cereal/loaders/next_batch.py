"""`loader.next_batch`, as an object that `jax.jit` recognises."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from ..base.capture import eager, is_concrete
from ..base.errors import UsageError
from ..pipeline.execute import run
from ..pipeline.positional import Positional
from ..pipeline.source import Mask, Source
from ..pipeline.state import PipelineState, check_state, check_within, host_words
from .flax_states import enter_into_flax
from .many_hosts.spreading import Together

T = TypeVar("T")
_MISSING = object()


class NextBatch(Generic[T]):
    """`next_batch(state) -> (batch, state, mask)`: one step of the pipeline.

    A loader makes one such object and returns it at every access. A bound method would be a new
    object each time, and `jax.jit(loader.next_batch)` in a loop would trace each time. The object
    refers to the source and not to the loader, so there is no cycle that keeps the data alive.
    """

    __name__ = "next_batch"

    def __init__(self, source: Source[T], together: Together) -> None:
        self._source, self._together = source, together
        self._looked, self._step = False, 0

    def __call__(self, state: Any = _MISSING) -> tuple[T, Any, Mask]:
        if state is _MISSING:
            raise UsageError(
                "`next_batch` needs a state; write `state = loader.init_state(key)`, then "
                "`batch, state, mask = loader.next_batch(state)`."
            )
        enter_into_flax()
        if isinstance(self._source, Positional):
            check_state(state, self._source._fingerprint)
            if not self._looked:
                self._look(self._source, state)
        if self._together.needed and eager():
            return self._with_others(state)
        batch, mask, state = run(self._source, state)
        return batch, state, mask

    def _with_others(self, state: Any) -> tuple[T, Any, Mask]:
        """The same, where several processes make one batch."""
        if self._step == 0:
            self._together.begin(repr(state) if isinstance(state, PipelineState) else "")
        batch, mask, state = run(self._source, state)
        self._together.made(self._step, batch, mask)
        self._step += 1
        return batch, state, mask

    def _look(self, source: Positional[T], state: PipelineState) -> None:
        """Checks the position of the first state, which may come from a damaged checkpoint.

        Only of the first one: waiting for the state's words at every step would halve the speed.
        """
        words = state.words
        if is_concrete(words) and (words.is_fully_addressable or words.is_fully_replicated):
            check_within(host_words(state)[3], source.traits.length)
            self._looked = True
