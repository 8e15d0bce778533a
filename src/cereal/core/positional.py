"""Sources whose every batch is a function of (key, position).

`IndexedSource` is for users to implement; `Positional` is what lies between it and a `Source`: an
indexed source with stages around it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from .errors import PipelineError
from .execute import many_steps, routed_rows, run_many, run_next
from .host_program import fetched_in_program
from .ordering import Order, as_order
from .permutation import MAX_HOST, MAX_TRACED
from .position import Remainder
from .rows import Plan, Rows, narrow
from .source import Mask, Source
from .spec import without_weak_types
from .state import Fingerprint, PipelineState, check_state, start_state

T_co = TypeVar("T_co", covariant=True)


class Positional(Source[T_co]):
    """A source whose every step is a pure function of (key, position)."""

    @property
    @abstractmethod
    def order(self) -> Order:
        """In which order the data is visited."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Elements in an epoch."""

    @property
    @abstractmethod
    def remainder(self) -> Remainder:
        """What happens at the end of an epoch."""

    @property
    def random_stages(self) -> int:
        """How many random stages there are up to here; numbers the next one."""
        return 0

    @property
    def masks(self) -> bool:
        """Whether a stage changes masks, so that they cannot be told from positions."""
        return False

    @property
    def varies(self) -> bool:
        """Whether the data itself gives other elements in another epoch, whatever the order."""
        return False

    @property
    def random(self) -> bool:
        """Whether what a step gives depends on the key, or epochs differ."""
        return self.order.random or self.random_stages > 0 or self.varies

    def route(self, rows: Rows) -> Rows:
        """The rows with what is below them, found by arithmetic ahead of reading.

        For rows of any number of axes, in NumPy or JAX; `read` does it if nobody did.
        """
        return rows

    def fetch(self, rows: Rows) -> Rows:
        """The routed rows (in NumPy) with what Python reads for them; outside of programs."""
        return rows

    def next_rows(self, words: Any) -> tuple[Rows, Any]:
        """The rows of the next step, fetched, and the state's words after it; outside of programs.

        For sources that Python reads.
        """
        rows, words = routed_rows(self, words, 1)
        return self.fetch(rows[0]), words

    @abstractmethod
    def read(self, rows: Rows) -> tuple[T_co, Any]:
        """The values of these rows, and their mask (None: all real)."""

    @property
    def produces(self) -> bool:
        """Whether Python can make its elements, so that host stages may follow."""
        return False

    @property
    def masks_on_host(self) -> bool:
        """Whether elements may be left out by what Python does."""
        return False

    def produce(self, rows: Rows) -> Any:
        """What Python makes for routed rows (in NumPy): before batching a `Taken`, for rows of
        one axis; after it (values, mask), for the rows of one batch."""
        raise TypeError(f"{self.label} is made by compiled code")

    def sample(self) -> Any:
        """What `produce` gives, without the mask: one element, or one batch of it."""
        raise TypeError(f"{self.label} is made by compiled code")

    def filler(self) -> Any:
        """What stands in a batch where an element was left out: always the same, valid input."""
        return self.sample()

    def passes(self, rows: Rows) -> Any:
        """Of fetched rows, what `read` would only hand through; None: it computes."""
        del rows
        return None

    @property
    def quick(self) -> bool:
        """Whether Python reads it in so little time that a worker would not pay."""
        return True

    @property
    def ahead(self) -> int:
        """How many elements the source asks to be read ahead; 0: it does not say."""
        return 0

    @property
    def stream(self) -> Any:
        """The iterators below, where elements come from something that only iterates."""
        return None

    def moved(self, state: PipelineState, words: Any) -> PipelineState:
        """The state at other words, outside of programs."""
        if self.stream is None:
            return state.replaced(words)
        return PipelineState(words, state.fingerprint, self.stream.bookmark_for(words))

    @property
    def unknown_length(self) -> bool:
        """Whether an epoch ends when an iterator ends, and nobody knows when."""
        return self.stream is not None and self.stream.length is None

    @property
    def bookmark(self) -> Any:
        """What a state carries besides the position, at its beginning."""
        return None

    @property
    def service(self) -> int | None:
        """The number of who reads ahead for callbacks of programs."""
        return None

    @property
    def plan(self) -> Plan:
        """How this pipeline walks its data."""
        return Plan(self.order, self.length, self.lanes, self.remainder)

    @property
    def steps_per_epoch(self) -> int:  # type: ignore[override]
        """Steps in an epoch that starts at its beginning."""
        return self.plan.steps

    @property
    def fingerprint(self) -> Fingerprint:
        """What a state of this pipeline must agree with."""
        length = self.length
        if length == MAX_HOST:  # without an end, which version 0.1.0 wrote so
            length = MAX_TRACED
        return Fingerprint(length, self.walk, self.random_stages)

    @property
    def walk(self) -> str:
        """The way through the data, in words: a state for another one is refused."""
        return self.order.name

    def init_state(self, key: Any) -> PipelineState:
        """The state at the first element of epoch 0, for a JAX key or an integer."""
        return start_state(key, self.fingerprint, self.bookmark)

    def step(self, state: PipelineState) -> tuple[T_co, Mask, PipelineState]:
        """`next` as it is traced: no compilation, no placement."""
        return step_ending(self, state, None)

    def next(self, state: PipelineState) -> tuple[T_co, Mask, PipelineState]:
        """The next step's values, their mask, and the state after it; always compiled."""
        check_state(state, self.fingerprint)
        return run_next(self, state)

    def step_many(self, state: PipelineState, n: int) -> tuple[T_co, Mask, PipelineState]:
        """Rows of n steps, read at once where there are no batches among them."""
        if self.lanes or self.host or self.callbacks:
            return many_steps(self, state, n)
        rows, words = self.plan.rows_for(state.words, n)
        values, mask = self.read(self.route(rows))
        return values, jnp.ones(n, jnp.bool_) if mask is None else mask, state.replaced(words)

    def next_many(self, state: PipelineState, n: int) -> tuple[T_co, Mask, PipelineState]:
        """The next n steps' values, stacked; always compiled."""
        check_state(state, self.fingerprint)
        return run_many(self, state, n)


