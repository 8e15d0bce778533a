"""What an epoch of a case must have, in NumPy and plain Python, without cereal.

Elements are rows (number, x0, x1) of integers. A run is looked at position by position: which rows
came, and which of them count.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.fuzz.pipelines import COMPILED, HOST, Case, Tree, epoch_length, ids, length

Row = tuple[int, ...]


class DifferenceError(AssertionError):
    """Something is not as it must be."""


def require(fact: Any, what: str) -> None:
    if not fact:
        raise DifferenceError(what)


# Elements


def plain_row(number: int) -> Row:
    return (number, number % 17, number // 100 + number % 5)


def rows_of(tree: Tree) -> list[Row]:
    """The elements of a tree, in the order of its indices where that is known."""
    kind, inside = tree[0], tree[1]
    if kind in COMPILED + HOST:
        return [plain_row(inside + i) for i in range(tree[2])]
    if kind == "concat":
        return [row for part in inside for row in rows_of(part)]
    if kind == "zip":
        pairs = zip(rows_of(inside), rows_of(tree[2]), strict=True)
        return [(a[0], a[1] + b[1], a[2] + b[2]) for a, b in pairs]
    below = rows_of(inside)
    if kind == "slice":
        return [below[k] for k in tree[2]]
    if kind == "repeat":
        return below * tree[2]
    if kind == "select":
        return [row for row in below if row[0] % tree[2]]
    if kind == "parts":
        return below
    by_number = dict(zip(ids(inside), below, strict=True))
    if tree[4 if kind == "kfold" else 3] is not None:  # which part an element is in is random
        return below
    return [by_number[i] for i in ids(tree)]


def staged(row: Row, case: Case) -> Row:
    """An element behind all stages that change it."""
    number, x, y = row
    for stage in [*case.stages, *case.later]:
        if stage[0] in ("map", "host_map"):
            kind, by = stage[1]
            x, y = {
                "add": (x + by, y + by),
                "multiply": (x * by, y * by),
                "flip": (y, x),
                "modulo": (x % by, y % by),
            }[kind]
    return number, x, y


def passes(row: Row, case: Case) -> bool:
    """Whether all filters let an element through."""
    stages = [*case.stages, *case.later]
    return all(row[0] % s[1] != 0 for s in stages if s[0] in ("filter", "host_filter"))


def image_of(number: int) -> np.ndarray:
    return (number + np.arange(6).reshape(2, 3)) % 256


# Positions


@dataclass(frozen=True)
class Place:
    """A position of an epoch; of padding there is none."""

    epoch: int
    position: int


def places(n: int, size: int, rule: str, steps: int, offset: int = 0) -> list[Place | None]:
    """Which position stands in each lane of these many batches, from an offset on."""
    if rule == "wrap":
        return [Place(*divmod(offset + t, n)) for t in range(steps * size)]
    found: list[Place | None] = []
    epoch = 0
    for _ in range(steps):
        if offset >= n or (rule == "drop" and offset + size > n):
            epoch, offset = epoch + 1, 0
        here = range(offset, offset + size)
        found += [Place(epoch, k) if k < n else None for k in here]
        offset += size
    return found


def places_of(case: Case, n: int, steps: int) -> list[Place | None]:
    """The positions of a run from its beginning; through a batch that is taken apart again."""
    size = math.prod(case.sizes)
    if case.unbatched is None:
        return places(n, size, case.rule, steps)
    inner, rule = case.unbatched
    return places(n, inner, rule, -(-steps * size // inner))[: steps * size]


# Whole runs


@dataclass
class Epoch:
    """What came at the positions of one epoch: a row, or None where it does not count."""

    rows: list[Row | None]


def epochs_of(found: list[Row | None], where: list[Place | None]) -> list[Epoch]:
    epochs: dict[int, Epoch] = {}
    for row, place in zip(found, where, strict=True):
        if place is None:
            require(row is None, "padding counts: its mask is True")
        else:
            epoch = epochs.setdefault(place.epoch, Epoch([]))
            require(len(epoch.rows) == place.position, "the reference lost count")
            epoch.rows.append(row)
    return [epochs[k] for k in sorted(epochs)]


def check_run(case: Case, found: list[Row | None], n: int, steps: int) -> None:
    """Rows of a run from its beginning are those that the case must give."""
    epochs = epochs_of(found, places_of(case, n, steps))
    if case.tree[0] == "mix":
        check_mixture(case, found, n)
        return
    require(n == epoch_length(case.order, length(case.tree)), f"an epoch has {n} elements")
    for number, epoch in enumerate(epochs):
        check_epoch(case, epoch, n, f"epoch {number}")
    if subset_unknown(case.tree):
        whole = [Counter(e.rows) for e in epochs if len(e.rows) == n]
        plain = case.order[0] in ("sequential", "shuffle", "block", "indices")
        require(not plain or all(w == whole[0] for w in whole), "a part differs between epochs")
    if case.order[0] == "balanced":
        check_balance(case, epochs)
    check_orders_differ(case, epochs, n)


def subset_unknown(tree: Tree) -> bool:
    return (tree[0] == "split" and tree[3] is not None) or (
        tree[0] == "kfold" and tree[4] is not None
    )


def order_unknown(tree: Tree) -> bool:
    if subset_unknown(tree) or tree[0] == "parts":
        return True
    inside = tree[1] if isinstance(tree[1], list) else [t for t in tree[1:3] if type(t) is tuple]
    return any(order_unknown(t) for t in inside if t and isinstance(t[0], str))


def check_epoch(case: Case, epoch: Epoch, n: int, what: str) -> None:
    data = rows_of(case.tree)
    kind, here = case.order[0], len(epoch.rows)
    if kind in ("sequential", "indices") and not order_unknown(case.tree):
        listed = range(n) if kind == "sequential" else case.order[1]
        for k, (row, index) in enumerate(zip(epoch.rows, listed, strict=False)):
            wanted = staged(data[index], case) if passes(data[index], case) else None
            require(row == wanted, f"{what}, position {k}: {row} is not {wanted}")
        return
    counts = Counter(row for row in epoch.rows if row is not None)
    if kind in ("sequential", "shuffle", "block") and not subset_unknown(case.tree):
        wanted = Counter(staged(row, case) for row in data if passes(row, case))
        require(counts <= wanted, f"{what}: more than once, or unknown: {counts - wanted}")
        missing = sum((wanted - counts).values())
        require(missing <= n - here, f"{what}: {wanted - counts} are missing")
        return
    most = allowed(case, data)
    for row, count in counts.items():
        require(count <= most.get(row, 0), f"{what}: {row} came {count} times")
    if all(passes(row, case) for row in data):
        require(sum(counts.values()) == here, f"{what}: {here - sum(counts.values())} masked")


def allowed(case: Case, data: list[Row]) -> dict[Row, float]:
    """How often an element may come in an epoch of a random order, or of a random part."""
    kind = case.order[0]
    weights = [1] * len(data)
    if kind == "weighted" and not order_unknown(case.tree):
        weights = [int(w > 0) for w in case.order[1]]
    once = kind in ("sequential", "shuffle", "block") or (kind == "weighted" and not case.order[2])
    most: Counter[Row] = Counter()
    for row, weight in zip(data, weights, strict=True):
        if passes(row, case):
            most[staged(row, case)] += weight
    return {row: count if once else math.inf if count else 0 for row, count in most.items()}


def check_balance(case: Case, epochs: list[Epoch]) -> None:
    """Every turn has every class once, and a class goes through all of its own before any again."""
    data, labels = rows_of(case.tree), case.order[1]
    if order_unknown(case.tree) or len(set(data)) < len(data):
        return
    if not all(passes(row, case) for row in data):
        return
    label = {staged(row, case): name for row, name in zip(data, labels, strict=True)}
    if len(label) < len(data):
        return
    classes = len(set(labels))
    visits = [row for epoch in epochs for row in epoch.rows]
    for epoch in epochs:
        for start in range(0, len(epoch.rows) - classes + 1, classes):
            turn = {label[row] for row in epoch.rows[start : start + classes] if row is not None}
            require(len(turn) == classes, f"a turn has the classes {turn} of {classes}")
    if case.rule == "drop" or (case.unbatched or "..")[1] == "drop":
        return  # what was dropped counts as a visit
    for name in set(labels):
        own = [row for row in visits if row is not None and label[row] == name]
        check_passes(own, labels.count(name), f"class {name}")


def check_passes(rows: list[Any], n: int, what: str) -> None:
    for some in chunks(rows, n):
        require(len(set(some)) == len(some), f"{what}: one comes again before all have come")


def chunks(rows: list[Any], n: int) -> list[list[Any]]:
    return [rows[k : k + n] for k in range(0, len(rows), n)]


def check_orders_differ(case: Case, epochs: list[Epoch], n: int) -> None:
    """Two epochs of a shuffle are not in one order (by chance once in 3,628,800)."""
    whole = [epoch.rows for epoch in epochs if len(epoch.rows) == n]
    distinct = len({row for rows in whole[:1] for row in rows if row is not None})
    if case.order[0] == "shuffle" and distinct >= 10 and len(whole) > 1:
        require(whole[0] != whole[1], "two epochs are in the same order")


def check_mixture(case: Case, found: list[Row | None], n: int) -> None:
    """Shares to within one element; every part once through before any of it comes again."""
    parts, weights = case.tree[1], case.tree[2]
    owner = {staged(r, case): k for k, part in enumerate(parts) for r in rows_of(part)}
    if not all(passes(r, case) for part in parts for r in rows_of(part)) or case.rule == "drop":
        return
    rows = [row for row in found if row is not None]
    require(all(row in owner for row in rows), "a row of no part")
    taken = [[row for row in rows if owner[row] == k] for k in range(len(parts))]
    total = sum(weights)
    counts = np.zeros(len(parts))
    for position, row in enumerate(rows, start=1):
        counts[owner[row]] += 1
        shares = np.array(weights) * position / total
        require((abs(counts - shares) < 1 + 1e-9).all(), f"after {position}: {counts}, {shares}")
        if position == n:
            full = [counts[k] >= length(part) for k, part in enumerate(parts)]
            require(any(full), f"the epoch of {n} ends before any part was read once")
    for k, part in enumerate(parts):
        wanted = Counter(staged(row, case) for row in rows_of(part))
        for chunk in chunks(taken[k], length(part)):
            require(Counter(chunk) <= wanted, f"part {k}: one comes again before all have come")
