"""Masks elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import jax

from ..base.pytree import pytree_dataclass, set_fields
from ..device.masks import both
from ..functions.function import Function, as_decision, as_function
from ..pipeline.source import Source
from ..pipeline.stage import Stage
from ..pipeline.traits import StageTraits

T = TypeVar("T")


@pytree_dataclass
class FilterTransform(Stage[Any, Any]):
    """Masks the elements for which `fn(element)` is False.

        element   3     8     5     9
        mask      False True  False True       fn = lambda x: x > 6

    The element stays in its place and its mask is False: so shapes are static, and a batch is still
    a function of its position. `masked_mean` and `evaluate` leave masked elements out. `fn` gets
    one element, even after batching. To read only elements that pass, use `select(source, fn)`.

    >>> import cereal
    >>> large = cereal.FilterTransform(lambda x: x >= 3)
    >>> loader = cereal.DataLoader([cereal.RangeSource(6), large, cereal.BatchTransform(3)])
    >>> [(batch.tolist(), mask.tolist()) for batch, mask in loader]
    [([0, 1, 2], [False, False, False]), ([3, 4, 5], [True, True, True])]
    """

    traits: ClassVar[StageTraits] = StageTraits(changes_mask=True, lane_wise=True)

    fn: Function

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        set_fields(self, fn=as_function(fn, "FilterTransform"))

    @property
    def _label(self) -> str:
        return f"FilterTransform({self.fn.name})"

    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        del keys
        fn: Callable[..., Any] = lambda element: as_decision(self.fn(element), self._label)  # noqa: E731
        for _ in lanes:
            fn = jax.vmap(fn)
        return values, both(mask, fn(values))

    def __call__(self, source: Source[T]) -> Source[T]:
        return super().__call__(source)
