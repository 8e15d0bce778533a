"""Stages: transforms that wrap a source, and the sources that they make.

A stage says what it does to one step's values; where it stands decides what a step is:

    ElementStage   before batching: the stage sees one element, and is vmapped over the lanes
    BatchStage     after batching: the stage sees the batch
    StreamStage    over a source that is no function of its position
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp

from .errors import CerealError, PipelineError, UsageError
from .execute import run_next
from .ordering import Order
from .position import Remainder
from .pytree import pytree_dataclass, static_field
from .rows import Rows
from .source import IndexedSource, Mask, Positional, Source
from .spec import Spec, format_spec, is_array_like
from .state import key_words
from .threefry import STAGE, threefry

A = TypeVar("A")
B = TypeVar("B")
T_co = TypeVar("T_co", covariant=True)


class Transform(ABC, Generic[A, B]):
    """Anything that makes a source from a source: `Transform(...)(source)`, or in a list.

    Any callable from Source to Source is a stage too; this is the base of those that come with
    cereal.

    >>> import cereal
    >>> def every_pixel_twice(source):
    ...     return cereal.MapTransform(lambda x: 2 * x)(source)
    >>> loader = cereal.DataLoader([cereal.RangeSource(3), every_pixel_twice])
    >>> [int(x) for x, mask in loader]
    [0, 2, 4]
    """

    @abstractmethod
    def __call__(self, source: Source[A]) -> Source[B]:
        """The source with this transform around it."""

    @property
    def label(self) -> str:
        """How drawings and error messages call this transform."""
        return type(self).__name__

    def __repr__(self) -> str:
        return self.label


class Stage(Transform[A, B]):
    """A transform of one step's values."""

    random: ClassVar[bool] = False
    changes_mask: ClassVar[bool] = False
    light: ClassVar[bool] = False

    @abstractmethod
    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        """New values and mask. Arrays have `lanes` as leading axes: none for an element.

        `keys` has one key per lane for a random stage and is None for others.
        """

    @property
    def callbacks(self) -> tuple[Any, ...]:
        """The Python functions that this stage runs once per batch."""
        return ()

    @property
    def placement(self) -> Any:
        """The device or sharding that batches go to from here on."""
        return None

    def __call__(self, source: Source[A]) -> Source[B]:
        if not isinstance(source, Source):
            raise PipelineError(
                f"{self.label} must be called with a source, got {type(source).__name__}; "
                f"write `{type(self).__name__}(...)(source)`."
            )
        if not isinstance(source, Positional):
            return StreamStage(source, self, infer_spec(self, source, source.lanes))
        if source.lanes:
            return BatchStage(source, self, infer_spec(self, source, source.lanes))
        assert isinstance(source, IndexedSource)
        return ElementStage(source, self, infer_spec(self, source, ()))


def infer_spec(stage: Stage[Any, Any], source: Source[Any], lanes: tuple[int, ...]) -> Spec:
    """What the stage makes of the source's elements, without running it."""
    keys = None
    if stage.random:
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), lanes or (1,)))
        keys = keys if lanes else jax.eval_shape(lambda k: k[0], keys)
    mask = jax.ShapeDtypeStruct(lanes, jnp.bool_)
    spec = source.element_spec()
    try:
        out = jax.eval_shape(
            lambda values, mask, keys: _checked(stage, *stage.apply(values, mask, keys, lanes)),
            spec,
            mask,
            keys,
        )
    except CerealError:
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise PipelineError(
            f"{stage.label} failed on {format_spec(spec)}: {type(error).__name__}: {first}"
        ) from error
    return Spec(out)


def _checked(stage: Stage[Any, Any], values: Any, mask: Any) -> Any:
    del mask
    leaves = jax.tree_util.tree_flatten_with_path(values)[0]
    for path, leaf in leaves:
        if not is_array_like(leaf):
            place = jax.tree_util.keystr(path) or "its result"
            raise PipelineError(
                f"{stage.label} must return a tree of arrays, but {place} is "
                f"{type(leaf).__name__} ({leaf!r:.60}); return arrays of fixed shape and dtype."
            )
    if not leaves:
        raise PipelineError(
            f"{stage.label} returned {values!r}, which holds no array; did `fn` forget to "
            f"`return` the batch?"
        )
    return values


def _as_built(stage: Stage[Any, Any], values: Any, spec: Spec, drop: int) -> Any:
    """The values as arrays, after checking that they are what the built pipeline promised."""
    values = jax.tree.map(jnp.asarray, _checked(stage, values, None))
    now = Spec(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[drop:], x.dtype), values))
    if now != spec:
        raise PipelineError(
            f"{stage.label} now returns {now}, but returned {spec} when the pipeline was built; "
            f"its result must depend on nothing but its arguments."
        )
    return values


