"""One step of a track that a thread reads, or will read; and the contexts of its threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..reading.read_context import Failed, ReadContext

if TYPE_CHECKING:
    from .track import Track


class WorkerReadContext(ReadContext):
    """The context of one thread that reads for one step."""

    def __init__(self, track: Track, job: Job) -> None:
        super().__init__(track.on_error, track.buffers, masked=track.masked)
        self.known_to_hang, self.decided = job.known_to_hang, job.decided
        self.thread = threading.current_thread()
        self._track, self._job = track, job
        self.remote = track.tuning.remote
        job.contexts.append(self)

    @property
    def closed(self) -> bool:  # type: ignore[override]
        return self._track.closed

    @property
    def begun(self) -> float:
        """When the element was begun."""
        call = self.call
        return self.since if call is None else call.since

    def abort(self) -> None:
        """Ends the process that reads for this thread, if there is one."""
        call = self.call
        if call is not None:
            call.abort()

    def unblock(self, timeout: float) -> None:
        """Ends the process for which this thread waits, if it hangs in the step of another one."""
        queued = self.queued
        if queued is not None:
            queued.unblock(timeout)

    def finish(self) -> None:
        """This thread no longer reads for the step."""
        if self in self._job.contexts:
            self._job.contexts.remove(self)

    def settings(self) -> Any:
        return self._track.settings(executes=self._track.executes)

    @property
    def helpers(self) -> int:
        return self._track.crew.helpers

    def spread(self, parts: Any, run: Callable[[Any], Any]) -> list[Any]:
        make = lambda: WorkerReadContext(self._track, self._job)  # noqa: E731
        return self._track.crew.spread(parts, run, make, self._job)


class Job:
    """One step that is read, or will be read, by a thread."""

    def __init__(self, step: int, before: Job | None = None) -> None:
        self.step = step
        self.done = False
        self.rows: Any = None if before is None else before.rows
        self.error: BaseException | None = None
        self.thread: Any = None
        self.contexts: list[WorkerReadContext] = []
        # If a step is read again, these come from the first time: elements that hang, and what
        # `on_error` answered, so that it is not asked or counted twice.
        self.known_to_hang: dict[Any, Exception] = (
            {} if before is None else dict(before.known_to_hang)
        )
        self.decided: dict[Any, Any] = {} if before is None else dict(before.decided)

    @property
    def waits(self) -> bool:
        """Whether no thread reads it yet."""
        return self.thread is None and not self.done

    @property
    def starting(self) -> bool:
        """Whether a process that will read it is being started."""
        return any(mine.starting for mine in list(self.contexts))

    def unblock(self, timeout: float) -> None:
        """Ends processes that hang in other steps, if this step waits for them."""
        for mine in list(self.contexts):
            mine.unblock(timeout)

    def oldest(self) -> tuple[Failed | None, float]:
        """The element that was begun first of those being read, and when it was begun."""
        found: tuple[Failed | None, float] = (None, time.monotonic())
        for mine in list(self.contexts):
            place, since = mine.place(), mine.begun
            if place is not None and since < found[1]:
                found = (place, since)
        return found
