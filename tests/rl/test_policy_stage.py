"""Advantages by the critic of the policy that is acting: stages that see the policy state."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.rl.loops import loop_gae, per_column
from tests.rl.played import played, written_steps

import cereal
from cereal import PipelineError, UsageError
from cereal.rl import GymnaxSource, RolloutSource, Step
from cereal.rl.return_stages import GAETransform

close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
BATCH = cereal.BatchTransform(4)


def policy_step(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
    del new_episode
    return jax.random.categorical(key, observation @ policy_state["actor"]), policy_state


def critic(observation: Any, policy_state: Any) -> Any:
    return observation @ policy_state["critic"]


def random_policy(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    actor = jnp.asarray(rng.normal(size=(4, 2)), jnp.float32)
    return {"actor": actor, "critic": jnp.asarray(rng.normal(size=4), jnp.float32)}


def cartpole(num_envs: int = 3) -> GymnaxSource:
    env, env_params = gymnax.make("CartPole-v1")
    return GymnaxSource(env, env_params, policy_step, random_policy(0), 64, num_envs)


@pytest.fixture(scope="module")
def acting() -> cereal.DataLoader[Any]:
    """CartPole with advantages by its own critic."""
    stage = GAETransform(0.9, 0.8, value_fn=critic)
    return cereal.DataLoader([cartpole(), cereal.BatchTransform(16), stage])


def check_advantages(batch: Any, policy: Any) -> None:
    batch, policy = jax.device_get((batch, policy))
    value, after = batch["state"] @ policy["critic"], batch["next_state"] @ policy["critic"]
    terminated = batch["info"].get("terminated", batch["done"])
    expected = per_column(
        lambda r, d, v, w, e: loop_gae((r, d, v, w), 0.9, 0.8, e),
        *(batch["reward"], batch["done"], value, after, terminated),
    )
    np.testing.assert_allclose(batch["advantage"], expected[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(batch["return"], expected[1], rtol=1e-3, atol=1e-4)


def test_advantages_come_from_the_critic_that_acts_now(acting: cereal.DataLoader[Any]) -> None:
    state, ended = acting.init_state(0), 0
    for seed in range(4):
        policy = random_policy(seed)
        batch, state, _ = acting.next_batch(acting.set_policy_state(state, policy))
        check_advantages(batch, policy)
        ended += int(batch["done"].sum())
    assert ended > 0


def test_in_a_scan_advantages_follow_the_feedback(acting: cereal.DataLoader[Any]) -> None:
    policies = [random_policy(seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *policies)

    def body(step: Any, batch: Any, mask: Any) -> Any:
        del mask
        return step + 1, batch

    def feedback(state: Any, step: Any, output: Any) -> Any:
        del output
        return acting.set_policy_state(state, jax.tree.map(lambda x: x[step % 3], stacked))

    state = acting.set_policy_state(acting.init_state(1), policies[0])
    _, _, batches = acting.scan_epoch(state, jnp.int32(0), body, steps=3, feedback=feedback)
    for k, policy in enumerate(policies):
        check_advantages(jax.tree.map(lambda x, k=k: x[k], batches), policy)


def test_many_seeds_have_critics_of_their_own(acting: cereal.DataLoader[Any]) -> None:
    policies = [random_policy(seed) for seed in range(2)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *policies)

    @jax.jit
    @jax.vmap
    def first(key: Any, policy: Any) -> Any:
        state = acting.set_policy_state(acting.init_state(key), policy)
        return acting.next_batch(state)[0]

    batches = first(jax.random.split(jax.random.key(0), 2), stacked)
    for k, policy in enumerate(policies):
        check_advantages(jax.tree.map(lambda x, k=k: x[k], batches), policy)


@cereal.pytree_dataclass
class Standstill:
    """An environment in which nothing happens."""

    def reset(self, key: Any) -> Any:
        del key
        return jnp.float32(0), jnp.float32(0)

    def step(self, key: Any, state: Any, action: Any) -> Step:
        del key, action
        return Step(state, state, jnp.float32(0), jnp.bool_(False))

    def action_spec(self) -> Any:
        return None


def test_the_critic_sees_what_was_remembered_before_the_segment() -> None:
    def count(observation: Any, memory: Any, new_episode: Any, key: Any) -> Any:
        del observation, new_episode, key
        return jnp.int32(0), memory + 1

    def remembered(observation: Any, memory: Any) -> Any:
        return jnp.full_like(observation, memory)

    source = RolloutSource(Standstill(), count, jnp.int32(0), 100)
    loader = cereal.DataLoader(
        [source, BATCH, GAETransform(value_fn=remembered), cereal.BatchTransform(2)]
    )
    state = loader.set_policy_state(loader.init_state(0), jnp.int32(0))
    for k in range(2):
        batch, state, _ = loader.next_batch(state)
        value = batch["return"] - batch["advantage"]
        close(value, np.full((2, 4), [[8.0 * k], [8.0 * k + 4]]))


def test_a_resumed_rollout_has_the_same_advantages(acting: cereal.DataLoader[Any]) -> None:
    state = acting.set_policy_state(acting.init_state(0), random_policy(0))
    _, state, _ = acting.next_batch(state)
    leaves, structure = jax.tree.flatten(state)
    saved = [np.asarray(leaf) for leaf in leaves]
    expected = acting.next_batch(state)[0]["advantage"]
    again = jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in saved])
    np.testing.assert_array_equal(acting.next_batch(again)[0]["advantage"], expected)


# Bad input


def test_a_critic_needs_a_policy() -> None:
    steps = written_steps(0, 12)
    stored = cereal.ArraySampleSource(steps, ordering="sequential")
    for source, said in ((played(steps), "carries no policy"), (stored, "which carries none")):
        expected = f"GAETransform.* needs the state of a policy.*{said}.*leave `value_fn` out"
        with pytest.raises(PipelineError, match=expected):
            cereal.DataLoader([source, BATCH, GAETransform(value_fn=critic)])


def test_a_critic_stands_after_the_batch_of_a_source() -> None:
    with pytest.raises(PipelineError, match=r"put it after the `BatchTransform\(T\)`"):
        cereal.DataLoader([cartpole(), GAETransform(value_fn=critic)])
    with pytest.raises(PipelineError, match="must be called with a source, got list"):
        GAETransform(value_fn=critic)([])  # type: ignore[arg-type]


def test_a_policy_that_was_not_set_is_asked_for(acting: cereal.DataLoader[Any]) -> None:
    with pytest.raises(UsageError, match="no policy state was set"):
        acting.next_batch(acting.init_state(0))


@pytest.mark.parametrize(
    ("value_fn", "said"),
    [
        (
            lambda obs, policy: obs @ policy["critic"][:, None],
            r"shape \(4, 3\).*write `\[..., 0\]`",
        ),
        (lambda obs, policy: 0.0, r"shape \(4, 3\), returned float"),
        (lambda obs, policy: None, r"shape \(4, 3\), returned NoneType"),
        (lambda obs, policy: obs @ policy["nothing"], "failed on .*KeyError"),
        (lambda obs: obs[..., 0], "failed on .*TypeError"),
        ("critic", "`value_fn` must be callable, got str"),
    ],
    ids=["axis", "number", "none", "key", "one", "no function"],
)
def test_a_critic_that_does_not_fit_is_refused(value_fn: Any, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        cereal.DataLoader([cartpole(), BATCH, GAETransform(value_fn=value_fn)])
