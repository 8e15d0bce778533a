"""What one process reads of a batch that is spread over many, and the global arrays made of it.

    lanes      0 1 | 2 3 | 4 5 | 6 7           a batch of 8 over four devices
    devices     a     b     c     d            a and c belong to this process
    it reads   0 1         4 5                 as local rows 0 1 2 3
    arrays     a: local rows 0:2,  c: 2:4      nothing is sent to or from other processes

What a process reads follows from the index map of the sharding, so any order of devices works. A
row that two processes need is read by both.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..base.fitting import canonical
from ..base.spec import Spec
from .batch_sharding import BatchSharding, padded_shape
from .placement import fitted
from .transfer import from_parts

Bounds = tuple[int, int]


class Share:
    """The part of every step that this process reads.

    Some stages of Python see whole batches: the last `unit` axes of the lanes are never divided.
    """

    lanes: np.ndarray  # which lanes are read, [cells, *unit]; padding has numbers beyond the last

    def __init__(self, placement: BatchSharding, spec: Spec | None, unit: int) -> None:
        """`spec` is that of a batch as Python gives it; None if compiled stages come after."""
        self.placement, self.touched = placement, spec is None
        lanes, padded, outer = placement.lanes, placement.padded, len(placement.lanes) - unit
        self._outer, self._unit, self._padded_unit = padded[:outer], lanes[outer:], padded[outer:]
        leaves = spec.leaves if spec else ()
        self._shapes = [padded_shape(leaf.shape, lanes, padded) for leaf in leaves]
        self._shardings = placement.leaves if spec else ()
        self._find_cells()
        self.lanes = self._numbers()
        self._layouts: dict[Any, Layout] = {}
        self._last_key: tuple[bytes, Any] = b"", None

    def _by_lanes(self, shape: tuple[int, ...]) -> NamedSharding:
        """How compiled stages get an array: divided by lanes only."""
        rows, same = self.placement.rows, 0
        while shape[: same + 1] == self.placement.padded[: same + 1] and same < len(rows.spec):
            same += 1
        return NamedSharding(rows.mesh, PartitionSpec(*rows.spec[:same]))

    # Which cells of the batch

    def _find_cells(self) -> None:
        """Sets `_grid` (for each outer axis, the indices that are read), or else `_cells`."""
        axes = len(self._outer)
        pairs = [*zip(self._shardings, self._shapes, strict=True)]
        pairs.append((self.placement.rows, self.placement.padded))
        boxes: set[tuple[Bounds, ...]] = set()
        for sharding, shape in pairs:
            for box in _boxes(sharding, shape).values():
                boxes.add(box[:axes] if shape[:axes] == self._outer else _all_of(self._outer))
        self._grid: list[np.ndarray] | None = [
            _union(box[axis] for box in boxes) for axis in range(axes)
        ]
        cells = np.zeros(self._outer, np.bool_)
        for box in boxes:
            cells[tuple(slice(*bounds) for bounds in box)] = True
        self._cells = np.flatnonzero(cells)
        if len(self._cells) != math.prod(len(each) for each in self._grid):
            self._grid = None  # an odd layout of devices: cells are found one by one

    def _numbers(self) -> np.ndarray:
        lanes, count = self.placement.lanes, len(self._outer)
        unit = np.arange(math.prod(self._unit)).reshape(self._unit)
        if not count:
            return unit
        outer = np.indices(self._outer).reshape(count, -1)[:, self._cells]
        real = (outer < np.array(lanes[:count], int).reshape(-1, 1)).all(axis=0)
        strides = np.array([math.prod(lanes[axis + 1 :]) for axis in range(count)], int)
        first = np.where(real, strides @ outer, math.prod(lanes))
        return first.reshape(-1, *(1,) * len(self._unit)) + unit

    @property
    def fraction(self) -> float:
        """How much of every batch is read here."""
        return self.lanes.size / max(1, math.prod(self.placement.lanes))

    # Global arrays

    def batch(self, leaves: list[Any], lead: int = 0, kept: Any = None) -> list[jax.Array]:
        """The arrays of a batch as global arrays, from the local ones. `kept` says, for each, which
        indices of its inner axes were read (None: all)."""
        if not leaves:
            return []
        kept = [None] * len(leaves) if kept is None else kept
        each = zip(leaves, self._shapes, self._shardings, kept, strict=True)
        return [self._array(*args, lead=lead) for args in each]

    def mask(self, mask: np.ndarray) -> jax.Array:
        """A local mask as the global one."""
        shape, rows = self.placement.padded, self.placement.mask
        return self._array(mask, shape, rows, None, lead=0, fill=False)

    def rows(self, rows: Any, lead: int, batch: Any = None, kept: Any = None) -> Any:
        """All arrays of fetched rows, for a program. `batch` are those among them that no compiled
        stage changes: they are laid out as in `batch()`."""
        outer = 1 if self._outer else 0
        leaves = [] if batch is None else jax.tree.leaves(batch)
        done = dict(zip(map(id, leaves), self.batch(leaves, lead, kept), strict=True))

        def spread(x: np.ndarray) -> jax.Array:
            if id(x) in done:
                return done[id(x)]
            x = x.astype(canonical(x.dtype), copy=False)  # a long index: `high` has its upper bits
            rest = padded_shape(x.shape[lead + outer :], self._unit, self._padded_unit)
            shape = (*self._outer, *rest)
            return self._array(x, shape, self._by_lanes(shape), None, lead=lead)

        return rows.map(spread).replaced(key=self._key(rows.key))

    def _key(self, key: Any) -> Any:
        """The key on every device; it is the same for all steps of an iteration."""
        words = np.asarray(key)
        last, made = self._last_key
        if last != words.tobytes():
            made = self.placement.replicated(words)
            self._last_key = words.tobytes(), made
        return made

    def _array(
        self,
        local: np.ndarray,
        shape: tuple[int, ...],
        sharding: NamedSharding,
        kept: Any,
        *,
        lead: int,
        fill: Any = None,
    ) -> jax.Array:
        local = self._with_padding(np.asarray(local), shape, lead, fill)
        leading = local.shape[:lead]
        key = (leading, shape, sharding, kept is None or tuple(map(id, kept)))
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layout(leading, shape, sharding, kept)
            self._layouts[key] = layout
        return layout.array(local)

    def _with_padding(self, x: np.ndarray, shape: Any, lead: int, fill: Any) -> np.ndarray:
        """The array with padding in the axes that are never divided."""
        begin = lead + (1 if self._outer else 0)
        want = shape[len(self._outer) : len(self._outer) + len(self._unit)]
        have = x.shape[begin : begin + len(self._unit)]
        if want == have or have != self._unit:
            return x
        extra = [(0, 0)] * x.ndim
        for axis, (old, new) in enumerate(zip(have, want, strict=True)):
            extra[begin + axis] = (0, new - old)
        return np.pad(x, extra, "edge") if fill is None else np.pad(x, extra, constant_values=fill)

    def _layout(self, leading: Any, shape: Any, sharding: NamedSharding, kept: Any) -> Layout:
        outer, rest = len(self._outer), shape[len(self._outer) :]
        inner = (
            [None] * len(rest) if kept is None else [None] * (len(rest) - len(kept)) + list(kept)
        )
        spread = fitted(sharding, len(leading) + len(shape), len(leading))
        return Layout(
            (*leading, *shape), spread, len(leading), self._grid, self._cells, outer, inner
        )


class Layout:
    """How one global array is made of what this process has of it."""

    def __init__(
        self,
        shape: tuple[int, ...],
        sharding: NamedSharding,
        lead: int,
        grid: list[np.ndarray] | None,
        cells: np.ndarray,
        outer: int,
        inner: list[Any],
    ) -> None:
        self._shape, self._sharding, self._lead = shape, sharding, lead
        self._local: tuple[int, ...] | None = None  # the shape of the local cells
        if grid is not None and outer:
            self._local = tuple(len(each) for each in grid)
        self._parts: dict[tuple[int, ...], Any] = {}
        for box in _boxes(sharding, shape).values():
            bounds = box[lead : lead + outer]
            if grid is not None:
                where: Any = tuple(map(_place, grid, bounds))
            else:
                numbers = np.indices(_sizes(bounds)).reshape(outer, -1)
                numbers += np.array([begin for begin, _ in bounds]).reshape(-1, 1)
                flat = np.ravel_multi_index(tuple(numbers), shape[lead : lead + outer])
                where = (np.searchsorted(cells, flat),)
            rest = map(_place, inner, box[lead + outer :])
            index = (*(slice(*each) for each in box[:lead]), *where, *rest)
            self._parts[tuple(begin for begin, _ in box)] = index, _sizes(box)
        self._flat = grid is None

    def array(self, local: np.ndarray) -> jax.Array:
        """The global array; each device gets its part of the local one."""
        if not self._parts:  # no device is here; JAX may ask for a part even so
            nothing = np.broadcast_to(np.zeros((), local.dtype), self._shape)
            return from_parts(self._shape, self._sharding, nothing.__getitem__, local.dtype)
        lead, cells = self._lead, self._local
        if cells is not None and len(cells) != 1:
            local = local.reshape((*local.shape[:lead], *cells, *local.shape[lead + 1 :]))

        def part(index: Any) -> np.ndarray:
            where, sizes = self._parts[tuple(each.start or 0 for each in index)]
            return local[where].reshape(sizes) if self._flat else local[where]

        return from_parts(self._shape, self._sharding, part, local.dtype)


def inner_parts(placement: BatchSharding) -> list[Any]:
    """For each array of a batch, which indices of its inner axes this process needs.

    None: all of them; otherwise a list with, for each axis after the lanes, sorted indices, or None
    for all.
    """
    count, found = len(placement.lanes), []
    for sharding, leaf in zip(placement.leaves, placement.spec.leaves, strict=True):
        boxes = list(_boxes(sharding, leaf.shape).values())
        axes = [_union(box[axis] for box in boxes) for axis in range(count, len(leaf.shape))]
        sizes = leaf.shape[count:]
        cut = [None if len(x) in (0, n) else x for x, n in zip(axes, sizes, strict=True)]
        found.append(cut if any(x is not None for x in cut) else None)
    return found


# Boxes: for each axis, where it begins and ends


def _boxes(sharding: Any, shape: tuple[int, ...]) -> dict[Any, tuple[Bounds, ...]]:
    """The part of an array that each device of this process has."""
    found = sharding.addressable_devices_indices_map(tuple(shape))
    return {device: box_of(index, shape) for device, index in found.items()}


def box_of(index: Any, shape: tuple[int, ...]) -> tuple[Bounds, ...]:
    """The part of an array that an index of slices means, as JAX's maps of devices have them."""
    return tuple(each.indices(n)[:2] for each, n in zip(index, shape, strict=True))


def _all_of(shape: tuple[int, ...]) -> tuple[Bounds, ...]:
    return tuple((0, n) for n in shape)


def _sizes(box: Any) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in box)


def _union(bounds: Any) -> np.ndarray:
    ranges = [range(*each) for each in set(bounds)]
    return np.array(sorted(set(itertools.chain.from_iterable(ranges))), int)


def _place(kept: np.ndarray | None, bounds: Bounds) -> slice:
    """Where the indices of a part are among those that were read."""
    if kept is None:
        return slice(*bounds)
    begin = int(np.searchsorted(kept, bounds[0]))
    return slice(begin, begin + bounds[1] - bounds[0])
