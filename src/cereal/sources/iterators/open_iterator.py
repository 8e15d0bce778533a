"""Iterators that were begun, and how they end."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterable
from typing import Any

from ...order.rows import Rows
from ...reading.bridges.recognise import resumes_exactly
from ...reading.read_context import CAUGHT, Failed, annotate, as_exception
from .bookmark import Bookmark, Run

_STATE_METHODS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))


class OpenIterator:
    """An iterator, and how many elements it has given."""

    def __init__(self, made: Any, run: Run, shared: bool) -> None:
        self.made, self.run, self.position = made, run, 0
        own = (pair for pair in _STATE_METHODS if all(hasattr(made, name) for name in pair))
        # If one object serves all epochs, its state does not belong to one epoch: not usable. Nor
        # is a state without what is in a shuffle buffer.
        usable = not shared and resumes_exactly(made)
        self.methods = next(own, None) if usable else None
        self.iterator: Any = None

    # States are copied, since the iterator may later write into a state that it gave or got.

    def set(self, bookmark: Bookmark) -> None:
        assert self.methods is not None
        getattr(self.made, self.methods[1])(copy.deepcopy(bookmark.state))
        self.position = bookmark.position

    def get(self) -> Bookmark:
        assert self.methods is not None
        state = copy.deepcopy(getattr(self.made, self.methods[0])())
        return Bookmark(self.run, self.position, state)

    def next(self) -> Any:
        """The next element; if reading it raises, the position still moves on."""
        if self.iterator is None:
            self.iterator = iter(self.made)
        try:
            value = next(self.iterator)
        except CAUGHT as error:
            self.fail(error)
            raise
        self.position += 1
        return value

    def fail(self, error: BaseException) -> None:
        """The next element has raised this: a generator is over, and others move on."""
        if isinstance(error, StopIteration):
            return
        if inspect.isgenerator(self.iterator):
            error.add_note("cereal: a generator cannot go on after an error.")
            raise BrokenIterator(self.run.epoch, self.position) from error
        self.position += 1

    def taking(self) -> Any:
        """A function that gives the next element, but does not count it."""
        if self.iterator is None:
            self.iterator = iter(self.made)
        return self.iterator.__next__

    def skip_to(self, position: int) -> None:
        with contextlib.suppress(StopIteration):
            while self.position < position:
                try:
                    self.next()
                except StopIteration:
                    raise
                except Exception:  # an element that nobody asked for may fail
                    continue

    def close(self) -> None:
        for each in (self.iterator, self.made):
            if inspect.isgenerator(each):
                each.close()


def latest(found: Iterable[Any], run: Run, position: int) -> Any:
    """The iterator or bookmark that is nearest to a position of a run, not after it; or None."""
    before = [each for each in found if each.run == run and each.position <= position]
    return max(before, key=lambda each: each.position, default=None)


class BrokenIterator(BaseException):
    """An iterator failed and can give no more elements; `__cause__` is the error.

    It is not an `Exception`: `on_error="skip"` must not catch it, since the rest cannot be read.
    """

    def __init__(self, epoch: int, position: int) -> None:
        super().__init__()
        self.place = (epoch, position)

    def reported(self, label: str, rows: Rows) -> BaseException:
        """The error itself, with a note that names the element."""
        assert self.__cause__ is not None
        cause = as_exception(self.__cause__)
        key = (int(rows.key[0]), int(rows.key[1]))
        annotate(cause, Failed(label, self.place[1], self.place[0], key))
        return cause
