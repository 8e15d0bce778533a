"""Windows over sequences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ..base.errors import PipelineError
from ..base.numbers import as_count, as_fractions
from ..base.pytree import pytree_dataclass, set_copy, set_fields, static_field
from ..base.spec import Spec, spec_of
from ..device.gather import take_windows
from ..device.storage import place_array
from ..host.element_spec import form_of
from ..order.ordering import Order, Sequential, as_order
from ..order.permutation import MAX_TRACED
from ..pipeline.host_source import HostIndexed
from ..pipeline.source import Source
from ..pipeline.traits import Traits
from ..reading.readers.arrays import WindowReader
from .array import one_length
from .array_trees import refuse_list
from .combined.routed import Routed, adopt
from .combined.slice import SliceSource, make_slice, part_of
from .files.mapped import MappedArrays

_OWNER = "WindowSource"


@pytree_dataclass
class WindowSource(HostIndexed[Any]):
    """Overlapping windows over the first axis of an array, or of a tree of arrays.

        length=4, stride=2                 0 1 2 3 4 5 6 7 8 9
        element 0                          [0 1 2 3]
        element 1                              [2 3 4 5]
        ...
        length=4, predict=2                {"context": [0 1 2 3], "target": [4 5]}

    A window is cut out when it is read, so windows take no memory. Arrays go to the default device;
    an `np.memmap` stays in its file, and only batches are read from it. With `predict`, an element
    has a context of `length` moments and a target, the `predict` moments after it.

    The loader of nanoGPT, whose targets are the tokens shifted by one:

    >>> import cereal, numpy as np
    >>> tokens = np.arange(50, dtype=np.uint16)  # np.memmap("train.bin", np.uint16, mode="r")
    >>> shifted = cereal.MapTransform(lambda w: (w[:, :-1], w[:, 1:]))
    >>> windows = cereal.WindowSource(tokens, 9)
    >>> loader = cereal.DataLoader([windows, cereal.BatchTransform(4), shifted])
    >>> (x, y), mask = loader.batch_at(0, 0)
    >>> x.shape, bool((y == x + 1).all())
    ((4, 8), True)
    """

    data: Any
    _size: int = static_field()  # of the data
    context: int = static_field()
    stride: int = static_field()
    predict: int = static_field()
    spec: Spec = static_field()
    ordering: Order = Sequential()  # the constructor sets it

    def __init__(
        self,
        data: Any,
        length: int,
        stride: int = 1,
        *,
        predict: int = 0,
        ordering: Any = "shuffle",
    ) -> None:
        refuse_list(data, _OWNER)
        size = one_length(data, _OWNER, files=True)
        length = as_count(length, "length", _OWNER)
        stride = as_count(stride, "stride", _OWNER)
        predict = as_count(predict, "predict", _OWNER, 0)
        whole = length + predict
        if whole > size:
            raise PipelineError(
                f"{_OWNER}: a window of {whole} (length={length}, predict={predict}) is longer "
                f"than the data, which has {size}; shorten it to at most {size}."
            )
        n = (size - whole) // stride + 1
        files = any(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(data))
        if size > MAX_TRACED and not files:
            fix = "raise `stride`, or " if n > MAX_TRACED else ""
            raise PipelineError(
                f"{_OWNER}: {n} windows over {size} elements are more than compiled code can count "
                f"({MAX_TRACED}); {fix}cut the data into several sources."
            )
        one = Spec(jax.tree.map(lambda leaf: spec_of(leaf, drop_axes=1), data))
        window = one.batched(whole).tree
        set_fields(
            self,
            data=MappedArrays(data) if files else jax.tree.map(place_array, data),
            ordering=as_order(ordering, n, _OWNER),
            _size=size,
            context=length,
            stride=stride,
            predict=predict,
            spec=Spec(jax.eval_shape(lambda x: _parted(x, length, predict), window)),
        )

    def __len__(self) -> int:
        return (self._size - self.context - self.predict) // self.stride + 1

    def element_spec(self) -> Any:
        return self.spec.tree

    def _describe(self) -> Traits:
        # If it is None, the data was taken out.
        host = self.data is None or isinstance(self.data, MappedArrays)
        whole = self.context + self.predict
        overlap = whole if self.stride < whole else 0
        return self._describe_as(
            host=host, by_python=True, wide=host, light=not host, overlap=overlap, windows=True
        )

    def _as_host(self) -> WindowSource:
        return self if self.traits.host else set_copy(self, data=MappedArrays(self.data))

    @property
    def _label(self) -> str:
        predict = f", predict={self.predict}" if self.predict else ""
        stride = f", stride={self.stride}" if self.stride != 1 else ""
        return f"WindowSource({self.context}{stride}{predict}, ordering={self._order.name})"

    def take(self, indices: Any) -> Any:
        if self.traits.host:
            return super().take(indices)
        starts, whole = indices * np.int32(self.stride), self.context + self.predict
        windows = jax.tree.map(lambda leaf: take_windows(leaf, starts, whole), self.data)
        return _parted(windows, self.context, self.predict, axis=1)

    @cached_property
    def _reader(self) -> WindowReader:
        structure = form_of(self.spec).structure
        parts = (self.context, self.predict) if self.predict else (self.context,)
        data = self.data
        return WindowReader(self._label, data.arrays, data.names, structure, self.stride, parts)


def _parted(windows: Any, context: int, predict: int, axis: int = 0) -> Any:
    """Windows as elements: whole, or as a context and a target."""
    if not predict:
        return windows

    def part(begin: int, end: int) -> Any:
        at = (slice(None),) * axis + (slice(begin, end),)
        return jax.tree.map(lambda x: x[at], windows)

    return {"context": part(0, context), "target": part(context, context + predict)}


def split_time(
    source: Any, fractions: Sequence[float], *, ordering: Any = None
) -> tuple[SliceSource[Any], ...]:
    """Splits windows by time: `train, val, test = split_time(windows, (0.7, 0.1, 0.2))`.

        data     0 .............. 70 | 70 .. 80 | 80 .... 100
        train    [context|target]
        val                 [context | target]
        test                           [context | target]

    The targets of a part lie between its two cuts, so no moment is a target in two parts. A context
    may begin before the cut, since a forecast may use the past. Windows without `predict` lie
    entirely in one part: windows that cross a cut are left out.

    >>> import cereal, numpy as np
    >>> windows = cereal.WindowSource(np.arange(100), 8, predict=2, ordering="sequential")
    >>> train, val = cereal.split_time(windows, (0.7, 0.3))
    >>> first, mask = next(iter(cereal.DataLoader(val)))
    >>> first["target"].tolist()
    [70, 71]
    """
    owner = "split_time"
    if isinstance(source, Routed) or not isinstance(source, WindowSource):
        raise PipelineError(
            f"{owner}: `source` must be a WindowSource, got {_named(source)}; cut in time "
            f"first and transform or combine the parts."
        )
    given = as_fractions(fractions, owner, "(0.8, 0.2)")
    if any(not each > 0 for each in given) or not math.isclose(sum(given), 1, abs_tol=1e-6):
        raise PipelineError(
            f"{owner}: `fractions` must be positive and sum to one, {tuple(given)} sum to "
            f"{sum(given):g}."
        )
    store, path = adopt(source, owner)
    shares = np.cumsum([0.0, *given]) / sum(given)
    cuts = [math.floor(source._size * share + 0.5) for share in shares]
    back = source.context if source.predict else 0  # how far before a cut a window may begin
    whole, stride, parts = source.context + source.predict, source.stride, []
    for begin, end in itertools.pairwise(cuts):
        first = max(0, -(-(begin - back) // stride))
        last = min((end - whole) // stride, len(source) - 1)
        if last < first:
            raise PipelineError(
                f"{owner}: no window of {whole} fits between {begin} and {end} of {source._size}; "
                f"enlarge that fraction, or shorten the windows."
            )
        route = part_of(path, range(first, last + 1))
        words = f"{begin}:{end} in time of WindowSource[{len(source)}]"
        parts.append(make_slice(source, store, route, ordering, words, owner))
    return tuple(parts)


def _named(source: Any) -> str:
    """The name of a value in an error: for a source, its last stage."""
    known = isinstance(source, Source)
    return source._label.partition("(")[0] if known else type(source).__name__
