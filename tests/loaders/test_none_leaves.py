"""What JAX and its libraries put in place of a loader's leaves, and back; and how that prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DiskSampleSource,
    IterableSource,
    MixSource,
    NormalizeImageTransform,
    RandomMapTransform,
    WeightedSampling,
    WindowSource,
)
from cereal.testing import assert_same

DATA = {"x": np.arange(40, dtype=np.float32).reshape(20, 2), "y": np.arange(20)}
IMAGES = {"image": np.arange(6 * 784).astype(np.uint8).reshape(6, 28, 28)}
BATCH = BatchTransform(4)


def noisy(element: Any, key: Any) -> Any:
    return {**element, "x": element["x"] + jax.random.normal(key, (2,))}


def make_loader() -> DataLoader[Any]:
    return DataLoader([ArraySampleSource(DATA), BATCH, RandomMapTransform(noisy)])


def is_none(leaf: Any) -> bool:
    return leaf is None


def nothing(_: Any) -> None:
    return None


class Trainer(eqx.Module):
    w: jax.Array
    loader: DataLoader[Any]


def loss(trainer: Trainer, state: Any) -> jax.Array:
    return jnp.sum(trainer.loader.next_batch(state)[0]["x"] @ trainer.w)


def test_a_loader_is_taken_apart_and_put_together_by_equinox() -> None:
    loader = make_loader()
    arrays, rest = eqx.partition(loader, eqx.is_array)
    assert jax.tree.leaves(rest) == []
    again = eqx.combine(arrays, rest)
    assert_same(again.batch_at(3, 5), loader.batch_at(3, 5), "a batch")
    assert jax.tree.structure(again) == jax.tree.structure(loader)


def test_a_module_with_a_loader_is_trained_and_the_loader_left_alone() -> None:
    loader = make_loader()
    trainer, state = Trainer(jnp.ones(2), loader), loader.init_state(0)
    frozen = jax.tree.map(lambda _: False, trainer)
    frozen = eqx.tree_at(lambda each: each.w, frozen, replace=True)
    moving, still = eqx.partition(trainer, frozen)
    slope = jax.grad(lambda moving: loss(eqx.combine(moving, still), state))(moving)
    moved = eqx.apply_updates(trainer, slope)
    expected = 1 + loader.next_batch(state)[0]["x"].sum(axis=0)
    np.testing.assert_allclose(moved.w, expected, rtol=1e-5)
    assert_same(moved.loader.batch_at(0, 1), loader.batch_at(0, 1), "a batch")


def test_a_gradient_with_respect_to_all_floats_has_the_shape_of_the_module() -> None:
    loader = make_loader()
    trainer, state = Trainer(jnp.ones(2), loader), loader.init_state(0)
    slope = eqx.filter_grad(loss)(trainer, state)
    moved = eqx.apply_updates(trainer, slope)
    assert jax.tree.structure(moved) == jax.tree.structure(trainer)
    assert float(slope.w.sum()) == pytest.approx(float(loader.next_batch(state)[0]["x"].sum()))


def test_a_tree_of_none_says_that_a_loader_is_not_mapped() -> None:
    loader = make_loader()
    states = jax.vmap(loader.init_state)(jax.random.split(jax.random.key(0), 3))

    def read(loader: DataLoader[Any], state: Any) -> Any:
        return loader.next_batch(state)[0]["x"]

    whole = jax.tree.map(nothing, loader)
    found = jax.vmap(read, in_axes=(whole, 0))(loader, states)
    np.testing.assert_array_equal(found, jax.vmap(loader.next_batch)(states)[0]["x"])


def test_leaves_become_none_and_come_back() -> None:
    loader = make_loader()
    empty = jax.tree.map(nothing, loader)
    assert jax.tree.leaves(empty) == []
    back = jax.tree.map(lambda _, leaf: leaf, empty, loader, is_leaf=is_none)
    assert_same(back.batch_at(1, 2), loader.batch_at(1, 2), "a batch")
    twice = jax.tree.map(nothing, empty, is_leaf=is_none)
    assert jax.tree.structure(twice) == jax.tree.structure(empty)


def test_a_leaf_may_become_a_tree_and_be_taken_out_again() -> None:
    loader = make_loader()
    pairs = jax.tree.map(lambda leaf: (leaf, leaf), loader)
    first, second = jax.tree.transpose(
        jax.tree.structure(loader), jax.tree.structure((0, 0)), pairs
    )
    for each in (first, second):
        assert_same(each.batch_at(0, 0), loader.batch_at(0, 0), "a batch")


def test_paths_are_those_of_the_leaves_also_where_they_are_none() -> None:
    loader = make_loader()
    paths, _ = jax.tree_util.tree_flatten_with_path(loader)
    empty = jax.tree.map(nothing, loader)
    hollow, _ = jax.tree_util.tree_flatten_with_path(empty, is_leaf=is_none)
    assert [jax.tree_util.keystr(path) for path, _ in paths] == [
        jax.tree_util.keystr(path) for path, _ in hollow
    ]


# How it prints

PIPELINES: dict[str, Callable[[], list[Any]]] = {
    "arrays": lambda: [ArraySampleSource(DATA), BATCH, RandomMapTransform(noisy)],
    "one array": lambda: [ArraySampleSource(np.arange(9.0)), BATCH],
    "words": lambda: [ArraySampleSource(IMAGES), NormalizeImageTransform(), BATCH],
    "listed": lambda: [ArraySampleSource(DATA, ordering=np.arange(9)), BATCH],
    "weighted": lambda: [ArraySampleSource(DATA, ordering=WeightedSampling(np.ones(20))), BATCH],
    "mixed": lambda: [
        MixSource([ArraySampleSource(DATA), RandomMapTransform(noisy)(ArraySampleSource(DATA))]),
        BATCH,
    ],
    "windows": lambda: [WindowSource(np.arange(50), 5), BATCH],
    "host": lambda: [DiskSampleSource(8, lambda i: {"x": float(i)}), BATCH],
    "iterator": lambda: [IterableSource(lambda: iter([{"x": 1.0}] * 4)), BATCH],
}


def shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


INSTEAD: dict[str, Callable[[Any], Any]] = {
    "None": nothing,
    "a name": lambda _: "leaf",
    "a number": lambda _: 0,
    "a flag": lambda _: True,
    "an object": lambda _: object(),
    "a shape": shape_of,
    "NumPy": np.asarray,
}


def nodes_of(loader: DataLoader[Any]) -> list[Any]:
    """The loader, a state, every source and stage in it, and their orders."""
    found: list[Any] = [loader, loader.init_state(0)]
    source: Any = loader.source
    while source is not None:
        placed = getattr(source, "stages", ())
        found += [source, *placed, *(each.stage for each in placed)]
        found += [getattr(source, "stage", None), getattr(source, "ordering", None)]
        source = source.source if placed else source._upstream
    return [node for node in found if node is not None and not isinstance(node, str)]


@pytest.mark.parametrize("instead", INSTEAD.values(), ids=INSTEAD)
@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
def test_nothing_that_stands_for_a_leaf_keeps_a_node_from_printing(
    make: Callable[[], list[Any]], instead: Callable[[Any], Any]
) -> None:
    with DataLoader(make()) as loader:
        for node in nodes_of(loader):
            assert repr(jax.tree.map(instead, node))


@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
def test_nodes_print_while_they_are_traced(make: Callable[[], list[Any]]) -> None:
    with DataLoader(make()) as loader:
        for node in nodes_of(loader):
            printed = []
            jax.eval_shape(lambda node, out=printed: out.append(repr(node)), node)
            assert printed
            assert printed[0]


def test_the_drawing_of_a_loader_without_its_arrays_says_so() -> None:
    drawn = repr(jax.tree.map(nothing, make_loader()))
    assert drawn.startswith("DataLoader: of no known length\nArraySampleSource(...) ")
    assert "BatchTransform(4)" in drawn


def test_what_was_donated_prints() -> None:
    loader = DataLoader([ArraySampleSource(DATA), BATCH])
    state = loader.init_state(0)
    for leaf in jax.tree.leaves((loader, state)):
        leaf.delete()
    assert repr(state) == "PipelineState(words=deleted)"
    assert "BatchTransform(4)" in repr(loader)


def test_states_print_by_what_they_are() -> None:
    source: Any = make_loader().source
    state = cereal.PipelineState(jnp.zeros((3, 5), jnp.uint32), source._fingerprint)
    assert repr(state).startswith("PipelineState(words=Array([[0, 0, 0, 0, 0],")
    assert repr(jax.tree.map(nothing, state)) == "PipelineState(words=None)"
