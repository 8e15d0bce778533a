"""Rollouts of gymnax's CartPole, against the cart's equations in NumPy."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.rl.cartpole import (
    ENV,
    ENV_PARAMS,
    ZEROS,
    begin,
    cartpole,
    fallen,
    loader_of,
    moved,
    policy_step,
)
from tests.rl.corridor import Corridor, walk
from tests.slowly import slowly

import cereal
from cereal.testing import check_loader, check_resume, check_source


def same(one: Any, other: Any) -> bool:
    return jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), one, other))


def many(loader: Any, state: Any, count: int) -> tuple[Any, Any]:
    found = []
    for _ in range(count):
        batch, state, _ = loader.next_batch(state)
        found.append(batch)
    return jax.tree.map(lambda *each: np.concatenate(each), *found), state


# What a transition is


@pytest.mark.parametrize("num_envs", [slowly(1), 6])
def test_transitions_follow_the_rules_of_the_cart(num_envs: int) -> None:
    source = cartpole(num_envs=num_envs, limit=30, steps_per_epoch=100)
    loader = loader_of(source, 50)
    batch, _ = many(loader, begin(loader), 4)
    expected = moved(batch["state"], batch["action"])
    np.testing.assert_allclose(batch["next_state"], expected, rtol=1e-4, atol=1e-5)

    shape = (200,) if num_envs == 1 else (200, num_envs)
    assert batch["done"].shape == batch["reward"].shape == batch["action"].shape == shape
    assert batch["state"].shape == (*shape, 4)

    done, info = batch["done"], batch["info"]
    assert np.array_equal(info["terminated"], fallen(batch["next_state"]))
    lengths = episode_lengths(done)
    late = lengths == 30
    assert late.any()
    assert np.array_equal(info["truncated"] | info["terminated"], done)
    assert np.array_equal(info["truncated"], late & ~info["terminated"])
    assert info["terminated"].any()

    first = batch["state"][1:][done[:-1]]
    assert (abs(first) <= 0.05).all()
    assert np.array_equal(batch["state"][1:][~done[:-1]], batch["next_state"][:-1][~done[:-1]])
    assert not np.array_equal(first, batch["next_state"][:-1][done[:-1]])


def episode_lengths(done: np.ndarray) -> np.ndarray:
    """How many steps the episode has had, with this one."""
    lengths, length = [], np.zeros(done.shape[1:], int)
    for ended in done:
        length = length + 1
        lengths.append(length)
        length = np.where(ended, 0, length)
    return np.stack(lengths)


def test_episodes_begin_in_different_places_and_environments_differ() -> None:
    loader = loader_of(cartpole(num_envs=16), 64)
    batch, _ = many(loader, begin(loader), 2)
    later = batch["state"][1:][batch["done"][:-1]]
    starts = np.concatenate([batch["state"][0], later])
    assert len(np.unique(starts, axis=0)) == len(starts) > 32
    assert 0.4 < batch["action"].mean() < 0.6  # coins of all environments, all steps
    assert (batch["action"].std(axis=0) > 0.3).all()
    assert (batch["action"].std(axis=1) > 0.2).all()


# One by one, at once, in any batches


def test_many_steps_at_once_are_steps_one_by_one() -> None:
    source = cartpole(num_envs=3, limit=9)
    start = source.set_policy_state(source.init_state(5), ZEROS)
    together, mask, after = source.next_many(start, 40)
    assert mask.shape == (40,)
    assert mask.all()
    state = start
    for number in range(40):
        alone, _, state = source.next(state)
        assert same(jax.tree.map(lambda x, n=number: x[n], together), alone)
    assert same(state, after)


def test_segments_of_any_length_are_one_stream_across_epochs() -> None:
    source = cartpole(num_envs=2, limit=20, steps_per_epoch=30)
    whole, _ = many(loader_of(source, 90), begin(loader_of(source, 90)), 1)
    for size in (10, 45):
        loader = loader_of(source, size)
        parts, _ = many(loader, begin(loader), 90 // size)
        assert same(parts, whole)
    loader = loader_of(source, 10)
    batches = [batch for batch, _ in loader.iterate(begin(loader), epochs=3)]
    assert len(batches) == 9
    assert same(jax.tree.map(lambda *each: np.concatenate(each), *batches), whole)


@pytest.mark.slow
def test_an_environment_sees_the_same_however_many_there_are() -> None:
    few = loader_of(cartpole(num_envs=3, limit=15), 40)
    more = loader_of(cartpole(num_envs=8, limit=15), 40)
    alone = loader_of(cartpole(num_envs=1, limit=15), 40)
    a, b, c = (loader.next_batch(begin(loader))[0] for loader in (few, more, alone))
    assert same(a, jax.tree.map(lambda x: x[:, :3], b))
    assert same(c, jax.tree.map(lambda x: x[:, 0], b))


def test_stages_before_batching_see_steps_and_run_once_for_a_whole_segment() -> None:
    def far(step: Any) -> Any:
        assert step["state"].shape == (2, 4)
        return {"x": step["state"][:, 0], "far": abs(step["next_state"][:, 0]) > 0.04}

    def noise(step: Any, key: Any) -> Any:
        return {**step, "noise": jax.random.uniform(key)}

    source = cartpole(num_envs=2)
    stages = cereal.RandomMapTransform(noise)(cereal.MapTransform(far)(source))
    loader = cereal.DataLoader(cereal.BatchTransform(12)(stages))
    plain = loader_of(source, 12)
    batch, state, _ = loader.next_batch(begin(loader))
    whole, _, _ = plain.next_batch(begin(plain))
    assert np.array_equal(batch["x"], whole["state"][..., 0])
    assert len(np.unique(batch["noise"])) == 12
    singles, at = [], begin(cereal.DataLoader(stages))
    for _ in range(24):
        single, _, at = stages.next(at)
        singles.append(single["noise"])
    second, _, _ = loader.next_batch(state)
    assert np.array_equal(np.concatenate([batch["noise"], second["noise"]]), singles)


def test_padding_ends_an_epoch_and_the_environments_wait() -> None:
    source = cartpole(num_envs=2, steps_per_epoch=10)
    loader = loader_of(source, 4, pad_last_batch=True)
    batches = list(loader.iterate(begin(loader), epochs=2))
    assert [int(mask.sum()) for _, mask in batches] == [4, 4, 2, 4, 4, 2]
    real = [np.asarray(batch["state"])[np.asarray(mask)] for batch, mask in batches]
    whole = loader_of(source, 20)
    assert np.array_equal(np.concatenate(real), whole.next_batch(begin(whole))[0]["state"])


# Policies


def remembering(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
    """Counts the steps of its episode; every environment for itself."""
    count = jnp.where(new_episode, 0, policy_state["count"]) + 1
    action = jax.random.categorical(key, observation @ policy_state["params"])
    return action, {**policy_state, "count": count}, {"count": count, "new": new_episode}


@pytest.mark.parametrize("num_envs", [slowly(1), 5])
def test_a_policy_remembers_and_is_told_of_new_episodes(num_envs: int) -> None:
    policy_state = {**ZEROS, "count": jnp.zeros(num_envs, jnp.int32)}
    axes = {"params": None, "count": 0}
    source = cartpole(
        remembering, policy_state, num_envs=num_envs, policy_state_axes=axes, limit=12
    )
    loader = loader_of(source, 20)
    batch, state = many(loader, begin(loader, policy_state), 4)
    assert np.array_equal(batch["extras"]["count"], episode_lengths(batch["done"]))
    assert batch["extras"]["new"][0].all()
    assert np.array_equal(batch["extras"]["new"][1:], batch["done"][:-1])
    kept = loader.get_policy_state(state)
    last = np.atleast_1d(batch["extras"]["count"][-1])
    assert np.array_equal(kept["count"], last)

    changed = loader.set_policy_state(state, {**kept, "params": jnp.ones((4, 2))})
    assert np.array_equal(loader.get_policy_state(changed)["count"], last)
    more, _, _ = loader.next_batch(changed)
    expected = np.where(batch["done"][-1], 0, batch["extras"]["count"][-1]) + 1
    assert np.array_equal(more["extras"]["count"][0], expected)


def test_a_policy_without_a_state_needs_none() -> None:
    def coin(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        return jax.random.bernoulli(key).astype(jnp.int32), policy_state

    loader = loader_of(cartpole(coin, None), 8)
    batch, _, _ = loader.next_batch(loader.init_state(0))
    assert batch["action"].shape == (8,)


def test_an_axis_other_than_the_first_may_go_over_environments() -> None:
    def scaled(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        assert policy_state.shape == (4,)
        return jnp.int32(observation @ policy_state > 0), policy_state

    weights = jnp.stack([jnp.eye(4)[0], -jnp.eye(4)[0], jnp.eye(4)[2]], axis=1)
    loader = loader_of(cartpole(scaled, weights, num_envs=3, policy_state_axes=1), 5)
    batch, _, _ = loader.next_batch(begin(loader, weights))
    seen = np.asarray(batch["state"])
    expected = np.stack([seen[:, 0, 0], -seen[:, 1, 0], seen[:, 2, 2]], axis=1) > 0
    assert np.array_equal(batch["action"], expected)


def test_a_pytree_may_be_the_policy() -> None:
    @cereal.pytree_dataclass
    class Linear:
        weights: jax.Array

        def __call__(self, observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
            return jnp.int32(observation @ self.weights > 0), policy_state

    loader = loader_of(cartpole(Linear(jnp.eye(4)[2]), None), 5)
    batch, _, _ = loader.next_batch(loader.init_state(0))
    assert np.array_equal(batch["action"], batch["state"][:, 2] > 0)


# In programs


@pytest.mark.slow
def test_the_whole_is_a_function_that_jit_and_vmap_take() -> None:
    loader = loader_of(cartpole(num_envs=2), 8)

    def first(loader: Any, key: Any, params: Any) -> Any:
        return loader.next_batch(begin(loader, {"params": params}, key))[0]

    keys = jax.random.split(jax.random.key(3), 4)
    params = jax.random.normal(jax.random.key(4), (4, 4, 2))
    mapped = jax.jit(jax.vmap(first, in_axes=(None, 0, 0)))(loader, keys, params)
    for number in range(4):
        alone = first(loader, keys[number], params[number])
        assert np.array_equal(mapped["action"][number], alone["action"])
        np.testing.assert_allclose(mapped["state"][number], alone["state"], rtol=1e-6)


def test_environment_parameters_are_leaves_that_vmap_takes() -> None:
    def lengths(limit: Any) -> Any:
        params = ENV_PARAMS.replace(max_steps_in_episode=limit)  # type: ignore[attr-defined]
        source = cereal.GymnaxSource(ENV, params, policy_step, ZEROS)
        loader = loader_of(source, 8)
        return loader.next_batch(begin(loader))[0]["done"]

    done = jax.vmap(lengths)(jnp.array([2, 4, 8]))
    assert np.asarray(done).sum(axis=1).tolist() == [4, 2, 1]


@pytest.mark.slow
def test_environments_may_lie_on_several_devices() -> None:
    loader = loader_of(cartpole(num_envs=8, limit=9), 12)
    state = begin(loader)
    mesh = jax.make_mesh((4,), ("envs",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.sharding.NamedSharding(mesh, jax.P("envs"))
    whole = jax.sharding.NamedSharding(mesh, jax.P())
    placed = jax.tree.map(
        lambda x: jax.device_put(x, spread if x.shape[:1] == (8,) else whole), state
    )
    batch, _, _ = loader.next_batch(placed)
    assert batch["state"].sharding.spec == jax.P(None, "envs")
    alone, _, _ = loader.next_batch(state)
    assert np.array_equal(batch["action"], alone["action"])
    np.testing.assert_allclose(batch["next_state"], alone["next_state"], rtol=1e-6)


def test_nothing_is_compiled_twice() -> None:
    traced = itertools.count()

    def counted(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        next(traced)
        return policy_step(observation, policy_state, new_episode, key)

    loader = loader_of(cartpole(counted, num_envs=2), 4)
    _, state, _ = loader.next_batch(begin(loader))
    before = next(traced)
    for number in range(5):
        state = loader.set_policy_state(state, {"params": jnp.full((4, 2), float(number))})
        _, state, _ = loader.next_batch(state)
    assert next(traced) == before + 1


# Promises


def test_the_keys_of_every_step_are_pinned() -> None:
    """Changing this digest changes every rollout: a breaking change, and the CHANGELOG says so."""

    @cereal.pytree_dataclass
    class KeysShown:
        def reset(self, key: Any) -> Any:
            return jax.random.key_data(key), jnp.int32(0)

        def step(self, key: Any, state: Any, action: Any) -> Any:
            end = state == 2
            return cereal.rl.Step(jax.random.key_data(key), state + 1, 0.0, end)

        def action_spec(self) -> Any:
            return None

    def show(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        return jax.random.key_data(key), policy_state

    source = cereal.rl.RolloutSource(KeysShown(), show, None, num_envs=3)
    loader = loader_of(source, 8)
    batch, _, _ = loader.next_batch(loader.init_state(7))
    words = np.concatenate([batch["state"], batch["action"], batch["next_state"]], axis=-1)
    assert words.shape == (8, 3, 6)
    keys = np.concatenate([batch["action"].reshape(-1, 2), batch["next_state"].reshape(-1, 2)])
    assert len(np.unique(keys, axis=0)) == len(keys)
    digest = hashlib.sha256(words.astype("<u4").tobytes()).hexdigest()[:16]
    assert digest == "d5e4e25c512d708e"


def test_a_state_is_arrays_and_goes_on_after_being_stored() -> None:
    loader = loader_of(cartpole(num_envs=3, limit=7), 5)
    _, state, _ = loader.next_batch(begin(loader))
    leaves, structure = jax.tree.flatten(state)
    stored = [np.array(leaf) for leaf in leaves]
    restored = jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in stored])
    assert same(loader.next_batch(restored)[0], loader.next_batch(state)[0])


def test_an_environment_is_reset_only_in_steps_that_end_an_episode() -> None:
    resets: list[int] = []

    @cereal.pytree_dataclass
    class Slow(Corridor):
        def reset(self, key: Any) -> Any:
            jax.debug.callback(lambda: resets.append(1))
            return super().reset(key)

    def forward(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        return jnp.int32(1), policy_state

    source = cereal.rl.RolloutSource(Slow(5), forward, None)
    loader = loader_of(source, 12)
    batch, _, _ = loader.next_batch(loader.init_state(0))
    jax.effects_barrier()
    assert int(batch["done"].sum()) == 2
    assert len(resets) == 1 + 2


@pytest.mark.parametrize("num_envs", [1, 2])
def test_an_environment_may_answer_with_plain_numbers(num_envs: int) -> None:
    @cereal.pytree_dataclass
    class Endless(Corridor):
        def step(self, key: Any, state: Any, action: Any) -> Any:
            return cereal.rl.Step(state * 1.0, state + action, 1, False, False, {"level": 2})

    def forward(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        return jnp.int32(1), policy_state

    loader = loader_of(cereal.rl.RolloutSource(Endless(), forward, None, num_envs=num_envs), 4)
    batch, _, _ = loader.next_batch(loader.init_state(0))
    shape = (4,) if num_envs == 1 else (4, num_envs)
    assert not batch["done"].any()
    assert not batch["info"]["truncated"].any()
    for leaf in (batch["reward"], batch["done"], batch["info"]["level"], batch["next_state"]):
        assert leaf.shape == shape


def test_the_kit_holds() -> None:
    policy_state = {"stride": jnp.int32(1)}
    loader = cereal.DataLoader([walk(num_envs=2, steps_per_epoch=6), cereal.BatchTransform(3)])
    check_source(walk(), policy_state=policy_state)
    check_loader(loader, policy_state=policy_state)
    check_resume(loader, policy_state=policy_state)


def test_the_drawing_names_the_environment() -> None:
    assert "GymnaxSource(CartPole-v1, num_envs=4)" in repr(loader_of(cartpole(num_envs=4), 8))
