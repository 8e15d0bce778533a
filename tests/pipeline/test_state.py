from __future__ import annotations

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cereal
from cereal.pipeline.state import Fingerprint, host_words, key_words, make_words

PLAIN = cereal.RangeSource(10)


def flip(x: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.where(jax.random.bernoulli(key), -x, x)


def count(carry: Any, batch: Any, mask: Any) -> Any:
    del batch, mask
    return carry + 1, None


def loader_of(*stages: Any) -> cereal.DataLoader[Any]:
    return cereal.DataLoader([*stages, cereal.BatchTransform(4)])


@given(
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**63 - 1),
)
def test_words_keep_a_key_an_epoch_and_an_offset_of_64_bits(
    key: tuple[int, int], epoch: int, offset: int
) -> None:
    state = cereal.PipelineState(jnp.asarray(make_words(key, epoch, offset)), PLAIN._fingerprint)
    assert host_words(state) == (*key, epoch, offset)
    assert repr(state) == f"PipelineState(key={key}, epoch={epoch}, offset={offset})"


@pytest.mark.parametrize(
    "loader",
    [
        loader_of(PLAIN),
        loader_of(cereal.RangeSource(10**9, ordering="shuffle"), cereal.RandomMapTransform(flip)),
    ],
)
def test_a_state_takes_at_most_32_bytes(loader: cereal.DataLoader[Any]) -> None:
    leaves = jax.tree.leaves(loader.init_state(0))
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    assert sum(leaf.nbytes for leaf in leaves) <= 32


def test_a_state_reads_as_key_epoch_and_offset() -> None:
    state = loader_of(PLAIN).state_at(7, 3)
    assert state.key.tolist() == [0, 7]
    assert (int(state.epoch), int(state.offset)) == (1, 2)


def test_a_traced_state_and_an_array_of_states_can_be_printed() -> None:
    seen = []
    jax.jit(lambda state: seen.append(repr(state)))(PLAIN.init_state(0))
    states = jax.vmap(PLAIN.init_state)(jax.random.split(jax.random.key(0), 3))
    for text in (*seen, repr(states)):
        assert text.startswith("PipelineState(words=")


# Keys


@pytest.mark.parametrize("seed", [0, 1, 42, 2**31 - 1, 2**31, 2**32 - 1])
def test_an_integer_is_the_key_that_jax_makes_of_it(seed: int) -> None:
    made = PLAIN.init_state(seed)
    for key in (jax.random.key(seed), jax.random.PRNGKey(seed), np.int64(seed)):
        np.testing.assert_array_equal(made.words, PLAIN.init_state(key).words)


def test_integers_of_64_bits_are_the_keys_that_jax_makes_with_64_bit_types_on() -> None:
    with jax.enable_x64(True):
        expected = [jax.random.key_data(jax.random.key(seed)) for seed in (2**40 + 7, -1)]
    assert [list(key_words(seed)) for seed in (2**40 + 7, -1)] == [list(key) for key in expected]


def test_keys_may_be_typed_legacy_or_numpy() -> None:
    typed = jax.random.fold_in(jax.random.key(3), 5)
    legacy = jax.random.key_data(typed)
    for key in (typed, legacy, np.asarray(legacy)):
        np.testing.assert_array_equal(PLAIN.init_state(key).key, legacy)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_all_four_words_of_an_rbg_key_count(impl: str) -> None:
    words = np.array([1, 2, 3, 4], np.uint32)
    made = set()
    for place in range(4):
        changed = words.copy()
        changed[place] ^= 8
        key = jax.random.wrap_key_data(jnp.asarray(changed), impl=impl)
        made.add(tuple(PLAIN.init_state(key).key.tolist()))
    assert len(made) == 4


def test_keys_make_the_same_states_inside_jit() -> None:
    for key in (jax.random.key(3), jax.random.PRNGKey(3), jax.random.key(3, impl="rbg")):
        inside = jax.jit(PLAIN.init_state)(key)
        np.testing.assert_array_equal(inside.words, PLAIN.init_state(key).words)
        assert inside.fingerprint == PLAIN._fingerprint


