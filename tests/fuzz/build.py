"""Makes the loader that a case describes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tests.fuzz.pipelines import Case, Tree

import cereal

# Elements: all values follow from the number.


def element_of(number: Any, xp: Any, *, images: bool) -> dict[str, Any]:
    """The element of a number, or of an array of numbers, in NumPy or JAX."""
    number = xp.asarray(number, xp.int32)
    x = xp.stack([number % 17, number // 100 + number % 5], axis=-1).astype(xp.float32)
    found = {"id": number, "x": x}
    if images:
        pixels = xp.arange(6, dtype=xp.int32).reshape(2, 3)
        found["image"] = ((number[..., None, None] + pixels) % 256).astype(xp.uint8)
    return found


def operate(element: dict[str, Any], operation: Tree) -> dict[str, Any]:
    """A change of `x`: the same for an element and for a batch, in NumPy and JAX."""
    kind, by = operation
    x = element["x"]
    changes: dict[str, Callable[[], Any]] = {
        "add": lambda: x + x.dtype.type(by),
        "multiply": lambda: x * x.dtype.type(by),
        "flip": lambda: x[..., ::-1],
        "modulo": lambda: x % x.dtype.type(by),
    }
    return {**element, "x": changes[kind]()}


def keeps(element: dict[str, Any], divisor: int) -> Any:
    return element["id"] % divisor != 0


def remember(element: dict[str, Any], draw: Any) -> dict[str, Any]:
    """A random stage notes what it drew; two of them note both."""
    return {**element, "r": element.get("r", np.int32(0)) * np.int32(8) + draw}


def merged(pair: dict[str, Any]) -> dict[str, Any]:
    """Two elements side by side as one."""
    return {**pair["a"], "x": pair["a"]["x"] + pair["b"]["x"]}


# Sources


class Rows:
    """A dataset as others have them."""

    def __init__(self, base: int, n: int, *, images: bool) -> None:
        self.base, self.n, self.images = base, n, images

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.n:
            raise IndexError(index)
        return element_of(self.base + int(index), np, images=self.images)


class Builder:
    """Builds the sources and stages of one case; files go into a folder."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder
        names = [stage[0] for stage in [*case.stages, *case.later]]
        self.host_stages = any(name.startswith("host") for name in names)

    def loader(self, sizes: tuple[int, ...] | None = None) -> cereal.DataLoader[Any]:
        case = self.case
        stages = [self.stage(stage) for stage in case.stages]
        if case.unbatched is not None:
            size, rule = case.unbatched
            flipped = cereal.MapTransform(lambda batch: batch)
            stages += [batching(size, rule), flipped, cereal.UnbatchTransform()]
        sizes = sizes or case.sizes
        stages += [batching(size, "wrap") for size in sizes[:-1]]
        stages += [batching(sizes[-1], case.rule)]
        stages += [self.stage(stage) for stage in case.later]
        pipeline = [self.source(case.tree, order_of(case.order)), *stages]
        return cereal.DataLoader(pipeline, workers=case.workers, prefetch=case.prefetch)

    def source(self, tree: Tree, order: Any = "sequential") -> Any:
        kind, inside = tree[0], tree[1]
        made = getattr(self, f"_{kind}", None)
        if made is not None:
            return made(*tree[1:], order)
        if kind == "concat":
            return cereal.ConcatSource([self.source(part) for part in inside], ordering=order)
        if kind == "mix":
            parts = [self.source(part) for part in inside]
            return cereal.MixSource(parts, tree[2], ordering=order)
        return self.part(tree, self.source(inside), order)

    def part(self, tree: Tree, inside: Any, order: Any) -> Any:
        kind = tree[0]
        if kind == "slice":
            return cereal.SliceSource(inside, np.array(tree[2]), ordering=order)
        if kind == "repeat":
            return cereal.RepeatSource(inside, tree[2], ordering=order)
        if kind == "select":
            divisor = tree[2]
            return cereal.select(inside, lambda e: keeps(e, divisor), ordering=order)
        if kind == "split":
            return cereal.split(inside, tree[2], tree[3], ordering=order)[tree[4]]
        if kind == "parts":
            return cereal.ConcatSource(cereal.split(inside, tree[2], tree[3]), ordering=order)
        rest, fold = cereal.kfold(inside, tree[2], tree[3], tree[4], ordering=order)
        return rest if tree[5] else fold

    def data(self, base: int, n: int) -> Any:
        return element_of(np.arange(base, base + n), np, images=self.case.images)

    def _array(self, base: int, n: int, order: Any) -> Any:
        return cereal.ArraySampleSource(self.data(base, n), ordering=order)

    def _range(self, base: int, n: int, order: Any) -> Any:
        images = self.case.images
        numbers = cereal.RangeSource(base, base + n, ordering=order)
        if self.host_stages:
            return cereal.HostMapTransform(lambda i: element_of(i, np, images=images))(numbers)
        return cereal.MapTransform(lambda i: element_of(i, jnp, images=images))(numbers)

    def _window(self, base: int, n: int, order: Any) -> Any:
        images = self.case.images
        windows = cereal.WindowSource(np.arange(base, base + n + 2), 3, ordering=order)
        if self.host_stages:
            return cereal.HostMapTransform(lambda w: element_of(w[0], np, images=images))(windows)
        return cereal.MapTransform(lambda w: element_of(w[0], jnp, images=images))(windows)

    def _unstacked(self, base: int, n: int, k: int, order: Any) -> Any:
        stacked = jax.tree.map(lambda x: x.reshape(n // k, k, *x.shape[1:]), self.data(base, n))
        return cereal.UnbatchTransform()(cereal.ArraySampleSource(stacked, ordering=order))

    def _memmap(self, base: int, n: int, order: Any) -> Any:
        path = self.folder / f"rows{base}"
        if not path.exists():
            cereal.save_arrays(path, self.data(base, n))
        return cereal.MemmapSource(path, ordering=order)

    def _disk(self, base: int, n: int, order: Any) -> Any:
        rows = Rows(base, n, images=self.case.images)
        return cereal.DiskSampleSource(n, rows.__getitem__, ordering=order)

    def _dataset(self, base: int, n: int, order: Any) -> Any:
        return cereal.DatasetSource(Rows(base, n, images=self.case.images), ordering=order)

    def _iterable(self, base: int, n: int, order: Any) -> Any:
        del order
        rows = Rows(base, n, images=self.case.images)
        return cereal.IterableSource(lambda: (rows[i] for i in range(n)), length=n)

    def _zip(self, one: Tree, two: Tree, order: Any) -> Any:
        pairs = cereal.ZipSource({"a": self.source(one), "b": self.source(two)}, ordering=order)
        wrap = cereal.HostMapTransform if self.host_stages else cereal.MapTransform
        return wrap(merged)(pairs)

    # Stages

    def stage(self, stage: Tree) -> Any:
        kind = stage[0]
        by: Any = stage[1] if len(stage) > 1 else None
        makers: dict[str, Callable[[], Any]] = {
            "map": lambda: cereal.MapTransform(lambda e: operate(e, by)),
            "host_map": lambda: cereal.HostMapTransform(lambda e: operate(e, by)),
            "filter": lambda: cereal.FilterTransform(lambda e: keeps(e, by)),
            "host_filter": lambda: cereal.HostFilterTransform(lambda e: bool(keeps(e, by))),
            "random": lambda: cereal.RandomMapTransform(
                lambda e, key: remember(e, jax.random.randint(key, (), 0, 8, jnp.int32))
            ),
            "host_random": lambda: cereal.HostRandomMapTransform(
                lambda e, rng: remember(e, np.int32(rng.integers(8)))
            ),
            "normalize": cereal.NormalizeImageTransform,
            "flatten": cereal.FlattenImageTransform,
            "rename": lambda: cereal.RenameTransform({"x": "y"}),
            "cache": lambda: cereal.CacheTransform(self.folder / "cache" if by == "folder" else by),
        }
        return makers[kind]()


def batching(size: int, rule: str) -> cereal.BatchTransform:
    return cereal.BatchTransform(size, drop_last=rule == "drop", pad_last_batch=rule == "pad")


def order_of(order: Tree) -> Any:
    if order[0] == "indices":
        return np.array(order[1])
    makers: dict[str, Callable[..., Any]] = {
        "block": lambda size, together: cereal.BlockShuffle(size, together=together),
        "weighted": lambda weights, replacement, length: cereal.WeightedSampling(
            weights, replacement=replacement, length=length
        ),
        "balanced": cereal.ClassBalanced,
        "boot": cereal.Bootstrap,
    }
    return makers[order[0]](*order[1:]) if order[0] in makers else order[0]
