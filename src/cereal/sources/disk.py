"""Elements that a function reads: from files, databases, servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base.errors import PipelineError
from ..base.numbers import AHEAD, as_count
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..base.spec import Spec, as_override
from ..functions.function import arguments_taken, function_name
from ..host.element_spec import spec_of_element
from ..order.ordering import Order, Sequential, as_order
from ..pipeline.traits import Traits
from ..reading.readers.by_element import FunctionReader
from .by_element import ByElement, ElementData
from .length import check_length

_OWNER = "DiskSampleSource"


@pytree_dataclass
class DiskSampleSource(ByElement[Any]):
    """Reads element `i` by calling `sample_fn(i)`, in the loader's threads.

        i  --sample_fn-->  {"image": <PIL image>, "label": 3}      anything, up to batching

    If `sample_fn` takes a second argument, it gets the number of the epoch: `sample_fn(i, epoch)`
    can return another view of the element in each epoch. It must depend on nothing else, so that a
    restarted run reads the same elements again. Several threads call `sample_fn`.

    `sample_spec`, a tree of `jax.ShapeDtypeStruct`, states the shapes and dtypes of an element;
    without it, one element is read to find out. `prefetch_size` elements are read ahead, at least
    two batches; if you do not state it, two batches for each worker, too. `DataLoader(prefetch=)`
    overrides this.

    >>> import cereal, numpy as np
    >>> def read(i):  # np.load(paths[i]), say
    ...     return {"x": np.full(3, i), "label": i % 2}
    >>> source = cereal.DiskSampleSource(length=4, sample_fn=read, ordering="sequential")
    >>> batch, mask = next(iter(cereal.DataLoader([source, cereal.BatchTransform(2)])))
    >>> batch["x"].tolist(), batch["label"].tolist()
    ([[0, 0, 0], [1, 1, 1]], [0, 1])
    """

    data: Any
    n: int = static_field()
    spec: Spec = static_field()
    prefetch_size: int = static_field(default=AHEAD)
    _by_epoch: bool = static_field(default=False)
    ordering: Order = Sequential()  # the constructor sets it

    def __init__(
        self,
        length: int,
        sample_fn: Callable[..., Any],
        sample_spec: Any = None,
        ordering: Any = "shuffle",
        prefetch_size: int = AHEAD,
    ) -> None:
        n = as_count(length, "length", _OWNER)
        check_length(n, "it", _OWNER)
        ahead = as_count(prefetch_size, "prefetch_size", _OWNER)
        if not callable(sample_fn):
            raise PipelineError(
                f"{_OWNER}: `sample_fn` must be a function from an index to an element, got "
                f"{type(sample_fn).__name__} ({sample_fn!r:.60})."
            )
        data, order = _Function(sample_fn, _takes_epoch(sample_fn)), as_order(ordering, n, _OWNER)
        set_fields(self, data=data, n=n, prefetch_size=ahead, ordering=order)
        spec = as_override(sample_spec, _OWNER, "sample_spec")
        set_fields(self, _by_epoch=data.by_epoch, spec=spec)
        if spec is None:
            sample = self._sample()
            if sample is None:
                raise PipelineError(
                    f"{_OWNER}: `{data.name}` returned None; did it forget to `return` the element?"
                )
            set_fields(self, spec=Spec(spec_of_element(sample)))

    def __len__(self) -> int:
        return self.n

    def _describe(self) -> Traits:
        return self._describe_by(ahead=self.prefetch_size)

    @property
    def _label(self) -> str:
        return f"{_OWNER}({self.data.name}, ordering={self._order.name})"


def _takes_epoch(sample_fn: Any) -> bool:
    names = arguments_taken(sample_fn, ("index", "epoch"), least=1)
    if names[1:] in (("key",), ("rng",), ("seed",), ("generator",)):
        raise PipelineError(
            f"{_OWNER}: the second argument of `sample_fn` is the number of the epoch, and this "
            f"one is called `{names[1]}`; write `sample_fn(index, epoch)`, and what is random into "
            f"a `HostRandomMapTransform(fn)` after it, whose `fn(element, rng)` is given a "
            f"generator for every element of every epoch."
        )
    return len(names) > 1


class _Function(ElementData):
    def __init__(self, fn: Callable[..., Any], by_epoch: bool = False) -> None:
        super().__init__()
        self.fn, self.by_epoch = fn, by_epoch

    def reader(self, label: str) -> FunctionReader:
        return FunctionReader(label, self.fn, self.by_epoch)

    @property
    def name(self) -> str:
        return function_name(self.fn)

    def digest_of(self) -> Any:
        return self.fn

    def __reduce__(self) -> tuple[Any, ...]:
        return _Function, (self.fn, self.by_epoch)