def test_vmap_makes_one_state_per_key() -> None:
    keys = jax.random.split(jax.random.key(0), 5)
    states = jax.vmap(PLAIN.init_state)(keys)
    expected = [PLAIN.init_state(key).words for key in keys]
    np.testing.assert_array_equal(states.words, np.stack(expected))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("0", "must be a JAX random key, got str; pass `jax.random.key"),
        (0.0, "must be a JAX random key, got float; pass `jax.random.key"),
        (True, "must be a JAX random key, got bool; pass `jax.random.key"),
        (None, "must be a JAX random key, got NoneType; pass `jax.random.key"),
        ((0, 1), "must be a JAX random key, got tuple; pass `jax.random.key"),
        (np.zeros(2, np.float32), r"dtype float32 and shape \(2,\), which is no random key"),
        (np.zeros(2, np.int32), r"dtype int32 and shape \(2,\), which is no random key"),
        (np.zeros(3, np.uint32), r"shape \(3,\), which is no random key \(a legacy key is uint32"),
        (np.zeros((), np.uint32), r"shape \(\), which is no random key .*`jax.random.key\(0\)`"),
        (np.zeros((5, 2), np.uint32), r"array of keys of shape \(5,\).*`jax.vmap\(loader.init"),
        (jax.random.split(jax.random.key(0), 3), r"of shape \(3,\).*`jax.vmap\(loader.init_state"),
    ],
)
def test_what_is_no_key_is_refused_with_the_line_to_write(key: Any, message: str) -> None:
    with pytest.raises(cereal.StateError, match=message):
        PLAIN.init_state(key)
    with pytest.raises(cereal.StateError, match=message):
        cereal.DataLoader(PLAIN).state_at(key, 3)


# Fingerprints


def test_a_fingerprint_says_length_ordering_and_random_stages_but_not_the_batch_size() -> None:
    source = cereal.RangeSource(10, ordering="shuffle")
    state = loader_of(source, cereal.RandomMapTransform(flip)).init_state(0)
    assert state.fingerprint == Fingerprint(10, ("shuffle",), 1)
    other = cereal.DataLoader([source, cereal.BatchTransform(3), cereal.RandomMapTransform(flip)])
    assert other.init_state(0).fingerprint == state.fingerprint


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (loader_of(cereal.RangeSource(11)), "it has length=10, this one has length=11"),
        (
            loader_of(cereal.RangeSource(10, ordering="shuffle")),
            "it has ordering=sequential, this one has ordering=shuffle",
        ),
        (
            loader_of(PLAIN, cereal.RandomMapTransform(flip)),
            "it has random_stages=0, this one has random_stages=1",
        ),
        (
            loader_of(cereal.RangeSource(10, ordering=range(9, -1, -1))),
            r"it has ordering=sequential, this one has ordering=indices\(10, [0-9a-f]{8}\)",
        ),
        (
            loader_of(cereal.RangeSource(10, ordering=[3, 1, 4, 0])),
            r"it has length=10, ordering=sequential, this one has length=4, ordering=indices\(4,",
        ),
    ],
)
def test_a_state_of_another_pipeline_is_refused_naming_what_differs(
    loader: cereal.DataLoader[Any], message: str
) -> None:
    state = loader_of(PLAIN).init_state(0)
    for run in (loader.next_batch, loader.iterate, loader.source.next, jax.jit(loader.next_batch)):
        with pytest.raises(cereal.StateError, match=message):
            run(state)
    with pytest.raises(cereal.StateError, match="Only the batch size may change under a state"):
        loader.scan_epoch(state, 0, lambda carry, batch, mask: (carry, None))


def test_two_lists_of_indices_of_one_length_are_two_pipelines() -> None:
    state = loader_of(cereal.RangeSource(10, ordering=[3, 1, 4, 0])).init_state(0)
    loader = loader_of(cereal.RangeSource(10, ordering=[1, 3, 4, 0]))
    with pytest.raises(cereal.StateError, match=r"ordering=indices\(4, .* ordering=indices\(4, "):
        loader.next_batch(state)


