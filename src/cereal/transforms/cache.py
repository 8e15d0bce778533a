"""A cache: elements are computed once and kept."""

from __future__ import annotations

import os
from functools import cached_property, partial
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..base.capture import any_traced
from ..base.errors import PipelineError
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..base.spec import Spec
from ..cache.elements import chunks_of, read_elements
from ..cache.name import Named, check_version
from ..cache.store import CacheStore
from ..device.explicit_axes import explicit_mesh
from ..device.masks import both
from ..host.element_spec import check_arrays
from ..order.ordering import Order
from ..order.permutation import MAX_TRACED
from ..pipeline.host_source import HostIndexed, TreeReader
from ..pipeline.positional import IndexedSource
from ..pipeline.source import Source
from ..pipeline.stage import Stage, Transform
from ..pipeline.traits import StageTraits, Traits
from ..sources.array import ArraySampleSource

T = TypeVar("T")
Kept = tuple[tuple[str, Any], ...]  # traits, by name


@pytree_dataclass
class CacheTransform(Transform[Any, Any]):
    """Keeps the elements that the stages before it make, so that they run once per element.

        [source, slow stage, CacheTransform("host"), RandomMapTransform(crop), BatchTransform(128)]
                             epoch 1 fills it; later epochs read it

    where="device"   in the memory of the default device, filled when the pipeline is built
    where="host"     in memory of the host, filled as elements are read
    where=path       in files in that folder, filled as elements are read: the next run finds them

    Random stages must come after it; otherwise every epoch would see the same augmentation. In
    `scan_epoch` and in your own `jit`, missing elements are read before the program runs.

    The name of a cache in files is a digest of the stages before it: if the data, a function or an
    option changes, another cache is used. A digest cannot see every change of code. So when a cache
    is opened, a few elements are computed again, and a difference is an error. `version`, a number
    or a word, is part of the name: change it to begin a new cache, or if the error says that
    something has no digest. You can stop or kill the program at any time: only the work of the last
    few seconds is lost.

    The cache uses the functions as they were when the pipeline was built, even if it computes an
    element later: it never mixes elements of an old and a new function.

    >>> import cereal
    >>> cached = cereal.CacheTransform("host")
    >>> squares = cereal.MapTransform(lambda x: x * x)
    >>> loader = cereal.DataLoader([cereal.RangeSource(4), squares, cached])
    >>> [int(x) for x, mask in loader]
    [0, 1, 4, 9]
    """

    where: str = static_field(default="device")
    folder: str | None = static_field(default=None)
    version: int | str | None = static_field(default=None)

    def __init__(
        self,
        where: str | os.PathLike[str] = "device",
        *,
        version: int | str | None = None,
    ) -> None:
        if not isinstance(where, str | os.PathLike) or where == "":
            raise PipelineError(
                f'CacheTransform: `where` must be "device", "host" or a folder, got {where!r:.60}.'
            )
        named = isinstance(where, str) and where in ("device", "host")
        folder = None if named else os.fspath(where)
        check_version(version, "CacheTransform")
        if version is not None and folder is None:
            raise PipelineError(
                f"CacheTransform: `version={version!r}` is part of the name of files, and "
                f"{where!r} has none; leave it out, or pass a folder."
            )
        set_fields(self, where=os.fspath(where), folder=folder, version=version)

    @property
    def _label(self) -> str:
        version = "" if self.version is None else f", version={self.version!r}"
        return f"CacheTransform({self.where!r}{version})"

    def __call__(self, source: Source[T]) -> Source[T]:
        _check(source, self._label)
        upstream: Any = source
        if self.folder is None and self.where == "device":
            cached: Any = _on_device(upstream, self._label)
        else:
            _check_plain(upstream, self._label)
            store = CacheStore(upstream, Named(self.folder, self.version, self._label))
            known = _kept_traits(upstream.traits)
            cached = Cached(store, upstream._order, store.spec, len(upstream), self._label, known)
        masks, shape = upstream.traits.masks, upstream.traits.mask_shape
        return _WithMask(shape)(cached) if masks else cached


def _kept_traits(above: Traits) -> Kept:
    """The traits that a cache takes over from the stages before it."""
    names = ("path", "once", "overlap", "windows", "episodes", "placement")
    return tuple((name, getattr(above, name)) for name in names)