def step_ending(
    source: Positional[T_co], state: PipelineState, remainder: Remainder | None
) -> tuple[T_co, Mask, PipelineState]:
    """A step as it is traced; `remainder` is a rule for the end of an epoch other than its own."""
    rows, words = source.plan.ending(remainder).rows_for(state.words, 1)
    rows = source.route(rows)[0]
    if source.host:
        position = None if remainder else (state.words, state.bookmark)
        rows = fetched_in_program(source, rows, position)
    values, mask = source.read(rows)
    if mask is None:
        mask = jnp.ones(source.lanes, jnp.bool_)
    return values, mask, state.replaced(words)


class IndexedSource(Positional[T_co]):
    """Data with a length and a batched read by index. All else is provided.

    `take` gets a whole batch of indices, since one vectorised read of 128 rows costs what one
    row costs in a Python loop. An `ordering` field makes the source shuffle.

    >>> import cereal, jax, jax.numpy as jnp
    >>> @cereal.pytree_dataclass
    ... class Squares(cereal.IndexedSource[jax.Array]):
    ...     n: int = cereal.static_field()
    ...     ordering: str = cereal.static_field(default="sequential")
    ...     def __len__(self):
    ...         return self.n
    ...     def element_spec(self):
    ...         return jax.ShapeDtypeStruct((), jnp.int32)
    ...     def take(self, indices):
    ...         return indices ** 2
    >>> for batch, mask in cereal.DataLoader([Squares(6), cereal.BatchTransform(3)]):
    ...     print(batch)
    [0 1 4]
    [ 9 16 25]
    """

    ordering: Any = "sequential"

    @abstractmethod
    def __len__(self) -> int:
        """Number of elements."""

    @abstractmethod
    def take(self, indices: jax.Array) -> T_co:
        """The elements at these indices (one axis of int32), stacked."""

    @property
    def order(self) -> Order:
        return as_order(self.ordering, len(self), type(self).__name__)

    @property
    def length(self) -> int:
        n = len(self)
        if n < 1:
            raise PipelineError(f"{type(self).__name__}: it is empty, its `len` is {n}.")
        order = self.order
        most = MAX_HOST if self.wide and order.wide else MAX_TRACED
        if n > most:
            raise PipelineError(f"{type(self).__name__}: {_too_many(n, self.wide, order)}")
        length = order.length(n)
        if length > most:
            raise PipelineError(
                f"{type(self).__name__}: an epoch of {length} elements, as its order "
                f"{order.name} has it, is more than compiled code can count ({MAX_TRACED})."
            )
        return length

    @property
    def remainder(self) -> Remainder:
        return "wrap"

    @property
    def wide(self) -> bool:
        """Whether it reads positions of more than 31 bits: what NumPy computes them for."""
        return False

    @property
    def keyed(self) -> bool:
        """Whether the element at an index depends on the key."""
        return self.random_stages > 0

    @property
    def fixed(self) -> bool:
        """Whether an index stands for the same element in every epoch, augmentation aside."""
        return True

    @property
    def once(self) -> bool:
        """Whether no two indices may stand for one element of the data."""
        return True

    @property
    def roots(self) -> frozenset[int]:
        """Identities of the data that it reads: two sources that share one may share elements."""
        return frozenset([id(self), *(id(leaf) for leaf in jax.tree.leaves(self))])

    @property
    def members(self) -> Sequence[IndexedSource[Any]]:
        """The sources that it reads, if it is made of others."""
        return ()

    def on_host(self) -> IndexedSource[T_co]:
        """The same data for host stages: read by NumPy."""
        return self

    @property
    def overlap(self) -> int:
        """0, or if elements share data, the stride from which on they would not."""
        return 0

    @property
    def random(self) -> bool:
        return self.order.random or self.keyed or self.varies

    def read(self, rows: Rows) -> tuple[T_co, Any]:
        """Reads rows of one axis, or a single row."""
        if rows.index.ndim == 1:
            return without_weak_types(self.take(narrow(rows.index))), rows.valid
        values, mask = self.read(rows.reshape(1))
        return jax.tree.map(lambda x: x[0], values), None if mask is None else mask[0]


def _too_many(n: int, wide: bool, order: Order) -> str:
    if wide and order.wide:
        return f"{n} elements are more than can be counted ({MAX_HOST})."
    if wide:
        return (
            f"{n} elements are more than the order {order.name} can count ({MAX_TRACED}); pass "
            f'`ordering="shuffle"` or `ordering="sequential"`.'
        )
    return f"{n} elements are more than compiled code can count ({MAX_TRACED})."
