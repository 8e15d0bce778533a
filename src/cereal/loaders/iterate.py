"""Which iterator a pipeline gets, and what `iterate` refuses."""

from __future__ import annotations

from typing import Any, NoReturn

from ..core.capture import any_traced, staging
from ..core.errors import UsageError
from ..core.positional import Positional
from ..core.source import Source
from ..core.state import check_state, refuse_key
from ..core.traced_stage import current
from .batch_iterator import BatchIterator
from .host_iterator import HostIterator
from .iterator import PositionalIterator, SteppingIterator, StreamIterator
from .learnt import Learnt


def iterator_over(
    source: Source[Any],
    state: Any,
    steps: int | None,
    epochs: int | None,
    progress: bool | str,
    learnt: Learnt,
) -> BatchIterator[Any]:
    """The iterator of a pipeline from a state on."""
    if not isinstance(source, Positional):
        refuse_key(state)
        return StreamIterator(current(source, state), state, steps, epochs, progress)
    check_state(state, source._fingerprint)
    source = current(source, state)
    kind = SteppingIterator if source.traits.callbacks else PositionalIterator
    kind = HostIterator if source.traits.host else kind
    return kind(source, state, steps, epochs, progress, learnt)


def refuse_traced(arguments: Any) -> None:
    """A Python loop cannot be recorded into a program."""
    if any_traced(arguments) or staging():
        raise UsageError(
            "`iterate` is a Python loop and cannot run inside a traced function; there write "
            "`loader.scan_epoch(state, carry, body_fn)` or `loader.next_batch(state)`."
        )


def refuse_random(source: Source[Any], what: str) -> None:
    """Without a state, a random pipeline would begin with the same key every time."""
    random = source.traits.random
    if random is not False:
        why = "is random" if random else "may be random (it begins with a stream)"
        raise UsageError(
            f"this pipeline {why}, and a loader has no state: {what} would repeat the same "
            f"order every time. Write `state = loader.init_state(key)` and "
            f"`for batch, mask in loader.iterate(state):`."
        )


def refuse_positional(misplaced: tuple[Any, ...]) -> NoReturn:
    """`iterate(state, 3)`: three what?"""
    got = ", ".join(f"{each!r:.40}" for each in misplaced)
    example = misplaced[0] if type(misplaced[0]) is int else 3
    raise UsageError(
        f"`iterate` takes one argument, the state, and all else by name; got {got} besides. Write "
        f"`loader.iterate(state, steps={example})` for {example} batches, or "
        f"`loader.iterate(state, epochs={example})` for {example} epochs."
    )
