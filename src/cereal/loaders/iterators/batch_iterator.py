"""What all iterators over batches share: threads take turns, the end, the state.

The last thing that `next()` does is to change one reference or one number. So an interrupt at any
line, or another thread that reads `state`, finds a batch either handed out or not: never half.
"""

from __future__ import annotations

import threading
import warnings
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Generic, TypeVar

from ...base.errors import EpochWarning, UsageError
from ...base.unseen import raise_unseen
from ...pipeline.source import Mask
from ...pipeline.walk import Key
from .checkpointable import nothing, read_from, write_into

T = TypeVar("T")
R = TypeVar("R")


class BatchIterator(Iterator[tuple[T, Mask]], Generic[T]):
    """An iterator over `(batch, mask)`; `loader.iterate` makes it.

    Its `state` is the state after the last batch that it gave; to continue from another one, assign
    to it. Threads may share an iterator: they take turns, each batch goes to exactly one of them,
    and `state` is the one after all these batches. (A generator would raise, but only when two
    threads happen to call it at the same moment.)

    >>> import cereal
    >>> loader = cereal.DataLoader([cereal.RangeSource(10), cereal.BatchTransform(4)])
    >>> batches = loader.iterate(loader.init_state(0))
    >>> batch, mask = next(batches)
    >>> batches.state
    PipelineState(key=(0, 0), epoch=0, offset=4)
    """

    _bar: Any
    # The key and the epoch that it begins with, if it is to run that epoch from beginning to end
    # and the batches depend on the key; otherwise None.
    began: tuple[Key, int] | None = None
    together: Any = None  # what the processes of a job do together
    _begun_together, _step = False, 0

    def __init__(self) -> None:
        # Two locks, both used by `with`, so that no interrupt leaves them locked. Other threads
        # wait at the first; a second call in the same thread is refused at the second.
        self._turn, self._busy = threading.RLock(), threading.Lock()
        self._loops, self._ended = 0, False
        self._ended_in = 0  # the thread whose loop came to the end

    def __iter__(self) -> BatchIterator[T]:
        # Warns only if one loop took all batches: `while chunk := list(islice(batches, 8))` asks
        # once more, rightly. And only in that thread: of several that share it, one may be late.
        if self._ended and self._loops == 1 and self._ended_in == threading.get_ident():
            warnings.warn(
                "this iterator has handed out all its batches, and a loop over it does nothing; "
                "for the next epoch write `batches = loader.iterate(batches.state)`, and for "
                "several in one loop `loader.iterate(state, epochs=10)`.",
                EpochWarning,
                stacklevel=2,
            )
        self._loops += 1
        return self

    def __next__(self) -> tuple[T, Mask]:
        with self._turn:
            self._refuse_if_busy()
            with self._busy:
                if self.together is not None and self.together.needed:
                    return self._advance_together()
                return self._advance()

    def _advance_together(self) -> tuple[T, Mask]:
        """The same, where several processes make one batch."""
        if not self._begun_together:
            self.together.begin(self._position())
            self._begun_together, self._step = True, 0
        pair = self._advance()
        self.together.made(self._step, *pair)
        self._step += 1
        return pair

    def _position(self) -> str:
        """Words that say where it is, if it knows."""
        return ""

    def _refuse_if_busy(self) -> None:
        if self._busy.locked():
            raise UsageError(
                "this iterator is already making a batch, and something that runs meanwhile in the "
                "same thread (a stage's function, a signal handler) asks it for another one or "
                "sets its state; use an iterator of its own there, `loader.iterate(batches.state)`."
            )

    @abstractmethod
    def _advance(self) -> tuple[T, Mask]:
        """The next batch, or StopIteration; only one thread calls this at a time."""

    @property
    @abstractmethod
    def _left(self) -> int | None:
        """How many batches are left; None: there is no end."""

    def _end_if_done(self) -> None:
        """Before a batch is made: ends the iteration if there is none left."""
        raise_unseen()
        left = self._left
        if left is not None and left <= 0:
            self._bar.close()
            self.close()
            if not self._ended:
                self._note_end()
                self._ended_in = threading.get_ident()
            self._ended = True
            raise StopIteration

    def _note_end(self) -> None:
        """The iteration has come to its end."""

    def close(self) -> None:
        """Stops reading ahead; dropping the iterator does the same."""

    def __enter__(self) -> BatchIterator[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __length_hint__(self) -> int:
        return max(0, self._left or 0)

    @property
    def state(self) -> Any:
        """The state after the last batch handed out; a copy, so that it may be donated."""
        return self._state_now()

    @state.setter
    def state(self, state: Any) -> None:
        with self._turn:
            self._refuse_if_busy()
            with self._busy:
                self._set_state(state)
                self._ended = self._begun_together = False

    def feed_back(self, fn: Callable[..., Any], *args: Any) -> None:
        """Changes the state: it becomes `fn(state, *args)`, as `feedback` does in `scan_epoch`.

            for batch, mask in batches:
                params, priority = train(params, batch, mask)
                batches.feed_back(cereal.rl.set_priorities, batch["index"], priority)
                batches.feed_back(cereal.rl.set_loader_policy_state, {"params": params})

        `fn` is compiled. A replay buffer is changed in place; `batches.state = fn(batches.state)`
        would copy it twice.
        """
        with self._turn:
            self._refuse_if_busy()
            with self._busy:
                self._change(fn, args)

    def _change(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._set_state(fn(self._state_now(), *args))

    def look_at(self, fn: Callable[..., R], *args: Any) -> R:
        """What `fn(state, *args)` returns, for the state after the last batch handed out.

            if step % 1000 == 0:
                print(batches.look_at(cereal.rl.replay_report))

        A replay buffer is not copied for it, as it is for `fn(batches.state)`. So copy what you
        keep of the buffer's own arrays: the next step overwrites them, and JAX says "deleted".
        """
        with self._turn:
            self._refuse_if_busy()
            with self._busy:
                return self._looked(fn, args)

    def _looked(self, fn: Callable[..., R], args: tuple[Any, ...]) -> R:
        return fn(self._state_now(), *args)

    def get_state(self) -> dict[str, Any]:
        """The state as a dict of numbers and text, which JSON keeps exactly; for checkpoints.

            manager.save(step, args=ocp.args.Composite(
                model=ocp.args.StandardSave(params),
                data=ocp.args.JsonSave(batches.get_state())))

        It is one for the whole job, whatever the number of hosts, devices and workers. Any thread
        may ask, also while a batch is made; it takes microseconds, and waits for no device. (The
        state of a stream, such as a rollout, is an array on a device, and has to be waited for.)

        >>> import cereal
        >>> loader = cereal.DataLoader([cereal.RangeSource(10), cereal.BatchTransform(4)])
        >>> batches = loader.iterate(loader.init_state(0))
        >>> batch, mask = next(batches)
        >>> saved = batches.get_state()
        >>> saved["epoch"], saved["offset"], saved["pipeline"]["length"]
        (0, 4, 10)
        """
        return self._saved_now()

    def set_state(self, saved: dict[str, Any]) -> None:
        """Goes on from where `get_state` was called: here, in another process, another time.

        Workers, devices and the batch size may have changed. A state of another pipeline or of a
        newer version, or a damaged one, is refused; the iterator is then where it was before.

        >>> import cereal
        >>> loader = cereal.DataLoader([cereal.RangeSource(10), cereal.BatchTransform(4)])
        >>> batches = loader.iterate(loader.init_state(0))
        >>> batch, mask = next(batches)
        >>> smaller = cereal.DataLoader([cereal.RangeSource(10), cereal.BatchTransform(3)])
        >>> rest = smaller.iterate(smaller.init_state(0))
        >>> rest.set_state(batches.get_state())
        >>> [batch.tolist() for batch, mask in rest]
        [[4, 5, 6], [7, 8, 9]]
        """
        self.state = self._state_from(saved)

    async def save(self, directory: Any) -> Awaitable[None]:
        """Writes `get_state()` into a checkpoint of Orbax v1, which calls this.

        ocp.save_checkpointables(path, {"model": params, "data": batches})
        """
        return write_into(directory, self.get_state())

    async def load(self, directory: Any) -> Awaitable[None]:
        """Goes on from a checkpoint of Orbax v1, which calls this.

        ocp.load_checkpointables(path, {"model": like, "data": batches})
        """
        self.set_state(read_from(directory))
        return nothing()

    @abstractmethod
    def _saved_now(self) -> dict[str, Any]:
        """The state as a dict; like `_state_now`, it must not wait for a batch."""

    @abstractmethod
    def _state_from(self, saved: Any) -> Any:
        """The state in such a dict, or a StateError."""

    @abstractmethod
    def _state_now(self) -> Any:
        """The state; it must not wait, since a stage's function may ask while a batch is made."""

    @abstractmethod
    def _set_state(self, state: Any) -> None: ...
