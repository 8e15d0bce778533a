"""The options of a loader for the part that Python runs."""

from __future__ import annotations

import numbers
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from ..base.errors import OptionWarning, PipelineError
from ..base.numbers import Unstated, as_optional_count
from ..base.spec import Spec
from ..host.cpus import usable_cpus
from ..pipeline.pipeline import Pipeline, host_stages_of
from ..pipeline.positional import Positional
from ..reading.read_context import OnError, raise_it, read_context
from .choosing import CALLER, Limits, Setting

_MOST_AHEAD_BYTES = 256 * 2**20
_LARGE = 1 << 20
_MOST_TOGETHER, _TOGETHER_BYTES = 16, 1 << 20  # steps that the caller reads in one call


class Options(NamedTuple):
    """The user's options, checked."""

    workers: int | None = None
    prefetch: int | None = None
    on_error: Any = "raise"
    timeout: float | None = None
    worker_type: str | None = None

    @property
    def skips(self) -> bool:
        """Whether elements may be left out because of errors."""
        return self.on_error != "raise"

    def policy(self, count: Callable[[Exception], None]) -> OnError:
        """The function that decides about an element's error; calls `count` if it is left out."""
        if self.on_error == "raise":
            return raise_it
        ask = None if self.on_error == "skip" else self.on_error

        def decide(error: Exception) -> Any:
            answer = None if ask is None else ask(error)
            if answer is None and not read_context().is_padding():
                count(error)
            return answer

        return decide

    def warn_unused(self) -> None:
        """Warns that these options have no effect: no threads read this pipeline."""
        said = {name: value for name, value in self._asdict().items() if value}
        if not self.skips:
            del said["on_error"]
        if said:
            listed = ", ".join(f"`{name}={value!r:.40}`" for name, value in said.items())
            warnings.warn(
                f"DataLoader: {listed} has no effect: these options are for sources and stages "
                f"that Python runs (files, datasets, HostMapTransform), and this pipeline has "
                f'none, or a CacheTransform("device") has read them already; compiled code reads '
                f"its data, without threads. Leave it out.",
                OptionWarning,
                stacklevel=4,
            )

    def plan(self, source: Positional[Any]) -> Setting | Limits:
        """Who reads; or, if the loader is to find out, what it may choose from.

        Nobody but the caller if one NumPy call reads a small batch: to pass the batch between
        threads takes longer than to read it.
        """
        workers, kind, cpus = self.workers, self.worker_type, usable_cpus()
        if workers == 0:
            return CALLER
        if workers is not None and kind is not None:
            return Setting("thread" if kind == "thread" else "process", workers)
        small = bytes_read(source) < _LARGE
        left_open = workers is None and kind is None and self.timeout is None
        if left_open and source.traits.quick and small:
            return CALLER
        processes = kind == "process" or (kind is None and os.name == "posix" and _can_move(source))
        # Only one thread at a time can read an iterator.
        alone = source._iterators is not None and not host_stages_of(source)
        return Limits(
            most=(1 if alone else cpus) if workers is None else workers,
            first=1 if workers is None else workers,
            cpus=cpus,
            thread=kind != "process",
            process=processes,
            caller=left_open,
        )

    def ahead(self, source: Positional[Any]) -> Ahead:
        """How many batches are read ahead."""
        size = bytes_read(source)
        return Ahead(self.prefetch, size, source.traits.ahead, source._plan.batch)

    def together(self, source: Positional[Any]) -> int:
        """How many steps the caller reads in one call: of small batches, several."""
        program = program_of(source)
        plain = source._share is None and not self.skips and not host_stages_of(source)
        if not plain or program is None or not program.reader.own_memory:
            return 1
        most = _MOST_TOGETHER if self.prefetch is None else self.prefetch
        return max(1, min(most, _TOGETHER_BYTES // max(bytes_read(source), 1)))


class Ahead(NamedTuple):
    """How many batches are read ahead. (Threads hold it, so it must not hold the data.)"""

    prefetch: int | None  # what the user said
    nbytes: int  # of a batch
    asked: int  # elements that the source asks for
    batch: int  # elements of a batch

    def __call__(self, count: int) -> int:
        """The number, if so many threads or processes read."""
        if self.prefetch is not None:
            return self.prefetch
        most = max(2, min(2 * count, _MOST_AHEAD_BYTES // max(self.nbytes, 1)))
        if not self.asked:
            return most
        batches = max(2, -(-self.asked // self.batch))
        return max(most, batches) if isinstance(self.asked, Unstated) else batches

    def batches(self, count: int) -> int:
        """How many batches exist at once: read ahead, being read, and with the user."""
        return self(count) + count + 4


def bytes_read(source: Positional[Any]) -> int:
    """How many bytes of a batch this process reads."""
    size, share = Spec(source.element_spec()).nbytes, source._share
    return size if share is None else int(size * share.fraction)


def program_of(source: Any) -> Any:
    """The host part of a pipeline, if it is one program; None for the parts of combined sources."""
    if isinstance(source, Pipeline) and not source._host_stages:
        source = source.source
    return getattr(source, "_program", None)


def _can_move(source: Any) -> bool:
    program = program_of(source)
    return program is not None and program.can_move


def check_options(
    workers: Any,
    prefetch: Any,
    on_error: Any,
    timeout: Any,
    worker_type: Any = None,
    owner: str = "DataLoader",
) -> Options:
    """The options of a DataLoader, or an error that says what they may be."""
    hint = "None leaves it to the loader"
    workers = as_optional_count(workers, "workers", owner, 0, hint=hint)
    prefetch = as_optional_count(prefetch, "prefetch", owner, 0, hint=hint)
    if on_error not in ("raise", "skip") and (isinstance(on_error, str) or not callable(on_error)):
        raise PipelineError(
            f'{owner}: `on_error` must be "raise", "skip" or a function of the error, got '
            f"{on_error!r:.60}."
        )
    if timeout is not None:
        number = isinstance(timeout, numbers.Real) and not isinstance(timeout, bool)
        if number and timeout == 0:
            raise PipelineError(
                f"{owner}: `timeout=0` would give elements no time at all; for no limit (what 0 "
                "means to torch) write `timeout=None`, or leave it out."
            )
        if not number or not float(timeout) > 0:
            raise PipelineError(
                f"{owner}: `timeout` must be a positive number of seconds, or None for no "
                f"limit, got {timeout!r}."
            )
        if workers == 0:
            raise PipelineError(
                f"{owner}: `timeout=` needs a worker, since reading in the caller's own thread "
                "cannot be given up; pass `workers=1` or more."
            )
    _check_type(worker_type, workers, owner)
    seconds = None if timeout is None else float(timeout)
    return Options(workers, prefetch, on_error, seconds, worker_type)


def _check_type(worker_type: Any, workers: int | None, owner: str) -> None:
    if worker_type not in (None, "thread", "process"):
        raise PipelineError(
            f'{owner}: `worker_type` must be "thread", "process", or None, which lets the '
            f"loader measure which is faster, got {worker_type!r:.60}."
        )
    if worker_type is not None and workers == 0:
        raise PipelineError(
            f"{owner}: `workers=0` reads in the caller's own thread, so there is no "
            f"`worker_type={worker_type!r}`; pass `workers=1` or more, or leave one of them out."
        )
    if worker_type == "process" and os.name != "posix":
        raise PipelineError(
            f'{owner}: `worker_type="process"` needs Linux or macOS; use threads: '
            '`worker_type="thread"`.'
        )
