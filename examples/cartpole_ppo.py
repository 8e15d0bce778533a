"""A pole balanced by PPO, from the first step to the last in one `scan_epoch`.

    python examples/cartpole_ppo.py               # or --seeds 16

Two pipelines, one in the other. The outer one plays: segments of CartPole with advantages by the
current critic (GAE). To the inner one the steps of a segment are a dataset: shuffled, in batches,
four epochs. `feedback` hands the new parameters to the environments, and `jax.vmap` trains all
seeds at once. All of 64 seeds end at 500, the most there is; five take 20 seconds on two CPU cores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from over_seeds import over_seeds, read_options

import cereal

ENVS, HIDDEN, RATE = 4, 64, 3e-3
EPOCHS, BATCH, CLIP = 4, 250, 0.2
STEPS = 500  # the limit of an episode: each environment ends one in every segment
env, env_params = gymnax.make("CartPole-v1")


def init_params(key: jax.Array) -> dict[str, Any]:
    def layers(key: jax.Array, outputs: int) -> dict[str, jax.Array]:
        first, second = jax.random.split(key)
        return {
            "in": jax.random.normal(first, (4, HIDDEN)),
            "bias": jnp.zeros(HIDDEN),
            "out": 0.01 * jax.random.normal(second, (HIDDEN, outputs)),
        }

    actor, critic = jax.random.split(key)
    return {"actor": layers(actor, 2), "critic": layers(critic, 1)}


def network(params: Any, observation: jax.Array) -> jax.Array:
    return jnp.tanh(observation @ params["in"] + params["bias"]) @ params["out"]


def log_probability(params: Any, observation: jax.Array, action: jax.Array) -> jax.Array:
    scores = jax.nn.log_softmax(network(params["actor"], observation))
    return jnp.take_along_axis(scores, action[..., None], axis=-1)[..., 0]


def value(observation: jax.Array, policy_state: Any) -> jax.Array:
    # Returns are of the order of 1 / (1 - gamma), the outputs of a network of 1.
    return 50 * network(policy_state["params"]["critic"], observation)[..., 0]


def policy_step(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
    """What to do in one environment; the third value comes with the batch, as `extras`."""
    action = jax.random.categorical(key, network(policy_state["params"]["actor"], observation))
    return action, policy_state, log_probability(policy_state["params"], observation, action)


def make_loader(envs: int, updates: int = 1) -> cereal.DataLoader:
    template = {"params": jax.eval_shape(init_params, jax.random.key(0))}
    source = cereal.GymnaxSource(env, env_params, policy_step, template, STEPS * updates, envs)
    segments = cereal.BatchTransform(STEPS)  # [STEPS, envs, ...]
    # Bootstraps where the limit ended an episode, which is not the policy's fault.
    advantages = cereal.rl.GAETransform(gamma=0.99, lam=0.95, value_fn=value)
    return cereal.DataLoader([source, segments, advantages, cereal.rl.EpisodeStatisticsTransform()])


def loss_of(params: Any, batch: Any) -> jax.Array:
    advantage = batch["advantage"] - batch["advantage"].mean()
    advantage /= advantage.std() + 1e-6
    ratio = jnp.exp(log_probability(params, batch["state"], batch["action"]) - batch["extras"])
    clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
    error = value(batch["state"], {"params": params}) - batch["return"]
    return jnp.mean(error**2) - jnp.mean(jnp.minimum(ratio * advantage, clipped * advantage))


def train(key: jax.Array, updates: int) -> tuple[Any, jax.Array]:
    """One seed: the parameters, and the mean return of the episodes that ended in each segment."""
    loader = make_loader(ENVS, updates)
    steps = EPOCHS * ENVS * STEPS // BATCH
    optimizer = optax.adam(optax.linear_schedule(RATE, 0, updates * steps))

    def learn(carry: Any, batch: Any, mask: jax.Array) -> tuple[Any, None]:
        params, opt_state = carry
        changes, opt_state = optimizer.update(jax.grad(loss_of)(params, batch), opt_state)
        return (optax.apply_updates(params, changes), opt_state), None

    def update(carry: Any, batch: Any, mask: jax.Array) -> tuple[Any, jax.Array]:
        trained, key = carry
        key, shuffle = jax.random.split(key)
        flat = jax.tree.map(lambda x: x.reshape(STEPS * ENVS, *x.shape[2:]), batch)
        source = cereal.ArraySampleSource(flat, ordering="shuffle")
        inner = cereal.DataLoader([source, cereal.BatchTransform(BATCH)])
        _, trained, _ = inner.scan_epoch(inner.init_state(shuffle), trained, learn, steps=steps)
        return (trained, key), cereal.rl.episode_summary(batch, mask)["mean_return"]

    def feedback(state: Any, carry: Any, output: Any) -> Any:
        return loader.set_policy_state(state, {"params": carry[0][0]})

    for_params, for_play, for_shuffles = jax.random.split(key, 3)
    params = init_params(for_params)
    state = loader.init_state(for_play, {"params": params})
    carry = (params, optimizer.init(params)), for_shuffles
    _, ((params, _), _), curve = loader.scan_epoch(state, carry, update, feedback=feedback)
    return params, curve


def play(key: jax.Array, params: Any) -> jax.Array:
    """The mean return of 64 new episodes, the first of each environment; actions are sampled."""
    loader = make_loader(64)
    state = loader.init_state(key, {"params": params})
    batch, _, _ = loader.next_batch(state)
    return (batch["reward"] * cereal.rl.first_episodes(batch["done"])).sum(axis=0).mean()


def main(seeds: int, updates: int, out: Path) -> dict[str, np.ndarray]:
    return over_seeds(train, play, seeds, updates, STEPS * ENVS, out)


if __name__ == "__main__":
    main(**read_options(__doc__, updates=50, out="cartpole_ppo.png"))
