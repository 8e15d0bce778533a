"""Ctrl-C may arrive at any line of the library: the state still says what comes next."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.workers.reading import chunks, loader_of, numbers, within

from cereal import BatchTransform, DataLoader, HostCallbackTransform, MapTransform, RangeSource
from cereal.host import track
from cereal.loaders.iterators import batch_iterator, host_iterator, iterator, learnt
from cereal.pipeline import walk

pytestmark = pytest.mark.slow

N, BATCH = 24, 4


def edges_of_with(path: str) -> set[int]:
    """Lines where a `with` begins or ends, and the first of its body.

    Signals are not looked at between taking a lock and what gives it back, but a tracer is called
    there: at the line of the `with` when it ends, and from Python 3.12 on an error that it raises
    at the first line of the body counts as one before it.
    """
    nodes = ast.walk(ast.parse(Path(path).read_text()))
    found = [node for node in nodes if isinstance(node, ast.With)]
    return {line for node in found for line in (node.lineno, node.body[0].lineno)}


EDGES = {
    str(each.__file__): edges_of_with(str(each.__file__))
    for each in (batch_iterator, host_iterator, iterator, learnt, track, walk)
}


class Interrupt:
    """Raises KeyboardInterrupt before the `count`th line that this thread runs in these files."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.where = ""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in EDGES:
            return None
        if event == "line":
            self.left -= frame.f_lineno not in EDGES[frame.f_code.co_filename]
            if self.left == 0 and not self.where:
                self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                raise KeyboardInterrupt
        return self

    def __enter__(self) -> Interrupt:
        self.before = sys.gettrace()
        sys.settrace(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("before", [0, 2])
def test_an_interrupt_at_any_line_keeps_state_and_batches_together(
    workers: int, prefetch: int, before: int
) -> None:
    """`before` batches are taken; the next one is interrupted, at one line after the other."""
    loader = loader_of(lambda i: i, N, BATCH, workers=workers, prefetch=prefetch)
    interrupt_everywhere(loader, before)


def watched(batch: Any, mask: Any) -> None:
    del batch, mask


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("stage", [None, MapTransform(abs), HostCallbackTransform(watched)])
def test_the_same_holds_for_what_compiled_programs_read(
    stage: Any, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iterator, "LEAST_CALLS", 1)
    stages = [RangeSource(N), BatchTransform(BATCH)] + ([] if stage is None else [stage])
    interrupt_everywhere(DataLoader(stages), before)


def interrupt_everywhere(loader: DataLoader[Any], before: int) -> None:
    assert numbers(loader.iterate(loader.init_state(0))) == chunks(N, BATCH)
    wrong: list[str] = []

    def run(count: int) -> bool:
        iterator = loader.iterate(loader.init_state(0))
        for _ in range(before):
            next(iterator)
        with Interrupt(count) as interrupt:
            try:
                next(iterator)
                return False
            except KeyboardInterrupt:
                pass
        offset = int(iterator.state.words[4])
        try:
            found = within(lambda: numbers(iterator), 4)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        if offset not in (before * BATCH, before * BATCH + BATCH):
            wrong.append(f"{interrupt.where}: offset {offset}")
        if found != chunks(N, BATCH, offset):
            wrong.append(f"{interrupt.where}: at {offset} came {found}")
        return True

    count = 1
    while len(wrong) < 3 and run(count):
        count += 1
    assert count > 5, "nothing was interrupted"
    assert not wrong, "\n".join(wrong)
