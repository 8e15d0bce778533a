"""Draws a pipeline as text."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..base.errors import said
from ..base.spec import format_spec
from ..order.ordering import Sequential
from ..pipeline.pipeline import make_pipeline, parts_of
from ..pipeline.positional import Positional
from ..pipeline.source import Source

_LONG = 120


class Line(NamedTuple):
    """A source or a stage in a drawing."""

    of: Any  # the source or stage whose label is shown
    source: Source[Any]  # the pipeline up to it


def lines_of(source: Source[Any]) -> list[Line]:
    """The source and its stages, in the order in which data passes through them."""
    root, stages = parts_of(source) if isinstance(source, Positional) else (source, ())
    above = [] if root._upstream is None else lines_of(root._upstream)
    below = [make_pipeline(root, stages[:count]) for count in range(len(stages) + 1)]
    whose = [root, *stages]
    return [*above, *map(Line, whose, below)]


def first_of(source: Source[Any]) -> Any:
    """The source that a drawing begins with."""
    return lines_of(source)[0].of


def draw(source: Source[Any], reading: str = "") -> str:
    """One line for each stage, with its output; `reading` says how Python's part is read.

    ArraySampleSource(ordering=shuffle)  {image: uint8[8,8], label: int32[]}
    └─ BatchTransform(32)                {image: uint8[32,8,8], label: int32[32]}
    """
    stages = lines_of(source)
    rows = [_row(stage) for stage in stages]
    labels = [f"{'   ' * max(i - 1, 0)}{'└─ ' if i else ''}{row[0]}" for i, row in enumerate(rows)]
    width = max(map(len, labels))
    lines = [f"{label:{width}}  {row[1]}" for label, row in zip(labels, rows, strict=True)]
    if reading:
        lines.insert(_on_host(stages), f"~~~~ host above, {reading}; compiled below ~~~~")
    return "\n".join(lines)


def _row(line: Line) -> tuple[str, str]:
    label = said(lambda: line.of._label, f"{type(line.of).__name__}(...)")
    return label, said(lambda: _in_short(line.source.element_spec()), "?")


def _in_short(spec: Any) -> str:
    """The spec as text; if it is long, only the number of parts for each nested part."""
    whole = format_spec(spec)
    if len(whole) <= _LONG or not isinstance(spec, dict):
        return whole
    parts = {
        name: f"{{{len(part)} parts}}" if isinstance(part, dict | tuple) else format_spec(part)
        for name, part in spec.items()
    }
    return "{" + ", ".join(f"{name}: {part}" for name, part in parts.items()) + "}"


def _on_host(stages: list[Line]) -> int:
    """How many lines of the drawing Python runs."""
    by_python = [line.source.traits.by_python for line in stages]
    return len(stages) - by_python[::-1].index(True) if any(by_python) else 0


def summary(source: Source[Any]) -> str:
    """How long an epoch is, and what decides the order of the data."""
    return said(lambda: _length(source), "of no known length")


def _length(source: Source[Any]) -> str:
    if not isinstance(source, Positional):
        return f"{source.steps_per_epoch:,} steps an epoch"
    if source.traits.unknown_length:
        return ", ".join(["as many elements as it gives", *_surprises(source)])
    steps = f"{source.steps_per_epoch:,} steps an epoch"
    if not source.traits.lanes:
        steps += " of one element each: there is no BatchTransform"
    return ", ".join([f"{source.traits.length:,} elements", *_surprises(source), steps])


def _surprises(source: Positional[Any]) -> list[str]:
    """Says so if nothing shuffles, or if the key changes nothing: users may not expect it."""
    traits = source.traits
    if traits.varies and not (traits.keyed or source._order.random or traits.random_stages):
        return ["epochs differ by the data itself, whatever the key"]
    if isinstance(source._order, Sequential) and source._iterators is None:
        return ["the data in its own order"]
    return []
