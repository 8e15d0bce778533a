"""A random function over elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import jax

from ..base.errors import PipelineError
from ..base.pytree import pytree_dataclass, set_fields
from ..functions.function import Function, as_function, takes_second
from ..pipeline.check_stage import check_per_element
from ..pipeline.stage import Stage
from ..pipeline.traits import StageTraits

B = TypeVar("B")


@pytree_dataclass
class RandomMapTransform(Stage[Any, B], Generic[B]):
    """Augments elements: `fn(element, key)` gets another key for each element and each epoch.

        key, epoch, index, number of the random stage  -->  the element's key

    An element of an epoch always gets the same key: before and after batching, with any batch size,
    and after a restart.

    >>> import cereal, jax
    >>> jitter = cereal.RandomMapTransform(lambda x, key: x + jax.random.randint(key, (), 0, 10))
    >>> before = cereal.DataLoader([cereal.RangeSource(6), jitter, cereal.BatchTransform(3)])
    >>> after = cereal.DataLoader([cereal.RangeSource(6), cereal.BatchTransform(3), jitter])
    >>> (before.batch_at(0, 1)[0] == after.batch_at(0, 1)[0]).all().item()
    True
    """

    traits: ClassVar[StageTraits] = StageTraits(random=True, lane_wise=True)

    fn: Function

    def __init__(self, fn: Callable[[Any, jax.Array], B]) -> None:
        function = as_function(fn, "RandomMapTransform")
        if not takes_second(function.value, "key"):
            raise PipelineError(
                f"RandomMapTransform: `{function.name}` must take two arguments, the element and "
                f"a key; write `def {function.name}(element, key): ...`, or use MapTransform."
            )
        set_fields(self, fn=function)

    @property
    def _label(self) -> str:
        return f"RandomMapTransform({self.fn.name})"

    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        check_per_element(values, lanes, self._label)
        fn: Callable[..., Any] = self.fn
        for _ in lanes:
            fn = jax.vmap(fn)
        return fn(values, keys), mask
