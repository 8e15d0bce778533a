"""Which iterator a pipeline gets, and what `iterate` refuses."""

from __future__ import annotations

from typing import Any, NoReturn

from ...base.capture import any_traced, staging
from ...base.errors import UsageError
from ...functions.traced_stage import current
from ...pipeline.positional import Positional
from ...pipeline.source import Source
from ...pipeline.state import check_state, refuse_key
from ..notices import warn_of_notices
from .batch_iterator import BatchIterator
from .host_iterator import HostIterator
from .iterator import PositionalIterator, SteppingIterator
from .learnt import Learnt
from .stream_iterator import StreamIterator


def iterator_over(
    source: Source[Any],
    state: Any,
    steps: int | None,
    epochs: int | None,
    progress: bool | str,
    learnt: Learnt,
) -> BatchIterator[Any]:
    """An iterator over a pipeline that begins at a state."""
    if not isinstance(source, Positional):
        refuse_key(state)
        warn_of_notices(source, state)
        return StreamIterator(current(source, state), state, steps, epochs, progress)
    check_state(state, source._fingerprint)
    source = current(source, state)
    kind = SteppingIterator if source.traits.callbacks else PositionalIterator
    kind = HostIterator if source.traits.host else kind
    return kind(source, state, steps, epochs, progress, learnt)


def refuse_traced(arguments: Any) -> None:
    """Refuses `iterate` inside a traced function: it is a Python loop."""
    if any_traced(arguments) or staging():
        raise UsageError(
            "`iterate` is a Python loop and cannot run inside a traced function; there write "
            "`loader.scan_epoch(state, carry, body_fn)` or `loader.next_batch(state)`."
        )


def refuse_random(source: Source[Any], what: str) -> None:
    """Refuses a random pipeline without a state: it would begin with the same key every time."""
    random = source.traits.random
    if random is not False:
        why = "is random" if random else "may be random (it begins with a stream)"
        raise UsageError(
            f"this pipeline {why}, and a loader has no state: {what} would repeat the same "
            f"order every time. Write `state = loader.init_state(key)` and "
            f"`for batch, mask in loader.iterate(state):`."
        )


def refuse_positional(misplaced: tuple[Any, ...]) -> NoReturn:
    """Refuses `iterate(state, 3)`: it may mean three steps or three epochs."""
    got = ", ".join(f"{each!r:.40}" for each in misplaced)
    example = misplaced[0] if type(misplaced[0]) is int else 3
    raise UsageError(
        f"`iterate` takes one argument, the state, and options by name; got {got} as well. Write "
        f"`loader.iterate(state, steps={example})` for {example} batches, or "
        f"`loader.iterate(state, epochs={example})` for {example} epochs."
    )
