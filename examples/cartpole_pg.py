"""A pole balanced by policy gradient: play, training and all seeds in one compiled program.

    python examples/cartpole_pg.py                # or --seeds 16

A segment is 500 steps of CartPole in 16 environments. After each, actions whose return was above
the mean over environments at that step become more likely: REINFORCE, without a critic.
`feedback` hands the new parameters to the environments, and `jax.vmap` trains all seeds at once.
All of 64 seeds end above 480 of 500; five take 20 seconds on two CPU cores.
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

ENVS, HIDDEN, RATE = 16, 32, 3e-2
STEPS = 500  # the limit of an episode: each environment ends one in every segment
env, env_params = gymnax.make("CartPole-v1")


def init_params(key: jax.Array) -> dict[str, jax.Array]:
    first, second = jax.random.split(key)
    return {
        "in": jax.random.normal(first, (4, HIDDEN)) * 4**-0.5,
        "bias": jnp.zeros(HIDDEN),
        "out": 0.01 * jax.random.normal(second, (HIDDEN, 2)),  # begins undecided
    }


def logits_of(params: Any, observation: jax.Array) -> jax.Array:
    return jnp.tanh(observation @ params["in"] + params["bias"]) @ params["out"]


def policy_step(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> tuple[Any, Any]:
    """What to do in one environment; the source asks for all of them at once."""
    return jax.random.categorical(key, logits_of(policy_state["params"], observation)), policy_state


def make_loader(envs: int, updates: int = 1) -> cereal.DataLoader:
    template = {"params": jax.eval_shape(init_params, jax.random.key(0))}
    source = cereal.GymnaxSource(
        env, env_params, policy_step, template, steps_per_epoch=STEPS * updates, num_envs=envs
    )
    segments = cereal.BatchTransform(STEPS)  # [STEPS, envs, ...]
    returns = cereal.rl.RewardToGoTransform(gamma=0.99)
    return cereal.DataLoader([source, segments, returns, cereal.rl.EpisodeStatisticsTransform()])


def loss_of(params: Any, batch: Any) -> jax.Array:
    scores = jax.nn.log_softmax(logits_of(params, batch["state"]))
    chosen = jnp.take_along_axis(scores, batch["action"][..., None], axis=-1)[..., 0]
    # Returns end with the segment, in all environments alike: so they are compared step by step.
    advantage = batch["return"] - batch["return"].mean(axis=1, keepdims=True)
    return -jnp.mean(chosen * advantage / (advantage.std() + 1e-6))


def train(key: jax.Array, updates: int) -> tuple[Any, jax.Array]:
    """One seed: the parameters, and the mean return of the episodes that ended in each segment."""
    loader = make_loader(ENVS, updates)
    optimizer = optax.adam(optax.linear_schedule(RATE, 0, updates))

    def update(carry: Any, batch: Any, mask: jax.Array) -> tuple[Any, jax.Array]:
        params, opt_state = carry
        changes, opt_state = optimizer.update(jax.grad(loss_of)(params, batch), opt_state)
        carry = optax.apply_updates(params, changes), opt_state
        return carry, cereal.rl.episode_summary(batch, mask)["mean_return"]

    def feedback(state: Any, carry: Any, output: Any) -> Any:
        return loader.set_policy_state(state, {"params": carry[0]})

    for_params, for_play = jax.random.split(key)
    params = init_params(for_params)
    state = loader.init_state(for_play, {"params": params})
    carry = params, optimizer.init(params)
    _, (params, _), curve = loader.scan_epoch(state, carry, update, feedback=feedback)
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
    main(**read_options(__doc__, updates=150, out="cartpole_pg.png"))
