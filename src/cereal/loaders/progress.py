"""A progress bar around an iterator: a moving one in a terminal, a few lines in a log file.

Its clock starts with the second batch. The pipeline is compiled before the first batch, and the
caller's own step before the second. If that time counted, the rate would be too low, and the
estimate of the remaining time too long.
"""

from __future__ import annotations

import sys
from typing import Any

_UNTIMED = 2  # updates that wait for compilation
_LINES = 4  # lines in a log file after the first one, if the number of batches is known


class NoBar:
    """A bar that shows nothing, so that loops need not check whether there is one."""

    def update(self, n: int = 1) -> None:
        """So many more batches were handed out."""

    def close(self) -> None:
        """The loop is over."""


class MovingBar:
    """A tqdm bar that is drawn again and again in one place."""

    def __init__(self, bar: Any) -> None:
        self._bar, self._untimed = bar, _UNTIMED

    def update(self, n: int = 1) -> None:
        """So many more batches were handed out."""
        if self._untimed:
            self._untimed -= 1
            _start_clock(self._bar, n)
            self._bar.refresh()
        else:
            self._bar.update(n)

    def close(self) -> None:
        """The loop is over."""
        self._bar.close()


class LogLines:
    """The same bar as lines of text: at the first batch, then at each quarter.

    If the number of batches is not known: at the 1st, 10th, 100th, ...
    """

    def __init__(self, bar: Any) -> None:
        self._bar, self._untimed, self._next, self._shown = bar, _UNTIMED, 1, 0

    def update(self, n: int = 1) -> None:
        """So many more batches were handed out."""
        if self._untimed:
            self._untimed -= 1
            _start_clock(self._bar, n)
        else:
            self._bar.update(n)
        if self._bar.n >= self._next:
            self._write()

    def close(self) -> None:
        """The loop is over."""
        if self._bar.n > self._shown:
            self._write()
        self._bar.close()

    def _write(self) -> None:
        if not self._bar.disable:  # by TQDM_DISABLE=1, say
            print(self._bar, file=sys.stderr, flush=True)
        count, total = self._bar.n, self._bar.total
        self._shown = count
        if total is None:
            self._next = 10 ** len(str(count))
        else:
            self._next = -(-total * (count * _LINES // max(total, 1) + 1) // _LINES)


def progress_bar(progress: bool | str, total: int | None, unit: str = "batch") -> Any:
    """A tqdm bar over batches (a string is its title), or a silent one."""
    if not progress:
        return NoBar()
    from tqdm.auto import tqdm

    options: dict[str, Any] = {"total": total, "unit": unit}
    options["desc"] = progress if isinstance(progress, str) else None
    if _can_move(tqdm):
        return MovingBar(tqdm(dynamic_ncols=True, **options))
    return LogLines(tqdm(delay=float("inf"), **options))  # tqdm only counts


def _can_move(bar: type) -> bool:
    """Whether a bar can be redrawn in place: in a terminal, or if tqdm chose its notebook bar."""
    from tqdm.notebook import tqdm_notebook

    return sys.stderr.isatty() or issubclass(bar, tqdm_notebook)


def _start_clock(bar: Any, n: int) -> None:
    """Counts n batches and restarts the clock: the rate is that of the batches after them."""
    bar.unpause()
    bar.n += n
    bar.last_print_n = bar.initial = bar.n
