"""Renames the keys of elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ..base.errors import PipelineError
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..pipeline.stage import Stage
from ..pipeline.traits import StageTraits


@pytree_dataclass
class RenameTransform(Stage[Any, Any]):
    """Renames keys of elements that are dicts; other keys stay as they are.

    >>> import cereal, numpy as np
    >>> source = cereal.ArraySampleSource({"x": np.zeros((4, 2)), "y": np.zeros(4)})
    >>> renamed = cereal.RenameTransform({"x": "image", "y": "label"})(source)
    >>> sorted(renamed.element_spec())
    ['image', 'label']
    """

    traits: ClassVar[StageTraits] = StageTraits(light=True, lane_wise=True)

    renames: tuple[tuple[str, str], ...] = static_field()

    def __init__(self, renames: Mapping[str, str]) -> None:
        if not isinstance(renames, Mapping):
            raise PipelineError(
                f"RenameTransform: `renames` must be a dict from old to new names, got "
                f'{type(renames).__name__}; write `RenameTransform({{"x": "image"}})`.'
            )
        set_fields(self, renames=tuple(renames.items()))

    @property
    def _label(self) -> str:
        return "RenameTransform(" + ", ".join(f"{a}->{b}" for a, b in self.renames) + ")"

    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        del keys, lanes
        if not isinstance(values, dict):
            raise PipelineError(
                f"{self._label} needs elements that are dicts, got {type(values).__name__}; give "
                f'the data as `{{"x": images, "y": labels}}`.'
            )
        new = dict(self.renames)
        missing = [name for name in new if name not in values]
        if missing:
            raise PipelineError(
                f"{self._label}: there is no key {missing[0]!r}; the element has {sorted(values)}."
            )
        names = [new.get(name, name) for name in values]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise PipelineError(
                f"{self._label}: two values would be called {twice[0]!r}; rename the other one too."
            )
        return dict(zip(names, values.values(), strict=True)), mask