@pytest.mark.parametrize("state", [None, {"words": 1}])
def test_what_is_no_state_is_refused_with_the_line_to_write(state: Any) -> None:
    message = rf"got {type(state).__name__}; write `state = loader.init_state\(key\)`"
    with pytest.raises(cereal.StateError, match=message):
        cereal.DataLoader(PLAIN).next_batch(state)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (jnp.zeros(4, jnp.uint32), r"has uint32\[4\]; save and restore all five words"),
        (jnp.zeros(5), r"has float32\[5\]; save and restore all five words"),
        (np.zeros(5, np.int64), r"has int64\[5\]; save and restore"),
        (jnp.zeros((3, 5), jnp.uint32), r"3 states; for many .* `jax\.vmap\(loader\.next_batch\)"),
    ],
)
def test_states_that_are_no_five_words_are_refused(words: Any, match: str) -> None:
    loader = cereal.DataLoader(PLAIN)
    state = cereal.PipelineState(words, loader.init_state(0).fingerprint)
    for use in (loader.next_batch, loader.iterate, lambda s: loader.scan_epoch(s, 0, count)):
        with pytest.raises(cereal.StateError, match=match):
            use(state)


def test_a_state_beyond_the_data_is_refused_where_its_words_are_looked_at() -> None:
    loader = cereal.DataLoader(PLAIN)
    words = jnp.array([0, 0, 0, 0, 99], jnp.uint32)
    state = cereal.PipelineState(words, loader.init_state(0).fingerprint)
    match = r"at element 99 of an epoch that has \d+: no step ends there"
    for use in (loader.iterate, loader.next_batch):
        with pytest.raises(cereal.StateError, match=match):
            use(state)


def test_a_state_that_version_0_1_0_pickled_is_understood() -> None:
    train, _ = cereal.split(cereal.RangeSource(10), (0.8, 0.2), key=1, ordering="shuffle")
    stages = [train, cereal.RandomMapTransform(lambda x, key: x), cereal.BatchTransform(4)]
    loader = cereal.DataLoader(stages)
    old = Fingerprint(8, "shuffle of split(0, 8, dd9eb80c)", 1)  # type: ignore[arg-type]
    pickled = pickle.dumps(old, protocol=0).replace(b"cereal.pipeline.state", b"cereal.core.state")
    assert b"cereal.core.state" in pickled
    words = jnp.asarray(make_words((0, 3), 0, 4))
    state = cereal.PipelineState(words, pickle.loads(pickled))
    batch, after, _ = loader.next_batch(state)
    assert batch.tolist() == [2, 9, 4, 3]
    assert loader.next_batch(after)[0].shape == (4,)
    other = cereal.PipelineState(words, Fingerprint(8, "shuffle", 1))  # type: ignore[arg-type]
    with pytest.raises(cereal.StateError, match="it has ordering=shuffle, this one has ordering="):
        loader.next_batch(other)


# Names in paths


def name_of(loader: cereal.DataLoader[Any], state: Any = None) -> str:
    state = loader.init_state(0) if state is None else state
    [(path, words)] = jax.tree_util.tree_flatten_with_path(state)[0]
    assert words.shape == (5,)
    return jax.tree_util.keystr(path)


def test_the_name_of_the_words_says_to_which_pipeline_they_belong() -> None:
    assert name_of(loader_of(PLAIN)) == ".words(length=10, ordering=sequential, random_stages=0)"
    random = loader_of(cereal.RangeSource(10, ordering="shuffle"), cereal.RandomMapTransform(flip))
    assert name_of(random) == ".words(length=10, ordering=shuffle, random_stages=1)"


def test_the_name_tells_orders_of_one_kind_apart() -> None:
    orders = [np.arange(9), np.arange(9)[::-1]]
    data = np.arange(9.0)
    one, two = (loader_of(cereal.ArraySampleSource(data, ordering=order)) for order in orders)
    assert name_of(one) != name_of(two)
    inside = jax.jit(lambda loader, key: loader.init_state(key))(one, jax.random.key(0))
    assert name_of(one, inside) == name_of(one)


def test_the_name_of_many_parts_can_be_the_name_of_a_file() -> None:
    def joined(*last: int) -> cereal.DataLoader[Any]:
        parts = [cereal.SliceSource(PLAIN, [*range(n % 9), 0]) for n in (*range(60), *last)]
        return loader_of(cereal.ConcatSource(parts))

    names = {name_of(joined(1, 2)), name_of(joined(2, 1)), name_of(joined(1, 2))}
    assert len(names) == 2
    assert all(len(name) <= 151 and "/" not in name and "{" not in name for name in names)
