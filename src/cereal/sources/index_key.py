"""`index_key=`: adds the index of each element to the batch."""

from __future__ import annotations

from typing import Any

from ..base.errors import PipelineError


def check_index_key(elements: Any, index_key: Any, owner: str) -> None:
    """Refuses an index key that cannot be added to these elements."""
    if index_key is None:
        return
    if not isinstance(index_key, str):
        raise PipelineError(f"{owner}: `index_key` must be a string, got {index_key!r}.")
    if not isinstance(elements, dict):
        raise PipelineError(
            f"{owner}: `index_key={index_key!r}` needs elements that are dicts, but they are "
            f'{type(elements).__name__}; write `{{"x": data}}` for the data.'
        )
    if index_key in elements:
        raise PipelineError(
            f"{owner}: the data has a key {index_key!r} already; choose another `index_key`."
        )


def with_index(values: Any, index: Any, index_key: str | None) -> Any:
    """The elements, with their index added under `index_key`."""
    return values if index_key is None else {**values, index_key: index}
