"""Ways to make batches without end, measured in turns after each has come to its pace.

A side is an iterator over batches. Before each measurement as many batches are thrown away as may
lie ready, so that what is counted was made within the time. After it the side is given time to
fill its buffers again and come to rest, so that it does not take the cores of the next one.
"""

from __future__ import annotations

import inspect
import itertools
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import jax
import numpy as np
from work import Calls

from cereal import DataLoader

Kind = Literal["thread", "process"]
seeds = itertools.count()
HAS_PROCESSES = "worker_type" in inspect.signature(DataLoader.__init__).parameters
# What is called a process in the output.
PROCESS, PROCESSES = ("process", "processes") if HAS_PROCESSES else ("stand-in", "stand-ins")


def say_what_is_missing() -> None:
    if not HAS_PROCESSES:
        print("cereal here has no `worker_type`: threads stand in, and miss the goals of processes")


def make_loader(
    stages: Sequence[Any], workers: int | None = None, kind: Kind | None = None, **words: Any
) -> DataLoader[Any]:
    if HAS_PROCESSES:
        words["worker_type"] = kind
    return DataLoader(list(stages), workers=workers, **words)


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    """Batches without end, and without their masks."""
    with loader.iterate(loader.init_state(next(seeds)), epochs=None) as batches:
        for batch, _ in batches:
            yield batch


def torch_batches(
    fn: Callable[[int], Any], batch: int | None, workers: int
) -> Callable[[], Iterator[Any]] | None:
    """torch's DataLoader over `fn(0), fn(1), ...`; None where torch is not installed."""
    try:
        from torch.utils import data as torch_data  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("torch: not installed")
        return None
    loader: Any = torch_data.DataLoader(
        Calls(fn),  # type: ignore[arg-type]
        batch,
        num_workers=workers,
        multiprocessing_context="spawn",  # not forked: JAX has threads
        persistent_workers=True,
    )
    return lambda: (tensor.numpy() for tensor in loader)


def grain_batches(
    fn: Callable[[int], Any], batch: int | None, workers: int, read: tuple[int, ...] = (1, 1)
) -> Callable[[], Iterator[Any]] | None:
    """Grain's mp_prefetch over the same; None where Grain is not installed."""
    try:
        import grain  # pyright: ignore[reportMissingImports]
        from absl import flags  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("Grain: not installed")
        return None
    flags.FLAGS.mark_as_parsed()  # Grain 0.2.18 asks for it
    data = grain.MapDataset.range(10**8).map(fn)
    data = data if batch is None else data.batch(batch)
    read_options = grain.ReadOptions(*read)
    processes = grain.MultiprocessingOptions(workers)
    return lambda: iter(data.to_iter_dataset(read_options).mp_prefetch(processes))


class Side:
    """An iterator over batches, made when it is first used; `ahead` of them may lie ready."""

    def __init__(self, make: Callable[[], Iterator[Any]], ahead: int, rest: float = 0.3) -> None:
        self._make, self._ahead, self._rest = make, ahead, rest
        self._batches: Iterator[Any] | None = None

    def start(self) -> None:
        if self._batches is None:
            self._batches = self._make()
            self._take(self._ahead + 4)
            time.sleep(self._rest)

    def seconds(self, steps: int) -> float:
        self.start()
        self._take(self._ahead)
        begin = time.perf_counter()
        self._take(steps)
        taken = time.perf_counter() - begin
        time.sleep(self._rest)
        return taken

    def close(self) -> None:
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
        self._batches = None

    def _take(self, steps: int) -> None:
        """The consumer: puts a batch onto the device, keeps the latest, waits for the last."""
        assert self._batches is not None
        last = None
        for batch in itertools.islice(self._batches, steps):
            last = batch if isinstance(batch, jax.Array) else jax.device_put(batch)
        jax.block_until_ready(last)


def ours(
    stages: Sequence[Any], workers: int | None, kind: Kind | None = None, ahead: int = 0
) -> Side:
    """A loader; unless something else is said, it has two batches a worker ahead."""
    loader = make_loader(stages, workers, kind)
    return Side(lambda: endless(loader), ahead or 2 * (workers or 4) + 4)


def peers(fn: Callable[[int], Any], batch: int | None, workers: int) -> dict[str, Side]:
    """torch and Grain with so many processes, those that are installed."""
    found: dict[str, Side] = {}
    made = torch_batches(fn, batch, workers)
    if made is not None:
        found[f"torch, {workers} processes"] = Side(made, 2 * workers + 4)
    for read in ((1, 1), (0, 0)):
        made = grain_batches(fn, batch, workers, read)
        if made is None:
            break
        title = f"Grain, {workers} processes, ReadOptions{read}"
        found[title] = Side(made, 4 * workers + 4, rest=0.6)
    return found


class BareProcesses:
    """Processes that only call a function, each for its share; they start before the clock.

    With `in_thread` each does so in a thread. That matters: glibc gives large blocks that the main
    thread frees back to the system and takes them again, with a fault for every page.
    """

    def __init__(
        self,
        workers: int,
        fn: Callable[[Any], Any],
        elements: Sequence[Any],
        *,
        in_thread: bool = False,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for begin in range(workers):
            here, there = context.Pipe()
            arguments = (there, fn, list(elements[begin::workers]), in_thread)
            self._processes.append(context.Process(target=_serve, args=arguments, daemon=True))
            self._processes[-1].start()
            self._pipes.append(here)
        self._wait()

    def seconds(self) -> float:
        begin = time.perf_counter()
        for pipe in self._pipes:
            pipe.send(True)
        self._wait()
        return time.perf_counter() - begin

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(False)
        for process in self._processes:
            process.join()

    def _wait(self) -> None:
        for pipe in self._pipes:
            pipe.recv()


def _serve(pipe: Any, fn: Callable[[Any], Any], elements: list[Any], in_thread: bool) -> None:
    if in_thread:
        thread = threading.Thread(target=_serve, args=(pipe, fn, elements, False))
        thread.start()
        thread.join()
        return
    call_all(fn, elements[:4])
    pipe.send(True)
    while pipe.recv():
        call_all(fn, elements)
        pipe.send(True)


def call_all(fn: Callable[[Any], Any], elements: Sequence[Any]) -> None:
    for element in elements:
        fn(element)


def in_turns(sides: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """The seconds of every side in every round; each round begins with another side."""
    taken: dict[str, list[float]] = {title: [] for title in sides}
    titles = list(sides)
    for turn in range(rounds):
        begin = turn % len(titles)
        for title in titles[begin:] + titles[:begin]:
            taken[title].append(sides[title]())
    return taken


def ratio_of(mine: list[float], theirs: list[float]) -> dict[str, Any]:
    """theirs / ours, as `measure.report_ratio` prints it."""
    ratios = [b / a for a, b in zip(mine, theirs, strict=True)]
    low, mid, high = (float(np.quantile(ratios, q)) for q in (0.25, 0.5, 0.75))
    return {
        "ratio": mid,
        "quartiles": (low, high),
        "ours": statistics.median(mine),
        "theirs": statistics.median(theirs),
        "pairs": len(ratios),
    }


def spread(values: list[float], form: str = ".0f") -> str:
    """The median, and the quartiles around it."""
    low, mid, high = (float(np.quantile(values, q)) for q in (0.25, 0.5, 0.75))
    return f"{mid:{form}} [{low:{form}}, {high:{form}}] of {len(values)} rounds"
