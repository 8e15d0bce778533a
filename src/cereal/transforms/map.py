"""A function over elements or batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, overload

from ..base.errors import PipelineError
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..base.spec import Spec, as_override, format_spec
from ..functions.function import Function, as_function, takes_second
from ..pipeline.source import Source
from ..pipeline.stage import Stage

B = TypeVar("B")


@pytree_dataclass
class MapTransform(Stage[Any, B], Generic[B]):
    """Applies a JAX function to each batch, or before batching to each element.

        {"image": uint8[28,28]}  --fn-->  {"image": float32[28,28], "bright": float32[]}

    `fn` takes `(batch)` or `(batch, mask)`. It may add, drop and rename keys, or return a scalar
    for a whole batch. Shapes and dtypes of the result are inferred; `element_spec_override` states
    what you expect, and it is an error if they differ.

    >>> import cereal
    >>> squares = cereal.MapTransform(lambda x: x * x)(cereal.RangeSource(4))
    >>> [int(x) for x, mask in cereal.DataLoader(squares)]
    [0, 1, 4, 9]
    """

    fn: Function
    with_mask: bool = static_field()
    override: Spec | None = static_field()

    @overload
    def __init__(self, fn: Callable[[Any], B], *, element_spec_override: Any = None) -> None: ...
    @overload
    def __init__(
        self, fn: Callable[[Any, Any], B], *, element_spec_override: Any = None
    ) -> None: ...
    def __init__(self, fn: Any, *, element_spec_override: Any = None) -> None:
        function = as_function(fn, "MapTransform")
        set_fields(
            self,
            fn=function,
            with_mask=takes_second(function.value, "mask"),
            override=as_override(element_spec_override, "MapTransform"),
        )

    @property
    def _label(self) -> str:
        return f"MapTransform({self.fn.name})"

    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        del keys, lanes
        return (self.fn(values, mask) if self.with_mask else self.fn(values)), mask

    def __call__(self, source: Source[Any]) -> Source[B]:
        mapped = super().__call__(source)
        if self.override is not None and Spec(mapped.element_spec()) != self.override:
            raise PipelineError(
                f"{self._label} returns {format_spec(mapped.element_spec())}, not the "
                f"`element_spec_override` {self.override}; correct one of them."
            )
        return cast("Source[B]", mapped)
