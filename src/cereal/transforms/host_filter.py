"""Elements that do not count, decided in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np

from ..core.errors import PipelineError
from ..core.host_data import HostFunction
from ..core.host_stage import HostStage, as_host_function
from ..core.pytree import pytree_dataclass, set_fields
from ..core.reading import SKIPPED, for_each
from ..core.rows import Rows
from ..core.taken import Taken, protected


@pytree_dataclass
class HostFilterTransform(HostStage):
    """Masks the elements for which the Python function `fn(element)` is False.

        element   "a"   "bcd"  "ef"   "ghij"
        mask      False True   False  True       fn = lambda text: len(text) > 2

    The place in the batch stays, so that a batch is still a function of its position; its mask is
    False, later host stages do not see the element, and another one of the batch stands there.

    >>> import cereal
    >>> long = cereal.HostFilterTransform(lambda text: len(text) > 2)
    >>> stages = [["a", "bcd", "ef", "ghij"], long, cereal.HostMapTransform(len)]
    >>> for batch, mask in cereal.DataLoader([*stages, cereal.BatchTransform(4)]):
    ...     print(batch.tolist(), mask.tolist())
    [3, 3, 3, 4] [False, True, False, True]
    """

    changes_mask: ClassVar[bool] = True

    fn: HostFunction

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        set_fields(self, fn=as_host_function(fn, "HostFilterTransform", "")[0])

    def on_elements(self, taken: Taken, rows: Rows, words: Any) -> Taken:
        del words
        fn, values = self.fn.fn, taken.elements()

        def run(lane: int) -> Any:
            decision = fn(protected(values[lane]))
            if not isinstance(decision, bool | np.bool_) and getattr(decision, "shape", 1) != ():
                raise PipelineError(
                    f"{self.label}: the function must return one True or False per element, "
                    f"returned {type(decision).__name__}; write a comparison."
                )
            return values[lane] if decision else SKIPPED

        made, keep = for_each(self.label, rows, run, taken.n, taken.keep)
        if taken.is_listed:
            return Taken(made, keep=keep)
        return Taken(None, taken.stacked, taken.n, keep)

    def _on_sample(self, source: Any, rows: Rows, words: Any) -> Any:
        element = sample = source.sample()
        if source.lanes:
            element = jax.tree.map(lambda x: x[(0,) * len(source.lanes)], sample)
        flat = rows.reshape(-1)[:1]
        self.on_elements(Taken([element]), flat, words)
        return sample