def _check(source: Any, label: str) -> None:
    if not isinstance(source, IndexedSource):
        what = "batches" if isinstance(source, Source) and source.traits.lanes else "a stream"
        raise PipelineError(
            f"{label} keeps elements by their index and cannot keep {what}; put it before the "
            f"BatchTransform, over an indexed source."
        )
    traits = source.traits
    if traits.unknown_length:
        raise PipelineError(
            f"{label} comes after {source._label}, whose number of elements is not known; pass "
            f"`IterableSource(make_iterator, length=...)`."
        )
    if len(source) > MAX_TRACED:
        raise PipelineError(
            f"{label} comes after {source._label}, which has {len(source)} elements; a cache keeps "
            f"at most {MAX_TRACED}."
        )
    if traits.random_stages:
        raise PipelineError(
            f"{label} comes after a random stage: every epoch would see the augmentation of the "
            f"first. Move the random stage below the CacheTransform."
        )
    if traits.varies or not traits.fixed:
        fix = "cache its sources instead"
        if traits.varies:
            fix = (
                "leave the cache out, or make them functions of the index alone and augment below "
                "the CacheTransform, in a HostRandomMapTransform"
            )
        raise PipelineError(
            f"{label} comes after {source._label}, whose elements change from epoch to epoch; "
            f"{fix}."
        )
    if traits.callbacks:
        raise PipelineError(
            f"{label} comes after a HostCallbackTransform, which runs for every batch; move that "
            f"below the CacheTransform."
        )
    if any_traced(source):
        raise PipelineError(
            f"{label} is built inside a traced function, over values that are being traced; build "
            f"the pipeline outside and pass the loader as an argument."
        )


def _check_plain(source: Any, label: str) -> None:
    check_arrays(
        source.element_spec(), label, "turn it into arrays or numbers in a HostMapTransform before"
    )
    for path, spec in jax.tree_util.tree_flatten_with_path(source.element_spec())[0]:
        if jnp.issubdtype(spec.dtype, jax.dtypes.extended):
            raise PipelineError(
                f"{label}: `element{jax.tree_util.keystr(path)}` has random keys, which the host "
                f"cannot hold; pass `jax.random.key_data(keys)` instead, or cache on the device."
            )


@pytree_dataclass
class Cached(HostIndexed[Any]):
    """A source that reads a cache on the host."""

    store: CacheStore
    ordering: Order
    spec: Spec = static_field(default=None)
    n: int = static_field(default=0)
    called: str = static_field(default="")
    above: Kept = static_field(default=())

    def __len__(self) -> int:
        return self.n

    def element_spec(self) -> Any:
        return self.spec.tree

    @property
    def _upstream(self) -> Source[Any]:
        return self.store.upstream

    @property
    def _label(self) -> str:
        return self.called

    def _describe(self) -> Traits:
        return self._describe_as(host=True, by_python=True, wide=True, **dict(self.above))

    @cached_property
    def _reader(self) -> TreeReader:
        return TreeReader(self._label, self.spec, self.store.take)


@pytree_dataclass
class CachedOnDevice(IndexedSource[Any]):
    """A source that reads a cache on the device."""

    arrays: ArraySampleSource[Any]
    ordering: Order
    called: str = static_field(default="")
    above: Kept = static_field(default=())

    def __len__(self) -> int:
        return len(self.arrays)

    def element_spec(self) -> Any:
        return self.arrays.element_spec()

    @property
    def _label(self) -> str:
        return self.called

    def _describe(self) -> Traits:
        return self._describe_as(light=True, **dict(self.above))

    def take(self, indices: Any) -> Any:
        return self.arrays.take(indices)


@partial(jax.jit, donate_argnums=0)
def _put(whole: Any, part: Any, start: Any) -> Any:
    def put(to: Any, rows: Any) -> Any:
        return jax.lax.dynamic_update_slice_in_dim(to, rows, start, axis=0)

    return jax.tree.map(put, whole, part)


def _room_for(part: Any, n: int) -> Any:
    """Zeros for n elements like those of `part`, on its mesh if that has explicit axes."""
    there = part.sharding if explicit_mesh(part) is not None else None
    return jnp.zeros((n, *part.shape[1:]), part.dtype, device=there)


def _on_device(upstream: Any, label: str) -> CachedOnDevice:
    whole, start = None, 0
    n = len(upstream)
    for chunk in chunks_of(upstream, np.arange(n)):
        values, mask = read_elements(upstream, chunk)
        part = (values, mask) if upstream.traits.masks else values
        if whole is None:
            whole = jax.tree.map(lambda x: _room_for(x, n), part)
        whole = _put(whole, part, jnp.int32(start))
        start += len(chunk)
    arrays = ArraySampleSource(whole, ordering="sequential")
    return CachedOnDevice(arrays, upstream._order, label, _kept_traits(upstream.traits))


@pytree_dataclass
class _WithMask(Stage[Any, Any]):
    """Splits what was cached, pairs of (values, mask), into values and masks again."""

    traits: ClassVar[StageTraits] = StageTraits(changes_mask=True)

    shape: tuple[int, ...] = static_field()  # of the mask of an element

    @property
    def _label(self) -> str:
        return "cached masks"

    def mask_shape(self, before: tuple[int, ...], spec: Spec) -> tuple[int, ...]:
        del spec
        return (*before, *self.shape)

    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        del keys, lanes
        return values[0], both(mask, values[1])
