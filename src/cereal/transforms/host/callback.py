"""Python code in the middle of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import io_callback

from ...base.errors import PipelineError
from ...base.fitting import canonical, narrowed
from ...base.pytree import pytree_dataclass, set_fields, static_field
from ...base.spec import Spec, as_override, format_spec
from ...device.device_count import device_count_of_program
from ...functions.function import Function, as_function
from ...host.callbacks import as_numpy, guarded, poison
from ...pipeline.source import Source
from ...pipeline.stage import Stage
from ...pipeline.traits import StageTraits

T = TypeVar("T")


@pytree_dataclass
class HostCallbackTransform(Stage[Any, Any]):
    """Calls a Python function with each batch: `fn(batch, mask)`, as NumPy arrays.

    It is called exactly once for each batch that you get, in order, also inside `jit` and
    `scan_epoch`. If it returns None, the batch stays as it is; if it returns a batch, that replaces
    it. If the new batch has other shapes or dtypes, state them with `element_spec_override`. JAX
    does not allow such callbacks under `vmap` or `jax.checkpoint`.

    >>> import cereal
    >>> def log(batch, mask):
    ...     print("sum", batch.sum())
    >>> logged = cereal.HostCallbackTransform(log)
    >>> loader = cereal.DataLoader([cereal.RangeSource(4), cereal.BatchTransform(2), logged])
    >>> for batch, mask in loader:
    ...     pass
    sum 1
    sum 5
    """

    fn: Function
    override: Spec | None = static_field()

    def __init__(self, fn: Callable[[Any, Any], Any], *, element_spec_override: Any = None) -> None:
        function = as_function(fn, "HostCallbackTransform")
        override = as_override(element_spec_override, "HostCallbackTransform")
        set_fields(self, fn=function, override=override)

    @property
    def traits(self) -> StageTraits:  # type: ignore[override]
        return StageTraits(changes_mask=True, callbacks=(self.fn.identity,))

    @property
    def _label(self) -> str:
        return f"HostCallbackTransform({self.fn.name})"

    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        del keys, lanes
        promised = Spec(values) if self.override is None else self.override
        result = (promised.tree, jax.ShapeDtypeStruct(mask.shape, mask.dtype))

        def call(batch: Any, mask: Any) -> tuple[Any, Any]:
            return self._call(batch, mask, promised), np.asarray(mask)

        call = guarded(call, self.fn.identity, lambda *_: poison(result))
        return io_callback(call, result, device_count_of_program(mask), values, mask, ordered=True)

    def _call(self, batch: Any, mask: Any, promised: Spec) -> Any:
        batch, mask = as_numpy((batch, mask))
        result = self.fn(batch, mask)
        if result is None and self.override is not None:
            raise PipelineError(
                f"{self._label} returned None, but `element_spec_override` promises "
                f"{self.override}; return the new batch."
            )
        result = batch if result is None else result
        result = jax.tree_util.tree_map_with_path(_canonical, result)
        if Spec(result) != promised:
            raise PipelineError(
                f"{self._label} returned {format_spec(result)} instead of {promised}; return the "
                f"same structure, shapes and dtypes, or state yours as `element_spec_override`."
            )
        return result

    def __call__(self, source: Source[T]) -> Source[T]:
        return super().__call__(source)


def _canonical(path: Any, leaf: Any) -> np.ndarray:
    """An array with the dtype that JAX has for it: float64 is float32, unless x64 is on."""
    array = np.asarray(leaf)
    name = lambda: f"`batch{jax.tree_util.keystr(path)}`"  # noqa: E731
    return narrowed(array, canonical(array.dtype), name)
