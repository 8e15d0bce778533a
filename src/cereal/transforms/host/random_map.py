"""Random Python functions over elements, run by workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ...base.errors import PipelineError
from ...base.pytree import pytree_dataclass, set_fields
from ...host.host_data import HostFunction
from ...pipeline.host_stage import HostStage, as_host_function
from ...pipeline.traits import StageTraits
from ...reading.stages import RandomStage


@pytree_dataclass
class HostRandomMapTransform(HostStage):
    """Augments elements in Python: `fn(element, rng)` gets a NumPy generator for each element.

        key, epoch, index, number of the random stage  -->  the element's generator

    An element of an epoch always gets the same random numbers: from any worker, before and after
    batching, and after a restart. Use the generator only during the call: do not keep it.

    >>> import cereal
    >>> noise = cereal.HostRandomMapTransform(lambda x, rng: x + rng.integers(10))
    >>> before = cereal.DataLoader([cereal.RangeSource(6), noise, cereal.BatchTransform(3)])
    >>> after = cereal.DataLoader([cereal.RangeSource(6), cereal.BatchTransform(3), noise])
    >>> (before.batch_at(0, 1)[0] == after.batch_at(0, 1)[0]).all().item()
    True
    """

    traits: ClassVar[StageTraits] = StageTraits(random=True)

    fn: HostFunction

    def __init__(self, fn: Callable[[Any, np.random.Generator], Any]) -> None:
        function, second = as_host_function(fn, "HostRandomMapTransform", "rng")
        if not second:
            raise PipelineError(
                f"HostRandomMapTransform: `{function.name}` must take two arguments, the element "
                f"and a NumPy generator; write `def {function.name}(element, rng): ...`, or use "
                f"HostMapTransform."
            )
        set_fields(self, fn=function)

    def over_elements(self, number: int) -> RandomStage:
        return RandomStage(self._label, self.fn.fn, number)
