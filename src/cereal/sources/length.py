"""How many elements a source may have."""

from __future__ import annotations

from ..base.errors import PipelineError
from ..order.permutation import MAX_HOST


def check_length(n: int, what: str, owner: str) -> None:
    """Refuses a length that no epoch can have; `what` names its owner, such as "the dataset"."""
    if not 1 <= n <= MAX_HOST:
        raise PipelineError(
            f"{owner}: {what} has {n} elements; there must be at least one, and at most {MAX_HOST}."
        )
