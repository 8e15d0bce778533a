"""Data that only iterates: generators, streaming datasets, tf.data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ..core.errors import PipelineError
from ..core.numbers import as_whole
from ..core.ordering import Order, Sequential
from ..core.permutation import MAX_HOST
from ..core.pytree import pytree_dataclass, set_fields, static_field
from ..core.spec import Spec
from ..core.taken import spec_of_element
from .by_element import ByElement
from .stream_data import StreamData

_OWNER = "IterableSource"


@pytree_dataclass
class IterableSource(ByElement[Any]):
    """The elements of an iterator, in its order: `make_iterator()` is called for every epoch.

        make_iterator() -> iterator --next--> element 0, element 1, ...      read by one at a time

    A position is found again by the iterator's own state, if it has one (`get_state` and
    `set_state`, or `state_dict` and `load_state_dict`): the loader's state carries it. Otherwise,
    by skipping elements, so the iterator must give the same ones every time. If `make_iterator`
    takes an argument, it is the number of the epoch.

    `length` is the number of elements; without it an epoch ends when the iterator does: the last
    batch is padded and masked, `scan_epoch` needs `steps=`, and `next_batch`, which cannot know of
    the end, gives masked batches behind it.

    >>> import cereal
    >>> def squares():
    ...     for i in range(5):
    ...         yield i * i
    >>> loader = cereal.DataLoader([cereal.IterableSource(squares), cereal.BatchTransform(2)])
    >>> [batch[mask].tolist() for batch, mask in loader]
    [[0, 1], [4, 9], [16]]
    """

    data: Any
    n: int = static_field()
    spec: Spec = static_field()
    unknown: bool = static_field(default=False)  # how many elements there are
    by_epoch: bool = static_field(default=False)  # whether epochs differ
    ordering: Order = Sequential()

    def __init__(
        self, make_iterator: Callable[..., Iterable[Any]], *, length: int | None = None
    ) -> None:
        n = None if length is None else as_whole(length)
        if length is not None and (n is None or not 1 <= n < MAX_HOST):
            raise PipelineError(f"{_OWNER}: `length` must be a positive integer, got {length!r}.")
        if not callable(make_iterator):
            kind = type(make_iterator).__name__
            raise PipelineError(
                f"{_OWNER}: `make_iterator` must be a function that makes a new iterator, got "
                f"{kind}; write `{_OWNER}(lambda: iter(...))`, so that a second epoch can begin."
            )
        data = StreamData(make_iterator, n, _takes_epoch(make_iterator))
        size = MAX_HOST if n is None else n
        set_fields(self, data=data, n=size, unknown=n is None, ordering=Sequential())
        set_fields(self, by_epoch=data.with_epoch)
        set_fields(self, spec=Spec(spec_of_element(data.first(self.label))))

    def __len__(self) -> int:
        return self.n

    @property
    def stream(self) -> StreamData:
        return self.data

    @property
    def bookmark(self) -> Any:
        return self.data.no_bookmark

    @property
    def fixed(self) -> bool:
        return not self.by_epoch

    @property
    def masks_on_host(self) -> bool:
        return self.unknown

    @property
    def masks(self) -> bool:
        return self.unknown

    def sample(self) -> Any:
        return self.data.sample

    @property
    def label(self) -> str:
        length = "" if self.data.length is None else f", length={self.data.length}"
        return f"{_OWNER}({self.data.name}{length})"


def _takes_epoch(make: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters)
