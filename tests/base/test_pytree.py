from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal.base.pytree import is_pytree, sealed_pytree_dataclass


@cereal.pytree_dataclass
class Scaled:
    scale: Any
    shift: Any = 0.0
    name: str = cereal.static_field(default="image")


@cereal.pytree_dataclass
class Checked:
    """Refuses, in its constructor, what is no positive number."""

    size: Any

    def __init__(self, size: Any) -> None:
        if size <= 0:
            raise ValueError("a size is positive")
        self.__dict__["size"] = size


@sealed_pytree_dataclass
class Sealed:
    inner: Any


def test_fields_are_children_and_static_fields_are_structure() -> None:
    leaves, structure = jax.tree.flatten(Scaled(1.5, 2.5, "x"))
    assert leaves == [1.5, 2.5]
    assert structure == jax.tree.structure(Scaled(0, 0, "x"))
    assert structure != jax.tree.structure(Scaled(0, 0, "y"))


def test_rebuilding_keeps_everything() -> None:
    again = jax.tree.map(lambda leaf: leaf * 2, Scaled(1.5, (2.5, 3.5), "x"))
    assert isinstance(again, Scaled)
    assert (again.scale, again.shift, again.name) == (3.0, (5.0, 7.0), "x")
    assert jax.tree.leaves(jax.tree.map(lambda leaf: leaf + 1, again)) == [4.0, 6.0, 8.0]


def test_rebuilding_does_not_run_the_constructor() -> None:
    assert jax.tree.map(lambda size: -size, Checked(3)).size == -3
    jax.jit(lambda node: node)(Checked(3))
    with pytest.raises(ValueError, match="a size is positive"):
        Checked(-3)


def test_paths_name_the_fields() -> None:
    paths = jax.tree_util.tree_flatten_with_path(Scaled({"a": 1}, [2]))[0]
    assert [jax.tree_util.keystr(path) for path, _ in paths] == [".scale['a']", ".shift[0]"]


def test_nodes_are_frozen() -> None:
    node = Scaled(1.0)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'scale'"):
        node.scale = 2.0  # type: ignore[misc]


def test_nodes_pass_through_jit_grad_vmap_and_scan() -> None:
    def apply(node: Scaled, x: Any) -> Any:
        return node.scale * x + node.shift

    node = Scaled(jnp.float32(3), jnp.float32(1))
    assert float(jax.jit(apply)(node, 2.0)) == 7.0
    assert float(jax.grad(apply)(node, 2.0).scale) == 2.0
    many = jax.vmap(lambda scale: Scaled(scale, scale))(jnp.arange(3.0))
    np.testing.assert_array_equal(jax.vmap(apply, (0, None))(many, 1.0), [0, 2, 4])
    last, _ = jax.lax.scan(lambda n, _: (Scaled(n.scale + 1, n.shift), None), node, length=4)
    assert float(last.scale) == 7.0


def test_equal_static_fields_share_a_compiled_program() -> None:
    traces = []

    @jax.jit
    def run(node: Scaled) -> Any:
        traces.append(node.name)
        return node.scale

    for name in ("a", "a", "b", "a"):
        run(Scaled(jnp.float32(1), jnp.float32(2), name))
    assert traces == ["a", "b"]


@pytest.mark.parametrize("touched", [False, True])
def test_nodes_copy_and_pickle_before_and_after_they_were_flattened(touched: bool) -> None:
    node = Scaled(np.arange(3), {"a": 1.0}, "x")
    if touched:
        jax.tree.leaves(node)
    for again in (copy.copy(node), copy.deepcopy(node), pickle.loads(pickle.dumps(node))):
        assert jax.tree.structure(again) == jax.tree.structure(node)
        np.testing.assert_array_equal(jax.tree.leaves(again)[0], np.arange(3))
        assert (again.name, again.shift) == ("x", {"a": 1.0})


def test_replacing_a_field_after_flattening_changes_the_leaves() -> None:
    node = Scaled(1.0)
    jax.tree.leaves(node)
    assert jax.tree.leaves(dataclasses.replace(node, scale=5.0)) == [5.0, 0.0]


def test_a_sealed_node_has_the_leaves_of_what_it_holds() -> None:
    node = Sealed({"a": Scaled(1.0), "b": [2.0]})
    assert jax.tree.leaves(node) == [1.0, 0.0, 2.0]
    again = jax.tree.map(lambda leaf: leaf + 1, node)
    assert isinstance(again.inner["a"], Scaled)
    assert again.inner["b"] == [3.0]
    paths = jax.tree_util.tree_flatten_with_path(node)[0]
    assert [jax.tree_util.keystr(path) for path, _ in paths][:1] == [".inner['a'].scale"]


def test_a_sealed_node_does_not_show_its_contents_to_is_leaf() -> None:
    seen = []
    jax.tree.leaves(Sealed({"a": 1.0}), is_leaf=lambda x: bool(seen.append(type(x))))
    assert dict not in seen


def test_sources_loaders_transforms_and_states_are_pytrees_of_arrays() -> None:
    source = cereal.ArraySampleSource(
        {"x": np.zeros((4, 3)), "image": np.zeros((4, 8, 8), np.uint8)}
    )
    stage = cereal.MapTransform(lambda element: element)
    loader = cereal.DataLoader([source, stage, cereal.BatchTransform(2)])
    for node in (source, stage, loader, loader.init_state(0)):
        assert is_pytree(node)
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(node))
    assert not is_pytree(3.0)
    assert not is_pytree(object())
