"""Readers of sources that Python reads element by element."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ...base.errors import PipelineError
from ..element_batch import ElementBatch
from ..loop import Link
from ..read_context import CAUGHT, read_context
from ..rows import Rows
from .reader import Reader, one_by_one


@dataclasses.dataclass
class FunctionReader(Reader):
    """`fn(index)`, or `fn(index, epoch)`."""

    label: str
    fn: Callable[..., Any]
    by_epoch: bool

    def read(self, rows: Rows) -> ElementBatch:
        fn, indices = self.fn, rows.index.tolist()
        if self.by_epoch:
            epochs = rows.epoch.tolist()
            run = lambda _, lane: fn(indices[lane], epochs[lane])  # noqa: E731
            return ElementBatch(len(indices), [Link(self.label, rows, run)])
        run = lambda _, lane: fn(indices[lane])  # noqa: E731
        link = Link(self.label, rows, run, "{fn}({many}[lane])", fn, indices)
        return ElementBatch(len(indices), [link])


@dataclasses.dataclass
class DatasetReader(Reader):
    """`dataset[index]`; if it has `__getitems__`, a batch at once.

    In a Grain dataset epochs begin `stride` elements apart; for others it is 0.
    """

    label: str
    dataset: Any
    stride: int

    def read(self, rows: Rows) -> ElementBatch:
        many = getattr(self.dataset, "__getitems__", None)
        if many is None or self.stride or len(rows.index) == 1:
            return self._one_by_one(rows)
        indices, here = rows.index.tolist(), read_context()
        with here.at(self.label, rows):
            try:
                if here.known_to_hang:
                    here.check_known_to_hang()
                found = list(many(indices)), None
            except CAUGHT as error:
                found = [], error
        values, failed = found
        if failed is not None:  # reads again one by one, to find the element that fails
            return one_by_one(self._one_by_one(rows), failed)
        if len(values) != len(indices):
            raise PipelineError(
                f"{self.label}: `__getitems__` was asked for {len(indices)} elements and gave "
                f"{len(values)}; it must return a list of one element per index."
            )
        return ElementBatch.of_list(values)

    def _one_by_one(self, rows: Rows) -> ElementBatch:
        index = rows.index
        if self.stride:
            index = rows.epoch.astype(np.int64) * self.stride + index
        dataset, indices = self.dataset, index.tolist()
        run = lambda _, lane: dataset[indices[lane]]  # noqa: E731
        link = Link(self.label, rows, run, "{fn}[{many}[lane]]", dataset, indices)
        return ElementBatch(len(indices), [link])
