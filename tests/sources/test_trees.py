"""Random trees of combined sources equal a plain reference, in NumPy and compiled.

A tree is ("data", values), ("slice", tree, indices), ("repeat", tree, times), ("concat", trees),
("mix", trees, weights, shuffled), ("split", tree, first, size, key), ("rest", tree, k, fold), or
("sum", trees): pairs of a zip, added.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cereal import (
    ArraySampleSource,
    BatchTransform,
    ConcatSource,
    DataLoader,
    MapTransform,
    MixSource,
    RepeatSource,
    SliceSource,
    ZipSource,
    kfold,
    split,
)
from cereal.core.branches import part_salt
from cereal.core.lane_permutation import permute_lanes
from cereal.core.rows import Rows
from cereal.core.subset import shuffled_once
from cereal.core.threefry import MIX, key_for, threefry
from cereal.core.turns import turn_table, whole_parts
from cereal.testing import assert_same

LIMIT = 60
# The reference: one element at a time, in plain Python.

Tree = Any
Key = tuple[np.uint32, np.uint32]


def turns(tree: Tree) -> np.ndarray:
    return turn_table(whole_parts(tree[2], len(tree[1]), "mix"))


def length(tree: Tree) -> int:
    kind, inside = tree[0], tree[1]
    if kind == "mix":  # until the first part has been read once
        table, left = turns(tree), [length(part) for part in inside]
        for t in range(10**6):
            left[table[t % len(table)]] -= 1
            if 0 in left:
                return t + 1
    if kind == "concat":
        return sum(length(part) for part in inside)
    if kind == "sum":
        return length(inside[0])
    if kind == "repeat":
        return length(inside) * tree[2]
    if kind == "rest":
        return length(inside) - len(np.array_split(np.arange(length(inside)), tree[2])[tree[3]])
    if kind == "split":
        return tree[3]
    return len(tree[2] if kind == "slice" else inside)


def element(tree: Tree, key: Key, epoch: int, index: int, salt: int = 0) -> int:
    kind, inside = tree[0], tree[1]
    if kind == "data":
        return inside[index]
    if kind == "sum":
        return sum(element(part, key, epoch, index) for part in inside)
    if kind == "slice":
        return element(inside, key, epoch, tree[2][index], salt)
    if kind == "repeat":
        n = length(inside)
        return element(inside, key, epoch * tree[2] + index // n, index % n, salt)
    if kind == "split":
        order = shuffled_once(
            np.array([0, tree[4]], np.uint32), np.arange(length(inside)), length(inside)
        )
        return element(inside, key, epoch, int(order[tree[2] + index]), salt)
    if kind == "rest":
        fold = np.array_split(np.arange(length(inside)), tree[2])[tree[3]]
        return element(inside, key, epoch, index if index < fold[0] else index + len(fold), salt)
    if kind == "concat":
        part = 0
        while index >= length(inside[part]):
            index, part = index - length(inside[part]), part + 1
        return element(inside[part], key, epoch, index, part_salt(salt, part))
    table = turns(tree)
    t = epoch * length(tree) + index
    part, before = int(table[t % len(table)]), table[: t % len(table)]
    n = length(inside[part])
    own, place = divmod(
        t // len(table) * int((table == part).sum()) + int((before == part).sum()), n
    )
    if tree[3]:
        lane = np.array([own], np.uint32), np.array([part], np.uint32)
        seeds = threefry(key_for(key, salt, MIX), lane)
        place = int(permute_lanes(np.array([place]), seeds, np.array([n], np.uint32))[0])
    return element(inside[part], key, own, place, part_salt(salt, part))


# Random trees, and cereal's.


def may_repeat(tree: Tree) -> bool:
    kind, inside = tree[0], tree[1]
    if kind in ("mix", "repeat") or (kind == "slice" and isinstance(tree[2], list)):
        return True
    if kind in ("concat", "sum"):
        return any(may_repeat(part) for part in inside)
    return kind != "data" and may_repeat(inside)


@st.composite
def trees(draw: Any, depth: int = 3, zips: bool = False) -> Tree:
    kinds = ["data", "slice", "repeat", "split", "rest", "concat", "mix", *["sum"] * zips]
    kind = draw(st.sampled_from(kinds if depth else ["data"]))
    if kind == "data":
        first, n = draw(st.integers(0, 9)) * 1000, draw(st.integers(1, 9))
        return ("data", list(range(first, first + n)))
    if kind in ("concat", "mix"):
        parts = [draw(trees(depth - 1, zips)) for _ in range(draw(st.integers(1, 3)))]
        if kind == "concat":
            return ("concat", parts)
        weights = draw(st.lists(st.integers(0, 4), min_size=len(parts), max_size=len(parts)))
        return ("mix", parts, weights if any(weights) else [1] * len(parts), draw(st.booleans()))
    inside = draw(trees(depth - 1, zips))
    n = length(inside)
    if kind == "sum":
        other = draw(trees(depth - 1, zips))
        n = min(n, length(other))
        return ("sum", [("slice", each, range(n)) for each in (inside, other)])
    if kind == "slice":
        start, step = draw(st.integers(0, n - 1)), draw(st.sampled_from([1, 2, -1, 3]))
        run = range(start, n if step > 0 else -1, step)
        return ("slice", inside, draw(st.sampled_from([run, [start, 0, start]])))
    if kind == "repeat":
        return ("repeat", inside, draw(st.integers(1, 3)))
    if n < 2 or may_repeat(inside):  # cereal refuses to split it
        return inside
    if kind == "split":
        size = draw(st.integers(1, n - 1))
        return (
            "split",
            inside,
            draw(st.sampled_from([0, n - size])),
            size,
            draw(st.integers(0, 9)),
        )
    k = draw(st.integers(2, n))
    return ("rest", inside, k, draw(st.integers(0, k - 1)))


ADD = MapTransform(lambda pair: pair[0] + pair[1])


def build(tree: Tree) -> Any:
    kind, inside = tree[0], tree[1]
    if kind == "data":
        return ArraySampleSource(np.array(inside), ordering="sequential")
    if kind == "slice":
        return SliceSource(build(inside), tree[2])
    if kind == "repeat":
        return RepeatSource(build(inside), tree[2])
    if kind == "split":
        first, size, n = tree[2], tree[3], length(inside)
        sizes = (size, n - size) if first == 0 else (n - size, size)
        return split(build(inside), sizes, key=tree[4])[0 if first == 0 else 1]
    if kind == "rest":
        return kfold(build(inside), tree[2], tree[3])[0]
    if kind == "sum":
        return ADD(ZipSource([build(part) for part in inside]))
    if kind == "concat":
        return ConcatSource([build(part) for part in inside])
    ordering = "shuffle" if tree[3] else "sequential"
    return MixSource([build(part) for part in inside], tree[2], ordering=ordering)


def host_elements(source: Any, key: Key, epoch: int, indices: np.ndarray) -> list[int]:
    """The elements by the NumPy form of the routes."""
    epochs = np.full(len(indices), epoch, np.uint32)
    rows = source._route(Rows(np.array(key), epochs, indices.astype(np.int64), None))
    if rows.below is None:
        return np.asarray(source.data)[rows.index].tolist()
    ((base,), (lanes,)) = source.store.bases, rows.below.below
    return np.asarray(base.data)[lanes.index].tolist()


def is_small(tree: Tree) -> bool:
    return length(tree) <= LIMIT


@settings(max_examples=120)
@given(trees().filter(is_small), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_the_numpy_form_of_any_tree_equals_the_reference(tree: Tree, epoch: int, seed: int) -> None:
    source, key = build(tree), (np.uint32(0), np.uint32(seed))
    assert len(source) == length(tree)
    indices = np.arange(length(tree))
    expected = [element(tree, key, epoch, int(index)) for index in indices]
    assert host_elements(source, key, epoch, indices) == expected


def walked(tree: Tree, batch: int, rule: str, seed: int, steps: int) -> list[tuple[Any, Any]]:
    """The first batches and masks of a sequential loader, by hand."""
    key, n = (np.uint32(0), np.uint32(seed)), length(tree)
    made, epoch, offset = [], 0, 0
    for _ in range(steps):
        if offset >= n or (rule == "drop" and offset + batch > n):
            epoch, offset = (
                epoch + (offset // n if rule == "wrap" else 1),
                0 if rule != "wrap" else offset % n,
            )
        places = [offset + lane for lane in range(batch)]
        if rule == "wrap":
            values = [element(tree, key, epoch + p // n, p % n) for p in places]
        else:
            values = [element(tree, key, epoch, p % n) for p in places]
        mask = [rule != "pad" or p < n for p in places]
        made.append((np.array(values, np.int32), np.array(mask)))
        offset += batch
    return made


loads = given(
    trees(zips=True).filter(is_small),
    st.integers(1, 5),
    st.sampled_from(["wrap", "pad", "drop"]),
    st.integers(0, 2**31),
    st.data(),
)


@settings(max_examples=6)
@loads
def test_any_tree_loads_as_the_reference_does_and_resumes_anywhere(
    tree: Tree, batch: int, rule: str, seed: int, data: Any
) -> None:
    check_loading(tree, batch, rule, seed, data)


@pytest.mark.slow
@settings(max_examples=40)
@loads
def test_many_trees_load_as_the_reference_does_and_resume_anywhere(
    tree: Tree, batch: int, rule: str, seed: int, data: Any
) -> None:
    check_loading(tree, batch, rule, seed, data)


def check_loading(tree: Tree, batch: int, rule: str, seed: int, data: Any) -> None:
    batch = min(batch, length(tree))
    rules: dict[str, Any] = {"drop_last": rule == "drop", "pad_last_batch": rule == "pad"}
    loader = DataLoader([build(tree), BatchTransform(batch, **rules)])
    steps = loader.steps_per_epoch + 3
    expected = walked(tree, batch, rule, seed, steps)
    for step, pair in enumerate(loader.iterate(loader.init_state(seed), steps=steps)):
        assert_same(pair, expected[step], f"iterate, step {step}")
    step = data.draw(st.integers(0, steps - 1))
    state = jax.tree.map(np.asarray, loader.state_at(seed, step))
    values, _, mask = loader.next_batch(jax.tree.map(jax.numpy.asarray, state))
    assert_same((values, mask), expected[step], f"resumed at step {step}")
