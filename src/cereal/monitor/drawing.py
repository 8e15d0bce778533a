"""A pipeline, drawn."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..core.ordering import Sequential
from ..core.pipeline import make_pipeline, parts_of
from ..core.positional import Positional
from ..core.pytree import said
from ..core.source import Source
from ..core.spec import format_spec

_LONG = 120


class Line(NamedTuple):
    """A source or a stage in a drawing."""

    of: Any  # whose label it has
    source: Source[Any]  # the pipeline up to it


def lines_of(source: Source[Any]) -> list[Line]:
    """The source and the stages around it, in the order of the data's flow."""
    root, stages = parts_of(source) if isinstance(source, Positional) else (source, ())
    above = [] if root._upstream is None else lines_of(root._upstream)
    below = [make_pipeline(root, stages[:count]) for count in range(len(stages) + 1)]
    whose = [root, *stages]
    return [*above, *map(Line, whose, below)]


def first_of(source: Source[Any]) -> Any:
    """The source that a drawing begins with."""
    return lines_of(source)[0].of


def draw(source: Source[Any], reading: str = "") -> str:
    """One line per stage, with what it gives; `reading` says how Python's part is read.

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
    """The spec; if it is long, nested parts only by how many parts they have."""
    whole = format_spec(spec)
    if len(whole) <= _LONG or not isinstance(spec, dict):
        return whole
    parts = {
        name: f"{{{len(part)} parts}}" if isinstance(part, dict | tuple) else format_spec(part)
        for name, part in spec.items()
    }
    return "{" + ", ".join(f"{name}: {part}" for name, part in parts.items()) + "}"


def _on_host(stages: list[Line]) -> int:
    """How many of the stages Python runs."""
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
    """What users may not expect: that nothing shuffles, or that the key changes nothing."""
    traits = source.traits
    if traits.varies and not (traits.keyed or source._order.random or traits.random_stages):
        return ["epochs differ by the data itself, whatever the key"]
    if isinstance(source._order, Sequential) and source._iterators is None:
        return ["the data in its own order"]
    return []
