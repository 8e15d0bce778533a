"""Random pipelines as plain data, drawn from a seed.

A tree of sources is ("array", base, n), ("range", base, n), ("memmap", ...), ("window", ...),
("disk", ...), ("dataset", ...), ("iterable", ...), ("unstacked", base, n, k); or, of other trees,
("concat", trees), ("slice", tree, indices), ("repeat", tree, times), ("zip", tree, tree),
("select", tree, divisor), ("split", tree, sizes, key, which), ("parts", tree, sizes, key),
("kfold", tree, k, fold, key, rest), ("mix", trees, weights).

Element i of a leaf has the number base + i, and all of its values follow from that number. Bases
are a hundred apart, so that an element tells where it comes from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Tree = tuple[Any, ...]

COMPILED = ("array", "range", "window", "unstacked")
HOST = ("memmap", "disk", "dataset", "iterable")
OPERATIONS = ("add", "multiply", "flip", "modulo")
RULES = ("wrap", "pad", "drop")


@dataclass(frozen=True)
class Case:
    """All that a pipeline is; `build` makes it, `reference` knows its elements."""

    seed: int
    tree: Tree
    order: Tree
    stages: list[Tree] = field(default_factory=list)  # before batching
    sizes: tuple[int, ...] = (1,)  # of batches, the inner first
    rule: str = "wrap"
    later: list[Tree] = field(default_factory=list)  # after batching
    workers: int | None = None
    prefetch: int | None = None
    unbatched: Tree | None = None  # (size, rule): batched, taken apart, and batched again
    images: bool = False


def length(tree: Tree) -> int:
    """The number of elements of a tree; of a mixture, nothing is known."""
    kind, inside = tree[0], tree[1]
    if kind in COMPILED + HOST:
        return tree[2]
    if kind == "concat":
        return sum(map(length, inside))
    if kind == "select":
        return len([i for i in ids(inside) if i % tree[2]])
    sizes = {
        "slice": lambda: len(tree[2]),
        "repeat": lambda: length(inside) * tree[2],
        "zip": lambda: length(inside),
        "split": lambda: tree[2][tree[4]],
        "parts": lambda: length(inside),
        "kfold": lambda: fold_size(length(inside), *tree[2:4], rest=tree[5]),
    }
    return sizes[kind]()


def fold_size(n: int, k: int, fold: int, *, rest: bool) -> int:
    """Elements in a fold, or in all the others."""
    here = len(np.array_split(np.arange(n), k)[fold])
    return n - here if rest else here


def ids(tree: Tree) -> list[int]:
    """The numbers of the elements of a tree whose order is known."""
    kind, inside = tree[0], tree[1]
    if kind in COMPILED + HOST:
        return list(range(inside, inside + tree[2]))
    if kind == "concat":
        return [i for part in inside for i in ids(part)]
    below = ids(inside)
    if kind == "slice":
        return [below[k] for k in tree[2]]
    if kind == "repeat":
        return below * tree[2]
    if kind == "select":
        return [i for i in below if i % tree[2]]
    if kind == "split":
        first = sum(tree[2][: tree[4]])
        return below[first : first + tree[2][tree[4]]]
    if kind == "kfold":
        fold = np.array_split(np.arange(len(below)), tree[2])[tree[3]].tolist()
        return [i for k, i in enumerate(below) if (k in fold) != tree[5]]
    return below  # zip: the first gives the number; parts: all of them, in some order


def epoch_length(order: Tree, n: int) -> int:
    """The number of positions in an epoch of this order over n elements."""
    if order[0] == "balanced":
        classes = len(set(order[1]))
        return -(-n // classes) * classes
    return {"indices": lambda: len(order[1]), "weighted": lambda: order[3]}.get(
        order[0], lambda: n
    )()


class Draw:
    """Draws a case from a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.leaves = 0
        self.host = False

    def case(self) -> Case:
        self.host = self.chance(0.45)
        tree = self.root()
        n = None if tree[0] == "mix" else length(tree)
        order = self.order(tree, n)
        images = self.chance(0.25)
        fixed = tree[0] not in ("mix", "iterable")
        stages, late_host = self.stages(images=images, may_cache=fixed)
        sizes, rule = self.batching(n)
        if rule == "drop" and (n is None or math.prod(sizes) > epoch_length(order, n)):
            rule = "pad"  # dropping everything is refused
        later = self.later(stages, late_host=late_host, images=images)
        unbatched = None
        if not self.host and self.chance(0.12) and len(sizes) == 1 and n is not None:
            n = epoch_length(order, n)
            unbatched, rule = (self.between(1, min(n, 6)), self.pick(RULES)), "wrap"
        workers, prefetch = None, None
        if self.host:
            workers = self.pick((None, 0, 1, 2, 3))
            prefetch = None if workers == 0 else self.pick((None, 1, 2, 5))
        return Case(
            self.seed, tree, order, stages, sizes, rule, later, workers, prefetch, unbatched, images
        )

    # Small choices

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def between(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def pick(self, choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    # Sources

    def leaf(self, n: int | None = None) -> Tree:
        self.leaves += 1
        kinds = ("array", "memmap", "disk", "dataset") if self.host else COMPILED[:3]
        return (self.pick(kinds), 100 * self.leaves, n or self.between(3, 14))

    def root(self) -> Tree:
        if self.host and self.chance(0.15):
            return ("iterable", *self.leaf()[1:])
        if not self.host and self.chance(0.06):
            k = self.between(1, 3)
            return ("unstacked", 100, k * self.between(2, 6), k)
        if self.chance(0.12):
            count = self.between(2, 3)
            weights = tuple(self.between(1, 4) for _ in range(count))
            return ("mix", [self.tree(1) for _ in range(count)], weights)
        tree = self.tree(self.pick((0, 0, 1, 1, 2)))
        if length(tree) >= 4 and self.chance(0.2) and may_split(tree):
            return self.part(tree, self.between(0, 99))
        return tree

    def tree(self, depth: int) -> Tree:
        if depth == 0:
            return self.leaf()
        kind = self.pick(("concat", "slice", "repeat", "zip", "select", "split", "parts", "kfold"))
        if kind == "concat":
            return ("concat", [self.tree(depth - 1) for _ in range(self.between(2, 3))])
        if kind == "zip":
            one = self.tree(depth - 1)
            return one if has_unknown_order(one) else ("zip", one, self.leaf(length(one)))
        inside = self.tree(depth - 1)
        n = length(inside)
        if kind == "repeat" and n <= 20:
            return ("repeat", inside, self.between(1, 2))
        known = not has_unknown_order(inside)
        if kind == "slice" and known:
            return ("slice", inside, self.indices(n, self.between(1, n)))
        if kind == "select" and known:
            divisor = self.between(2, 4)
            some = any(i % divisor for i in ids(inside))
            return ("select", inside, divisor) if some else inside
        if kind in ("split", "parts", "kfold") and n >= 4 and may_split(inside) and known:
            return self.part(inside, None, whole=kind == "parts")
        return inside

    def part(self, tree: Tree, key: int | None, *, whole: bool = False) -> Tree:
        n = length(tree)
        if self.chance(0.4) and not whole:
            k = self.between(2, 3)
            return ("kfold", tree, k, self.between(0, k - 1), key, self.chance(0.5))
        first = self.between(1, n - 1)
        sizes = (first, n - first)
        if whole:
            return ("parts", tree, sizes, self.between(0, 99))
        return ("split", tree, sizes, key, self.between(0, 1))

    def indices(self, n: int, count: int) -> list[int]:
        return [int(i) for i in self.rng.integers(0, n, count)]

    # Orders

    def order(self, tree: Tree, n: int | None) -> Tree:
        if tree[0] == "iterable":
            return ("sequential",)
        if n is None or tree[0] == "unstacked":
            return (self.pick(("sequential", "shuffle")),)
        kinds = ["sequential", "shuffle", "shuffle", "block", "boot"]
        if tree[0] not in ("split", "kfold"):  # whose order is that of every part, of any length
            kinds += ["indices", "weighted", "balanced"]
        kind = self.pick(kinds)
        if kind == "indices":
            return (kind, self.indices(n, self.between(1, 2 * n)))
        if kind == "block":
            return (kind, self.between(1, n + 1), self.between(1, 3))
        if kind == "weighted":
            weights = [self.between(0, 3) for _ in range(n)]
            weights[self.between(0, n - 1)] = 2
            replacement = self.chance(0.5)
            most = 2 * n if replacement else sum(w > 0 for w in weights)
            return (kind, weights, replacement, self.between(1, most))
        if kind == "balanced":
            classes = self.between(1, min(n, 3))
            return (kind, [*range(classes), *self.indices(classes, n - classes)])
        return (kind,)

    # Stages

    def operation(self) -> Tree:
        return (self.pick(OPERATIONS), self.between(2, 5))

    def stages(self, *, images: bool, may_cache: bool) -> tuple[list[Tree], bool]:
        """Stages before batching; and whether host stages may still follow."""
        found: list[Tree] = []
        if self.host:
            found += [self.host_stage() for _ in range(self.between(0, 2))]
        may_cache = may_cache and ("host_random",) not in found
        if may_cache and self.chance(0.25):
            place = self.pick(("host", "device", "folder"))
            self.host = self.host or place != "device"
            found.append(("cache", place))
            if place == "device":
                return found + self.compiled(self.between(0, 2), images=images), False
        masks_cached = any(s[0] == "host_filter" for s in found) and found[-1][0] == "cache"
        if self.host and not masks_cached and self.chance(0.3):
            found.append(("host_random",))
        compiled = self.compiled(self.pick((0, 0, 1, 2)), images=images)
        return found + compiled, self.host and not compiled and not masks_cached

    def host_stage(self) -> Tree:
        kind = self.pick(("host_map", "host_map", "host_filter", "host_random"))
        if kind == "host_map":
            return (kind, self.operation())
        return (kind, self.between(2, 5)) if kind == "host_filter" else (kind,)

    def compiled(self, count: int, *, images: bool) -> list[Tree]:
        kinds = ["map", "map", "random", "filter", *(["normalize", "flatten"] if images else [])]
        found: list[Tree] = []
        for kind in (self.pick(kinds) for _ in range(count)):
            if kind == "map":
                found.append((kind, self.operation()))
            elif (kind,) not in found or kind == "random":  # images are changed once
                found.append((kind, self.between(2, 5)) if kind == "filter" else (kind,))
        return found

    def later(self, stages: list[Tree], *, late_host: bool, images: bool) -> list[Tree]:
        found: list[Tree] = []
        if late_host and self.chance(0.3):
            found.append(self.pick((("host_map", self.operation()), ("host_random",))))
        done = {stage[0] for stage in stages}
        more = self.compiled(self.pick((0, 0, 1, 2)), images=images)
        found += [s for s in more if s[0] not in ("normalize", "flatten") or s[0] not in done]
        if self.chance(0.1):
            found.append(("rename",))
        return found

    def batching(self, n: int | None) -> tuple[tuple[int, ...], str]:
        sizes = (self.between(1, 8),)
        if self.chance(0.15):
            sizes = (self.between(1, 4), self.between(1, 3))
        if n is not None and self.chance(0.05):
            sizes = (n + self.between(0, 3),)
        return sizes, self.pick(RULES)


def has_unknown_order(tree: Tree) -> bool:
    """Whether the elements are known, but not which comes first."""
    return tree[0] == "parts" or any(
        has_unknown_order(part) for part in parts_of(tree) if isinstance(part, tuple)
    )


def parts_of(tree: Tree) -> list[Tree]:
    """The trees inside a tree."""
    if tree[0] in COMPILED + HOST:
        return []
    if tree[0] in ("concat", "mix"):
        return tree[1]
    return [tree[1], tree[2]] if tree[0] == "zip" else [tree[1]]


def may_split(tree: Tree) -> bool:
    """Parts of what has an element twice could share elements, and are refused."""
    return tree[0] not in ("repeat", "slice", "mix", "window") and all(
        map(may_split, parts_of(tree))
    )
