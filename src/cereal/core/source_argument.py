"""What a transform is called with."""

from __future__ import annotations

from typing import Any

from .errors import PipelineError
from .source import Source


def check_source(source: Any, label: str) -> None:
    """Refuses all but a source; `label` is what the transform calls itself in drawings."""
    if not isinstance(source, Source):
        raise PipelineError(
            f"{label} must be called with a source, got {type(source).__name__}; write "
            f"`{label.partition('(')[0]}(...)(source)`."
        )
