"""A pipeline, drawn."""

from __future__ import annotations

from typing import Any

from ..core.ordering import Sequential
from ..core.positional import IndexedSource, Positional
from ..core.pytree import said
from ..core.source import Source
from ..core.spec import format_spec

_LONG = 120


def stages_of(source: Source[Any]) -> list[Source[Any]]:
    """The source and the stages around it, in the order of the data's flow."""
    chain: list[Source[Any]] = [source]
    while (inner := chain[-1].inner) is not None:
        chain.append(inner)
    return chain[::-1]


def draw(source: Source[Any], reading: str = "") -> str:
    """One line per stage, with what it gives; `reading` says how Python's part is read.

    ArraySampleSource(ordering=shuffle)  {image: uint8[8,8], label: int32[]}
    └─ BatchTransform(32)                {image: uint8[32,8,8], label: int32[32]}
    """
    stages = stages_of(source)
    rows = [_row(stage) for stage in stages]
    labels = [f"{'   ' * max(i - 1, 0)}{'└─ ' if i else ''}{row[0]}" for i, row in enumerate(rows)]
    width = max(map(len, labels))
    lines = [f"{label:{width}}  {row[1]}" for label, row in zip(labels, rows, strict=True)]
    if reading:
        lines.insert(_on_host(stages), f"~~~~ host above, {reading}; compiled below ~~~~")
    return "\n".join(lines)


def _row(stage: Source[Any]) -> tuple[str, str]:
    label = said(lambda: stage.label, f"{type(stage).__name__}(...)")
    return label, said(lambda: _in_short(stage.element_spec()), "?")


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


def _on_host(stages: list[Source[Any]]) -> int:
    """How many of the stages Python runs."""
    count = len(stages)
    while count and not (isinstance(s := stages[count - 1], Positional) and s.produces):
        count -= 1
    return count


def summary(source: Source[Any]) -> str:
    """How long an epoch is, and what decides the order of the data."""
    return said(lambda: _length(source), "of no known length")


def _length(source: Source[Any]) -> str:
    if not isinstance(source, Positional):
        return f"{source.steps_per_epoch:,} steps an epoch"
    if source.unknown_length:
        return ", ".join(["as many elements as it gives", *_surprises(source)])
    steps = f"{source.steps_per_epoch:,} steps an epoch"
    if not source.lanes:
        steps += " of one element each: there is no BatchTransform"
    return ", ".join([f"{source.length:,} elements", *_surprises(source), steps])


def _surprises(source: Positional[Any]) -> list[str]:
    """What users may not expect: that nothing shuffles, or that the key changes nothing."""
    if source.varies and not _uses_key(source):
        return ["epochs differ by the data itself, whatever the key"]
    if isinstance(source.order, Sequential) and source.stream is None:
        return ["the data in its own order"]
    return []


def _uses_key(source: Positional[Any]) -> bool:
    below = stages_of(source)
    keyed = any(isinstance(each, IndexedSource) and each.keyed for each in below)
    return keyed or source.order.random or source.random_stages > 0
