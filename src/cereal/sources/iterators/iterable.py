"""Data that can only be iterated: generators, streaming datasets, tf.data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from ...base.errors import PipelineError
from ...base.numbers import as_optional_count
from ...base.pytree import pytree_dataclass, set_fields, static_field
from ...base.spec import Spec
from ...functions.function import arguments_taken
from ...host.element_spec import spec_of_element
from ...order.ordering import Order, Sequential
from ...order.permutation import MAX_HOST
from ...pipeline.traits import Traits
from ..by_element import ByElement
from .iterator_data import IteratorData

_OWNER = "IterableSource"


@pytree_dataclass
class IterableSource(ByElement[Any]):
    """The elements of an iterator, in its order: `make_iterator()` is called for every epoch.

        make_iterator() -> iterator --next--> element 0, element 1, ...      read by one at a time

    To resume a run, the iterator must reach its old position. If it has a state of its own
    (`get_state` and `set_state`, or `state_dict` and `load_state_dict`), the loader's state carries
    that. Otherwise elements are skipped, so the iterator must give the same ones every time.

    `make_iterator` may also take arguments, if epochs differ: `make_iterator(epoch)` or
    `make_iterator(epoch, key)`. `epoch` counts from 0. `key` is the key of the loader's state, two
    words in a NumPy array of uint32; pass it to `np.random.default_rng([*key, epoch])` or
    `jax.random.wrap_key_data(key)`. The same epoch and key must give the same elements.

    `length` is the number of elements. Without it an epoch ends when the iterator ends: the last
    batch is padded and masked, `scan_epoch` needs `steps=`, and `next_batch`, which does not see
    the end, goes on with batches that are masked.

    >>> import cereal
    >>> def squares():
    ...     for i in range(5):
    ...         yield i * i
    >>> loader = cereal.DataLoader([cereal.IterableSource(squares), cereal.BatchTransform(2)])
    >>> [batch[mask].tolist() for batch, mask in loader]
    [[0, 1], [4, 9], [16]]
    """

    _no_ordering: ClassVar[str] = (
        "an iterator has its own order: shuffle in `make_iterator(epoch, key)`, which is given the "
        "number of the epoch and the loader's key; if the data can be read by index, write "
        '`DatasetSource(dataset, ordering="shuffle")`'
    )

    data: Any
    n: int = static_field()
    spec: Spec = static_field()
    _unknown: bool = static_field(default=False)  # whether the number of elements is not known
    _by_epoch: bool = static_field(default=False)  # whether epochs differ
    _by_key: bool = static_field(default=False)  # whether elements depend on the key
    ordering: Order = Sequential()

    def __init__(
        self, make_iterator: Callable[..., Iterable[Any]], *, length: int | None = None
    ) -> None:
        n = as_optional_count(length, "length", _OWNER)
        if n is not None and n >= MAX_HOST:
            raise PipelineError(
                f"{_OWNER}: `length` must be less than {MAX_HOST}, got {n}; leave it out if the "
                f"data has no end."
            )
        if not callable(make_iterator):
            raise PipelineError(
                f"{_OWNER}: `make_iterator` must be a function that makes a new iterator, got "
                f"{type(make_iterator).__name__}; write `{_OWNER}(lambda: iter(...))`, so that a "
                f"second epoch can begin."
            )
        given = _arguments(make_iterator)
        data = IteratorData(make_iterator, n, given)
        size = MAX_HOST if n is None else n
        set_fields(self, data=data, n=size, _unknown=n is None, ordering=Sequential())
        set_fields(self, _by_epoch=given > 0, _by_key=given > 1)
        set_fields(self, spec=Spec(spec_of_element(data.first(self._label))))

    def __len__(self) -> int:
        return self.n

    def _describe(self) -> Traits:
        return self._describe_by(
            fixed=not self._by_epoch,
            keyed=self._by_key,
            unknown_length=self._unknown,
            masks=self._unknown,
            masks_on_host=self._unknown,
        )

    @property
    def _iterators(self) -> IteratorData:
        return self.data

    def _sample(self) -> Any:
        return self.data.sample

    @property
    def _label(self) -> str:
        length = "" if self.data.length is None else f", length={self.data.length}"
        return f"{_OWNER}({self.data.name}{length})"


def _arguments(make: Any) -> int:
    """How many arguments it takes: none; the epoch; or the epoch and the key."""
    names = arguments_taken(make, ("epoch", "key"))
    if names[:1] in (("key",), ("rng",), ("seed",)) or names[1:] == ("epoch",):
        raise PipelineError(
            f"{_OWNER}: the first argument of `make_iterator` is the number of the epoch, and the "
            f"second the key; this one is `make_iterator({', '.join(names)})`: write "
            f"`make_iterator(epoch, key)`."
        )
    return len(names)
