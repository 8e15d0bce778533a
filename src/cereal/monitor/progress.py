"""A progress bar around an iterator."""

from __future__ import annotations

from typing import Any


class NoBar:
    """A bar that shows nothing, so that loops need not ask."""

    def update(self, n: int = 1) -> None:
        """So many more batches were handed out."""

    def close(self) -> None:
        """The loop is over."""


def progress_bar(progress: bool | str, total: int | None) -> Any:
    """A tqdm bar over batches (a string is its title), or a silent one."""
    if not progress:
        return NoBar()
    from tqdm.auto import tqdm

    title = progress if isinstance(progress, str) else None
    return tqdm(total=total, desc=title, unit="batch", dynamic_ncols=True)