class _Around(Positional[T_co]):
    """What a stage over an indexed pipeline hands through."""

    source: Any
    stage: Stage[Any, Any]
    spec: Spec

    @property
    def inner(self) -> Source[Any]:
        return self.source

    @property
    def label(self) -> str:
        return self.stage.label

    @property
    def order(self) -> Order:
        return self.source.order

    @property
    def length(self) -> int:
        return self.source.length

    @property
    def lanes(self) -> tuple[int, ...]:
        return self.source.lanes

    @property
    def remainder(self) -> Remainder:
        return self.source.remainder

    @property
    def random_stages(self) -> int:
        return self.source.random_stages + self.stage.random

    @property
    def masks(self) -> bool:
        return self.source.masks or self.stage.changes_mask

    @property
    def callbacks(self) -> tuple[Any, ...]:
        return self.source.callbacks + self.stage.callbacks

    @property
    def light(self) -> bool:
        return self.source.light and self.stage.light

    @property
    def placement(self) -> Any:
        return self.stage.placement or self.source.placement

    def element_spec(self) -> Any:
        return self.spec.tree

    def _keys(self, rows: Rows) -> Any:
        return rows.element_keys(self.source.random_stages) if self.stage.random else None


@pytree_dataclass
class BatchStage(_Around[T_co]):
    """A stage after batching."""

    source: Positional[Any]
    stage: Stage[Any, Any]
    spec: Spec = static_field()

    def read(self, rows: Rows) -> tuple[T_co, Any]:
        values, mask = self.source.read(rows)
        seen = jnp.ones(self.lanes, jnp.bool_) if mask is None else mask
        values, changed = self.stage.apply(values, seen, self._keys(rows), self.lanes)
        return _as_built(self.stage, values, self.spec, 0), changed if self.masks else mask


@pytree_dataclass
class ElementStage(_Around[T_co], IndexedSource[T_co]):
    """A stage before batching: an indexed source of changed elements."""

    source: Any  # IndexedSource
    stage: Stage[Any, Any]
    spec: Spec = static_field()

    def __len__(self) -> int:
        return len(self.source)

    def take(self, indices: jax.Array) -> T_co:
        if self.random_stages:
            raise UsageError(
                f"{self.label} is random: its elements depend on a key and an epoch; read them "
                f"with `next(state)`, or take from the source below it."
            )
        zeros = jnp.zeros(indices.shape, jnp.uint32)
        return self.read(Rows(jnp.zeros(2, jnp.uint32), zeros, indices, None))[0]

    def read(self, rows: Rows) -> tuple[T_co, Any]:
        values, mask = self.source.read(rows)
        seen = jnp.ones(rows.index.shape, jnp.bool_) if mask is None else mask

        def apply(values: Any, mask: Any, keys: Any) -> tuple[Any, Any]:
            return self.stage.apply(values, mask, keys, ())

        axes = rows.index.ndim
        for _ in range(axes):
            apply = jax.vmap(apply, in_axes=(0, 0, 0 if self.stage.random else None))
        values, changed = apply(values, seen, self._keys(rows))
        return _as_built(self.stage, values, self.spec, axes), changed if self.masks else mask


@pytree_dataclass
class StreamState:
    """The state of a random stage over a stream: a key, and how many keys it has used."""

    source: Any
    key: jax.Array
    count: jax.Array


@pytree_dataclass
class StreamStage(Source[T_co]):
    """A stage over a source that carries a state of its own."""

    source: Source[Any]
    stage: Stage[Any, Any]
    spec: Spec = static_field()

    @property
    def inner(self) -> Source[Any]:
        return self.source

    @property
    def label(self) -> str:
        return self.stage.label

    @property
    def steps_per_epoch(self) -> int:  # type: ignore[override]
        return self.source.steps_per_epoch

    @property
    def callbacks(self) -> tuple[Any, ...]:
        return self.source.callbacks + self.stage.callbacks

    @property
    def placement(self) -> Any:
        return self.stage.placement or self.source.placement

    @property
    def lanes(self) -> tuple[int, ...]:
        return self.source.lanes

    def element_spec(self) -> Any:
        return self.spec.tree

    def init_state(self, key: Any) -> Any:
        inner = self.source.init_state(key)
        if not self.stage.random:
            return inner
        words = jnp.asarray(key_words(key))
        own = jnp.stack(threefry((words[0], words[1]), (jnp.uint32(self._depth()), STAGE)))
        return StreamState(inner, own, jnp.zeros(2, jnp.uint32))

    def next(self, state: Any) -> tuple[T_co, Mask, Any]:
        return run_next(self, state)

    def step(self, state: Any) -> tuple[T_co, Mask, Any]:
        values, mask, inner = self.source.step(state.source if self.stage.random else state)
        keys = None
        if self.stage.random:
            keys, count = _draw(state, self.lanes)
            inner = StreamState(inner, state.key, count)
        values, mask = self.stage.apply(values, mask, keys, self.lanes)
        return _as_built(self.stage, values, self.spec, 0), mask, inner

    def _depth(self) -> int:
        """Random stages below this one."""
        depth, source = 0, self.source
        while source is not None:
            depth += isinstance(source, StreamStage) and source.stage.random
            source = source.inner
        return depth


def _draw(state: StreamState, lanes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """A key per lane, and the counter after them."""
    size = 1
    for axis in lanes:
        size *= axis
    low = state.count[1] + jnp.arange(size, dtype=jnp.uint32)
    high = state.count[0] + (low < state.count[1]).astype(jnp.uint32)
    words = jnp.stack(threefry((state.key[0], state.key[1]), (high, low)), axis=-1)
    keys = jax.random.wrap_key_data(words.reshape(*lanes, 2), impl="threefry2x32")
    after = state.count[1] + jnp.uint32(size)
    carried = state.count[0] + (after < state.count[1]).astype(jnp.uint32)
    return keys, jnp.stack([carried, after])
