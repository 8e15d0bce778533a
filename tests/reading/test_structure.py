"""The structure of elements without JAX is the structure that JAX sees."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import jax
import numpy as np
import pytest

import cereal
from cereal.reading.structure import flatten, structure_of

Pair = namedtuple("Pair", ["x", "y"])


class Words(dict):
    pass


@cereal.pytree_dataclass
class Node:
    a: Any
    b: Any

    def __repr__(self) -> str:  # the same in every process that collects these tests
        return f"Node({self.a}, {self.b})"


ARRAY = np.zeros(2)
TREES: list[Any] = [
    1,
    "text",
    ARRAY,
    None,
    {},
    (),
    [],
    {"b": 1, "a": [2, (3, None)], "c": {}},
    {2: "x", 1: ARRAY},
    {(1, "a"): 1, (0, "b"): 2},
    OrderedDict([("b", 1), ("a", {"z": 2, "y": 3})]),
    Pair(1, Pair([2], None)),
    [Pair(1, 2), (3,), {"k": Pair(4, [5])}],
    Words(a=1),
    {"deep": [[[{"x": (1, 2)}]]]},
]
FOREIGN: list[Any] = [
    Node(1, {"x": 2}),
    {"n": Node(1, [2]), "a": 3},
    defaultdict(list, b=1, a=2),
    [defaultdict(int, a=1)],
]


@pytest.mark.parametrize("tree", [*TREES, *FOREIGN], ids=range(len(TREES) + len(FOREIGN)))
def test_leaves_come_in_the_order_of_jax_and_go_back(tree: Any) -> None:
    leaves, structure = flatten(tree)
    expected, known = jax.tree.flatten(tree)
    assert [id(leaf) for leaf in leaves] == [id(leaf) for leaf in expected]
    assert structure.num_leaves == known.num_leaves
    assert structure.known == known
    assert str(structure) == str(known)
    again = structure.unflatten(leaves)
    assert jax.tree.structure(again) == known
    assert type(again) is type(tree)
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    assert structure.names() == [jax.tree_util.keystr(path) for path, _ in paths]


@pytest.mark.parametrize("tree", TREES, ids=range(len(TREES)))
def test_trees_of_plain_containers_need_no_jax(tree: Any) -> None:
    structure = structure_of(tree)
    assert structure.plain
    assert pickle.loads(pickle.dumps(structure)) == structure


def test_other_nodes_are_given_to_jax() -> None:
    for tree in FOREIGN:
        structure = structure_of(tree)
        assert not structure.plain
        assert structure == structure_of(tree)
        assert structure != structure_of({"a": 1})


def outcome(run: Any) -> Any:
    try:
        return [id(leaf) for leaf in run()]
    except (ValueError, KeyError, TypeError):
        return "refused"


@pytest.mark.parametrize("number", range(len(TREES)))
def test_a_tree_has_a_structure_or_not_as_jax_says(number: int) -> None:
    structure = structure_of(TREES[number])
    others = [*TREES, {"a": 1, "b": [2, (3, None)], "c": 3}, [1, 2], (1, 2), {2: 1}, {"b": 1}]
    others += [OrderedDict([("a", {"y": 1, "z": 2}), ("b", 1)]), Pair(1, [2]), 5, {"a": 1}]
    for other in others:
        mine = outcome(lambda other=other: structure.flatten_up_to(other))
        assert mine == outcome(lambda other=other: structure.known.flatten_up_to(other)), other


def test_keys_that_do_not_sort_are_refused_as_by_jax() -> None:
    with pytest.raises(ValueError, match="sort"):
        flatten({1: 2, "a": 3})


def test_lists_that_are_leaves_stay_whole() -> None:
    leaves, structure = flatten({"a": [1, 2], "b": [[3]]}, lambda x: isinstance(x, list))
    assert leaves == [[1, 2], [[3]]]
    assert structure == structure_of({"a": 0, "b": 0})


def test_each_leaf_can_become_a_tree() -> None:
    outer = structure_of({"b": 0, "a": 0})
    inner = [structure_of((1, 2)), structure_of({"x": 1})]
    assert outer.of(inner) == structure_of({"a": (1, 2), "b": {"x": 1}})
