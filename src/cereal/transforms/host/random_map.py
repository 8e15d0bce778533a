"""Random Python functions over elements, run by workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ...base.errors import PipelineError
from ...base.pytree import pytree_dataclass, set_fields
from ...host.element_batch import ElementBatch, protected
from ...host.host_data import HostFunction
from ...order.rows import Rows
from ...pipeline.host_stage import HostStage, as_host_function
from ...pipeline.traits import StageTraits


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

    def on_elements(self, taken: ElementBatch, rows: Rows, words: Any) -> ElementBatch:
        fn = self.fn.fn
        high, low = (word.tolist() for word in words)

        def run(value: Any, lane: int) -> Any:
            with generator_for(high[lane], low[lane]) as rng:
                return fn(protected(value), rng)

        return taken.mapped(self._label, rows, run)


class _Generators(threading.local):
    """One generator for each thread: making one costs 40 µs, giving it another key 2."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(key=0)
        self.generator = np.random.Generator(self.bits)
        self.state: Any = self.bits.state
        self.busy = False


_generators = _Generators()


class generator_for:  # noqa: N801
    """A `with` block around the generator of a random key: Philox with this key, at its start."""

    def __init__(self, high: int, low: int) -> None:
        self._key = (high << 32) | low

    def __enter__(self) -> np.random.Generator:
        self._mine = _generators
        if self._mine.busy:  # the user's function reads another pipeline in the same thread
            self._mine = _Generators()
        self._mine.busy = True
        return _keyed(self._mine, self._key)

    def __exit__(self, *_: object) -> None:
        self._mine.busy = False


def _keyed(mine: Any, key: int) -> np.random.Generator:
    # The bet: these fields are all that NumPy's Philox keeps of earlier draws. Its test is
    # `test_nothing_that_an_element_drew_is_left_for_the_next`.
    state = mine.state
    state["state"]["key"][:] = key, 0
    state["state"]["counter"][:] = 0
    state["buffer_pos"], state["has_uint32"], state["uinteger"] = 4, 0, 0
    mine.bits.state = state
    return mine.generator
