"""Elements on the host: Python objects one by one, or arrays that hold many of them.

one by one   {"image": <PIL image>, "label": 3}, ...        what functions give and take
stacked      {"image": uint8[n,28,28], "label": int32[n]}   what one vectorised read gives
either       the first if a function wants elements, the second if nothing but batching follows
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .form import Form, form_of_arrays, leaves_of
from .loop import Link, list_elements, run_into, run_link, stack_elements
from .read_context import SKIPPED, Pace, ReadContext, use_read_context
from .structure import Structure

Whole = Callable[[Pace], "list[np.ndarray] | None"]


class ElementBatch:
    """What Python reads for some rows: arrays that hold all elements, or one element at a time.

    In the second case an element is read when it is asked for, and goes through all stages, the
    `links`, before the next one is read. So only one element is in memory besides the batch, and a
    function may return the same buffer every time.
    """

    def __init__(self, n: int, links: Sequence[Link] = (), keep: np.ndarray | None = None) -> None:
        self.n, self.links = n, tuple(links)
        # False where an element was filtered out or failed; None: all are there.
        self.keep = keep
        self.leaves: list[np.ndarray] = []
        self.structure: Structure | None = None
        # The columns of a table and the structure of its rows, until elements are made of them.
        self.columns: tuple[list[Any], Structure] | None = None
        self._later: Callable[[], ElementBatch] | None = None
        self.whole: Whole | None = None

    @staticmethod
    def of_arrays(
        n: int, leaves: Sequence[Any], structure: Structure, keep: Any = None
    ) -> ElementBatch:
        """Elements that are stacked in arrays."""
        made = ElementBatch(n, keep=keep)
        made.leaves, made.structure = list(leaves), structure
        return made

    @staticmethod
    def of_list(values: Sequence[Any], keep: Any = None) -> ElementBatch:
        """Elements that were read already."""
        run = lambda _, lane: values[lane]  # noqa: E731
        return ElementBatch(len(values), [Link("", None, run, "{many}[lane]", None, values)], keep)

    @staticmethod
    def of_columns(n: int, columns: list[Any], structure: Structure) -> ElementBatch:
        """Elements whose leaves are in columns: arrays, or lists of Python objects."""
        made = ElementBatch(n)
        made.columns = columns, structure
        return made

    @staticmethod
    def either(n: int, one_by_one: Callable[[], ElementBatch], whole: Whole) -> ElementBatch:
        """Elements that can be had one by one, or stacked by `whole(pace)`, which is quicker.

        `whole` gives None if they do not stack; `one_by_one` then says which of them is wrong.
        """
        made = ElementBatch(n)
        made._later, made.whole = one_by_one, whole
        return made

    @property
    def is_stacked(self) -> bool:
        return self.structure is not None

    def element(self, lane: int) -> Any:
        """The element of a lane, or SKIPPED if there is none."""
        if self.keep is not None and not self.keep[lane]:
            return SKIPPED
        value = None
        for link in self._chain():
            value = run_link(link, value, lane)
            if value is SKIPPED:
                break
        return value

    def _chain(self) -> tuple[Link, ...]:
        if self.columns is not None:
            columns, structure = self.columns
            rows = [structure.unflatten(list(row)) for row in zip(*columns, strict=True)]
            self.links, self.columns = ElementBatch.of_list(rows).links, None
        if self._later is not None:
            self.links, self._later = self._later()._chain(), None
        if self.structure is None:
            return self.links
        leaves, unflatten = self.leaves, self.structure.unflatten
        return (Link("", None, lambda _, lane: unflatten([x[lane] for x in leaves])),)

    def linked(self, link: Link) -> ElementBatch:
        """The elements after one more stage."""
        return ElementBatch(self.n, (*self._chain(), link), self.keep)

    def listed(self, rows: Any, pace: Pace) -> list[Any]:
        """All elements, SKIPPED where there is none; `keep` says which these are."""
        values, self.keep = list_elements(self._chain(), self.keep, rows, pace)
        return values

    def run_into(
        self, make_end: Callable[[range], Any], label: str, rows: Any, pace: Pace
    ) -> list[tuple[Any, list[int]]]:
        """Puts the elements, in parts, into what `make_end(lanes)` makes, and gives these; each
        with the lanes that have no element."""
        return run_into(self._chain(), self.keep, make_end, (label, rows), pace)

    def stack(
        self, form: Form, label: str, rows: Any, filler: Callable[[], Any], pace: Pace
    ) -> ElementBatch:
        """The same elements as arrays; each element is checked against the form.

        Where an element was left out, the element that `filler` returns is written instead.
        """
        at_once = self.whole(pace) if self.whole is not None and self.keep is None else None
        if self.structure is not None:
            leaves, structure, keep = self.leaves, self.structure, self.keep
        elif at_once is not None:
            leaves, structure, keep = at_once, form.structure, None
        else:
            leaves, keep = stack_elements(self._chain(), self.keep, form, label, rows, pace)
            structure = form.structure
        if keep is None:
            return self if self.is_stacked else ElementBatch.of_arrays(self.n, leaves, structure)
        fill(leaves, structure, keep, filler)
        return ElementBatch.of_arrays(self.n, leaves, structure, keep)


def fill(
    rooms: Sequence[np.ndarray], structure: Structure, keep: np.ndarray, filler: Callable[[], Any]
) -> None:
    """Writes an element where one was left out."""
    if keep.all():
        return
    first = int(np.argmax(keep))
    try:
        with use_read_context(ReadContext()):
            values: Any = leaves_of(filler(), form_of_arrays(rooms, structure, drop_axes=1))
    except Exception:  # no filler, or one of another shape: repeat an element of the batch
        values = [room[first] if keep[first] else 0 for room in rooms]
    for room, value in zip(rooms, values, strict=True):
        room[~keep] = value
