"""The state of a replay buffer, and what it is made for."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...base.errors import StateError
from ...base.pytree import data_fields, pytree_dataclass, set_copy, static_field
from ...base.spec import Spec
from ...device.transfer import to_host
from .storage.ring import Ring, empty_ring
from .storage.sum_tree import empty_tree
from .storage.table import Table

Sample = Literal["uniform", "prioritized", "queue"]
Write = Literal["fifo", "reservoir"]


@dataclasses.dataclass(frozen=True)
class Layout:
    """What the items in a buffer mean; a state belongs to one layout.

    An item is the start of `span` steps in a row, of one of `columns` environments. Items are drawn
    whose step is a multiple of `period`.
    """

    capacity: int
    columns: int
    span: int
    period: int
    sample: Sample
    write: Write
    alpha: float
    block: int = 1  # items are written so many at a time: in host memory, those of a step
    ends: str | None = None  # the key that says where an episode ends
    returns: bool = False  # whether rewards of several steps are summed

    @property
    def in_words(self) -> str:
        """As in `sample=prioritized, alpha=0.6, span=3`: what the numbers in a state depend on."""
        words = [f"sample={self.sample}", f"write={self.write}", f"environments={self.columns}"]
        words += [f"alpha={self.alpha:g}"] if self.sample == "prioritized" else []
        words += (
            [f"span={self.span}", f"period={self.period}"]
            if self.span > 1 or self.period > 1
            else []
        )
        words += [f"written={self.block} at a time"] if self.block > 1 else []
        return ", ".join(words)

    @property
    def behind(self) -> int:
        """How many of the newest items have not all of their steps yet."""
        return (self.span - 1) * self.columns


# The numbers of a state, which lie in one array: every array costs a program call a microsecond.
_NUMBERS = {
    "head": 1,
    "count": 1,
    "written": 2,
    "waiting": 1,
    "phase": 1,
    "key": 2,
    "batches": 2,
    "overwritten": 1,
    "refused": 1,
    "not_filled": 1,
    "largest": 1,
}
_BEGINS = dict(zip(_NUMBERS, itertools.accumulate(_NUMBERS.values(), initial=0), strict=False))
_INT, _FLOAT = {"head", "count", "waiting", "phase"}, {"largest"}


@pytree_dataclass
class ReplayState:
    """The state of a `ReplayTransform`: the items, their priorities, and what it draws next.

        source        the state of the pipeline below: environments, the policy
        table         the items
        nodes         the priorities, as a sum tree; None if there are none
        numbers       all numbers, as 32-bit words: where the ring is, the key, and these:
        waiting       for a queue: how many items nobody has taken yet
        phase         the number of the next step, modulo the period
        batches       how many were drawn: two words
        largest       the largest priority so far
        overwritten   how many new priorities came for items that were overwritten meanwhile
        refused       how many new priorities were negative, NaN, infinite or too large
        not_filled    how many times `fill_replay` stored nothing, since episodes would be joined

    All of it is arrays: a buffer that was saved and restored continues exactly.
    """

    source: Any
    table: Table
    nodes: Any
    numbers: jax.Array
    layout: Layout = static_field()

    @property
    def waiting(self) -> jax.Array:
        return self._number("waiting")

    @property
    def phase(self) -> jax.Array:
        return self._number("phase")

    @property
    def key(self) -> jax.Array:
        return self._number("key")

    @property
    def batches(self) -> jax.Array:
        return self._number("batches")

    @property
    def largest(self) -> jax.Array:
        return self._number("largest")

    @property
    def overwritten(self) -> jax.Array:
        return self._number("overwritten")

    @property
    def refused(self) -> jax.Array:
        return self._number("refused")

    @property
    def not_filled(self) -> jax.Array:
        return self._number("not_filled")

    @property
    def ring(self) -> Ring:
        """The items in their slots."""
        numbers = (self._number(name) for name in ("head", "count", "written"))
        return Ring(self.table, *numbers)

    def _number(self, name: str) -> Any:
        begin, size = _BEGINS[name], _NUMBERS[name]
        whole = self.numbers
        words = whole[..., begin] if size == 1 else whole[..., begin : begin + size]
        if name in _FLOAT:
            return lax.bitcast_convert_type(words, jnp.float32)
        return words.astype(jnp.int32) if name in _INT else words

    def but(self, **changed: Any) -> ReplayState:
        """The same with some numbers changed, or with another `ring`."""
        ring = changed.pop("ring", None)
        if ring is not None:
            changed |= {name: getattr(ring, name) for name in ("head", "count", "written")}
        assert changed.keys() <= _NUMBERS.keys(), changed.keys() - _NUMBERS.keys()
        table = self.table if ring is None else ring.table
        parts = []
        for name, size in _NUMBERS.items():
            begin = _BEGINS[name]
            part = changed.get(name, self.numbers[begin : begin + size])
            as_is = name in _FLOAT and name in changed
            part = lax.bitcast_convert_type(part, jnp.uint32) if as_is else part.astype(jnp.uint32)
            parts.append(part.reshape(size))
        return set_copy(self, table=table, numbers=jnp.concatenate(parts))

    def counted(self, name: str) -> np.ndarray:
        """A number as Python has it, once it is computed; of states of `jax.vmap`, [..., words]."""
        return _counted(self.numbers, name)

    def _path_names(self) -> tuple[str, ...]:
        """What its parts are called in paths of pytrees: one says to which layout they belong.

        Checkpoints of arrays have no place for what is static; see `PipelineState`.
        """
        said = {"numbers": f"numbers({self.layout.in_words})"}
        return tuple(said.get(name, name) for name in data_fields(ReplayState))

    @property
    def _noticed(self) -> tuple[jax.Array, Callable[[Any], str | None]]:
        """What a program cannot say: see `loaders/notices.py`."""
        return self.numbers, _in_words


def _counted(numbers: Any, name: str) -> np.ndarray:
    begin = _BEGINS[name]
    return to_host(numbers)[..., begin : begin + _NUMBERS[name]]


def _in_words(numbers: Any) -> str | None:
    refused, not_filled = (int(_counted(numbers, name).sum()) for name in ("refused", "not_filled"))
    words = []
    if refused:
        were = "priority was" if refused == 1 else "priorities were"
        words.append(
            f"{refused} {were} negative, NaN, infinite or too large, and left out: those items "
            f"keep their old ones. Look at what your training step returns, errors or losses, "
            f"before `cereal.rl.set_priorities` gets it."
        )
    if not_filled:
        times = "once" if not_filled == 1 else f"{not_filled} times"
        words.append(
            f"`cereal.rl.fill_replay` stored nothing, {times}: windows would have gone on from a "
            f"step that ends no episode in steps that do not follow it. Fill the buffer before the "
            f"first batch, with `truncate=True` or episodes that end."
        )
    return " ".join(words) or None


def empty_replay(
    source: Any, spec: Spec, layout: Layout, key: jax.Array, *, on_host: bool
) -> ReplayState:
    """A state without items."""
    table = empty_ring(spec, layout.capacity, on_host=on_host).table
    nodes = empty_tree(layout.capacity) if layout.sample == "prioritized" else None
    return ReplayState(source, table, nodes, _first_numbers(key), layout)


@jax.jit
def _first_numbers(key: jax.Array) -> jax.Array:
    numbers = jnp.zeros(sum(_NUMBERS.values()), jnp.uint32)
    one = lax.bitcast_convert_type(jnp.float32(1), jnp.uint32)
    begin = _BEGINS["key"]
    return numbers.at[begin : begin + 2].set(key).at[_BEGINS["largest"]].set(one)


def _is_buffer(node: Any) -> bool:
    return isinstance(node, ReplayState)


def find_buffers(state: Any) -> list[ReplayState]:
    """All buffers in a state. Stages and mixtures wrap them in states of their own."""
    leaves = jax.tree.leaves(state, is_leaf=_is_buffer)
    return [leaf for leaf in leaves if _is_buffer(leaf)]


def refuse_many(state: ReplayState, owner: str, write: str) -> None:
    """Refuses states of `jax.vmap`, which hold several buffers, outside of `jax.vmap`."""
    if state.numbers.ndim > 1:
        raise StateError(
            f"{owner}: the state has axes {list(state.numbers.shape[:-1])} in front, as `jax.vmap` "
            f"makes them; write `{write}`."
        )


def find_all_buffers(state: Any) -> list[ReplayState]:
    """The same, and the buffers from which these are filled."""
    found = find_buffers(state)
    return found + [inside for each in found for inside in find_all_buffers(each.source)]


def with_changed_buffer(state: Any, buffer: ReplayState, changed: ReplayState) -> Any:
    """The state in which another buffer is in the place of this one."""
    return jax.tree.map(lambda leaf: changed if leaf is buffer else leaf, state, is_leaf=_is_buffer)


@pytree_dataclass
class MixedState:
    """The states of pipelines whose batches are joined; `sizes` are those of their batches."""

    parts: tuple[Any, ...]
    sizes: tuple[int, ...] = static_field()
