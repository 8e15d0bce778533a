"""A loader is a pytree of ordinary arrays, and keeps nothing alive that is not in use."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.compilations import compilations

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    MapTransform,
    NormalizeImageTransform,
    RandomMapTransform,
)
from cereal.testing import assert_same

N = 24
Loader = DataLoader[Any]


def add_noise(element: Any, key: Any) -> Any:
    return {**element, "label": element["label"] + 1000 * jax.random.randint(key, (), 0, 9)}


def images(n: int = N) -> dict[str, Any]:
    pixels = jnp.arange(n * 64, dtype=jnp.float32).reshape(n, 8, 8)
    return {"image": pixels, "label": jnp.arange(n, dtype=jnp.int32)}


def make_loader(data: Any = None, batch: int = 5) -> Loader:
    source = ArraySampleSource(images() if data is None else data, ordering="shuffle")
    stages = [BatchTransform(batch), NormalizeImageTransform(), RandomMapTransform(add_noise)]
    return DataLoader([source, *stages])


def plain_loader() -> Loader:
    return DataLoader([ArraySampleSource(images(), "sequential"), BatchTransform(5)])


@pytest.fixture(scope="module")
def loader() -> Loader:
    return make_loader()


def step(loader: Loader, state: Any) -> Any:
    return loader.next_batch(state)


# The five


def test_it_is_passed_to_jit(loader: Loader) -> None:
    state = loader.init_state(0)
    assert_same(jax.jit(step)(loader, state), loader.next_batch(state), "passed")


def test_it_is_returned_from_jit(loader: Loader) -> None:
    returned = jax.jit(lambda loader: loader)(loader)
    assert isinstance(returned, DataLoader)
    state = returned.init_state(0)
    assert_same(returned.next_batch(state), loader.next_batch(state), "returned")

    scaled = jax.jit(lambda loader: jax.tree.map(lambda leaf: leaf * 2, loader))(loader)
    double, once = scaled.batch_at(0, 0)[0]["image"], loader.batch_at(0, 0)[0]["image"]
    np.testing.assert_array_equal(double, 2 * once)


def test_it_is_carried_through_scan(loader: Loader) -> None:
    def carried(carry: Any, _: None) -> Any:
        loader, state = carry
        batch, state, mask = loader.next_batch(state)
        return (loader, state), (batch, mask)

    (after, state), outputs = lax.scan(carried, (loader, loader.init_state(0)), length=6)
    expected = list(loader.iterate(loader.init_state(0), steps=6))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *expected)
    assert_same(outputs, stacked, "carried")
    assert_same(after.next_batch(state), loader.next_batch(state), "after the scan")


def test_it_is_captured_and_passed_in_one_call(loader: Loader) -> None:
    @jax.jit
    def both(passed: Loader, state: Any) -> Any:
        one, state, _ = loader.next_batch(state)
        two, state, _ = passed.next_batch(state)
        return one, two, state

    one, two, state = both(loader, loader.init_state(0))
    assert_same(one, loader.batch_at(0, 0)[0], "captured")
    assert_same(two, loader.batch_at(0, 1)[0], "passed")
    assert_same(state, loader.state_at(0, 2), "the state")


def test_two_over_one_dataset_are_used_in_one_jit() -> None:
    data = images()
    train, test = make_loader(data, 5), make_loader(data, 7)
    one, two = jax.tree.leaves(train)[0], jax.tree.leaves(test)[0]
    assert one is two, "the dataset is stored once"

    @jax.jit
    def both(train: Loader, test: Loader, train_state: Any, test_state: Any) -> Any:
        return train.next_batch(train_state), test.next_batch(test_state)

    states = train.init_state(0), test.init_state(1)
    expected = train.next_batch(states[0]), test.next_batch(states[1])
    assert_same(both(train, test, *states), expected, "two loaders")


# What it is made of


def test_leaves_are_ordinary_arrays(loader: Loader) -> None:
    leaves, structure = jax.tree.flatten(loader)
    assert len(leaves) == 2
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    rebuilt = jax.tree.unflatten(structure, leaves)
    assert rebuilt.batch_at(0, 3)[0]["label"].tolist() == loader.batch_at(0, 3)[0]["label"].tolist()
    hash(structure)


def test_numpy_data_and_index_lists_become_arrays_once() -> None:
    data = {"x": np.arange(12, dtype=np.uint8).reshape(4, 3), "y": np.arange(4.0)}
    source = ArraySampleSource(data, ordering=np.array([3, 1]))
    loader = DataLoader([source, BatchTransform(2)])
    leaves = jax.tree.leaves(loader)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    assert [id(leaf) for leaf in jax.tree.leaves(loader)] == [id(leaf) for leaf in leaves]


def test_paths_name_the_data(loader: Loader) -> None:
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(loader)]
    assert [path.rpartition("[")[2] for path in paths] == ["'image']", "'label']"]


def test_equal_loaders_share_one_compilation() -> None:
    def make(offset: float) -> Loader:
        source = ArraySampleSource(np.arange(10.0) + offset, ordering="shuffle")
        return DataLoader([source, BatchTransform(4), MapTransform(lambda batch: batch)])

    first, second = make(0), make(100)
    assert jax.tree.structure(first) == jax.tree.structure(second)
    compiled = jax.jit(lambda loader, state: loader.next_batch(state))
    compiled(first, first.init_state(0))
    first.next_batch(first.init_state(0))
    with compilations() as made:
        compiled(second, second.init_state(0))
        second.next_batch(second.init_state(0))
    assert made() == 0
    assert second.batch_at(0, 0)[0].min() >= 100


def test_loaders_that_differ_in_a_stage_do_not_share_one() -> None:
    source = ArraySampleSource(np.arange(10.0), ordering="sequential")
    square, double = (lambda x: x * x), (lambda x: 2 * x)
    loaders = [DataLoader([source, BatchTransform(4), MapTransform(fn)]) for fn in (square, double)]
    assert jax.tree.structure(loaders[0]) != jax.tree.structure(loaders[1])
    compiled = jax.jit(step)
    found = [compiled(loader, loader.init_state(0))[0].tolist() for loader in loaders]
    assert found == [[0, 1, 4, 9], [0, 2, 4, 6]]


# What it keeps alive


def only_count(count: Any, batch: Any, mask: Any) -> tuple[Any, None]:
    del batch, mask
    return count + 1, None


def scan_with_a_body_that_holds_the_loader(loader: Loader) -> None:
    def body(count: Any, batch: Any, mask: Any) -> tuple[Any, None]:
        del batch, mask
        return count + len(loader), None

    loader.scan_epoch(loader.init_state(0), 0, body)


passing = jax.jit(step)
USES: dict[str, Callable[[Loader], Any]] = {
    "nothing": lambda loader: None,
    "next_batch": lambda loader: loader.next_batch(loader.init_state(0)),
    "source.next": lambda loader: loader.source.next(loader.init_state(0)),
    "iterate": lambda loader: list(loader.iterate(loader.init_state(0))),
    "an iterator left early": lambda loader: next(loader.iterate(loader.init_state(0))),
    "scan_epoch": lambda loader: loader.scan_epoch(loader.init_state(0), 0, only_count),
    "a body that holds the loader": scan_with_a_body_that_holds_the_loader,
    "jit, passed": lambda loader: passing(loader, loader.init_state(0)),
    "jit, captured": lambda loader: jax.jit(loader.next_batch)(loader.init_state(0)),
    "cereal.jit": lambda loader: cereal.jit(lambda s: loader.next_batch(s))(loader.init_state(0)),
    "vmap": lambda loader: jax.vmap(loader.next_batch)(
        jax.vmap(loader.init_state)(jax.random.split(jax.random.key(0), 2))
    ),
    "any step": lambda loader: (loader.batch_at(0, 3), loader.indices_at(0, 3), repr(loader)),
}


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_the_data_is_freed_with_the_loader(use: str) -> None:
    loader = plain_loader()
    data = [weakref.ref(leaf) for leaf in jax.tree.leaves(loader)]
    assert len(data) == 2
    USES[use](loader)
    del loader
    gc.collect()
    assert [ref() for ref in data] == [None, None]


@pytest.mark.parametrize("use", ["next_batch", "iterate", "scan_epoch", "jit, passed"])
def test_the_data_is_freed_without_the_collector(use: str) -> None:
    loader = plain_loader()
    data = [weakref.ref(leaf) for leaf in jax.tree.leaves(loader)]
    gc.collect()
    gc.disable()
    try:
        USES[use](loader)
        del loader
        assert [ref() for ref in data] == [None, None]
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore::cereal.EpochWarning")
def test_using_a_loader_makes_no_copy_of_its_data(loader: Loader) -> None:
    big = max(jax.tree.leaves(loader), key=lambda leaf: leaf.nbytes)

    def copies() -> int:
        return sum(array.shape == big.shape for array in jax.live_arrays())

    before = copies()
    for use in ("next_batch", "iterate", "scan_epoch", "jit, passed", "cereal.jit"):
        USES[use](loader)
    gc.collect()
    assert copies() == before


# Threads


def labels(count: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
    del mask
    return count + 1, batch["label"]


@pytest.mark.parametrize("use", ["next_batch", "iterate", "scan_epoch", "jit, captured"])
def test_eight_threads_use_one_loader_at_once(use: str) -> None:
    shared, alone = make_loader(), make_loader()
    together = threading.Barrier(8)

    def run(seed: int, loader: DataLoader[Any] = shared) -> Any:
        state = loader.init_state(seed)
        together.wait()
        if use == "iterate":
            return list(loader.iterate(state))
        if use == "scan_epoch":
            return loader.scan_epoch(state, 0, labels)
        return (jax.jit(loader.next_batch) if use == "jit, captured" else loader.next_batch)(state)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(run, range(8)))
    together = threading.Barrier(1)
    for seed in range(8):
        assert_same(found[seed], run(seed, alone), f"thread {seed}")
