"""A pole balanced by a policy that remembers: CartPole without velocities, and a GRU.

    python examples/cartpole_pg_rnn.py            # or --seeds 16

The policy sees position and angle alone, and must tell from what it saw before how fast they
change. What it remembers lies in the policy state, apart for each environment; training runs the
GRU once more over a segment, from what it remembered at the first step. The rest is
`cartpole_pg.py`. All of 64 seeds end above 450 of 500; five take 30 seconds on two CPU cores.
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

ENVS, HIDDEN, RATE = 24, 32, 1e-2
STEPS = 500  # the limit of an episode: each environment ends one in every segment
env, env_params = gymnax.make("CartPole-v1")


def init_params(key: jax.Array) -> dict[str, jax.Array]:
    gates, new, out = jax.random.split(key, 3)
    return {
        "gates": jax.random.normal(gates, (2 + HIDDEN, 2 * HIDDEN)) * HIDDEN**-0.5,
        "new": jax.random.normal(new, (2 + HIDDEN, HIDDEN)) * HIDDEN**-0.5,
        "out": 0.01 * jax.random.normal(out, (HIDDEN, 2)),  # begins undecided
    }


def network(params: Any, hidden: jax.Array, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One step of the GRU: what it remembers now, and the logits of the actions."""
    # Position and angle, without velocities; scaled, as they change by little from step to step.
    seen = observation[..., ::2] * jnp.array([3.0, 20.0])
    both = jnp.concatenate([seen, hidden], axis=-1)
    # Less one: an untrained GRU looks back a few steps, which is what velocities take.
    update, reset = jnp.split(jax.nn.sigmoid(both @ params["gates"] - 1), 2, axis=-1)
    new = jnp.tanh(jnp.concatenate([seen, reset * hidden], axis=-1) @ params["new"])
    hidden = update * hidden + (1 - update) * new
    return hidden, hidden @ params["out"]


def policy_step(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
    """What to do in one environment; the third value comes with the batch, as `extras`."""
    before = jnp.where(new_episode, 0, policy_state["hidden"])
    hidden, logits = network(policy_state["params"], before, observation)
    return jax.random.categorical(key, logits), {**policy_state, "hidden": hidden}, before


def start(params: Any, envs: int) -> dict[str, Any]:
    return {"params": params, "hidden": jnp.zeros((envs, HIDDEN))}


def make_loader(envs: int, updates: int = 1) -> cereal.DataLoader:
    template = start(jax.eval_shape(init_params, jax.random.key(0)), envs)
    axes = {"params": None, "hidden": 0}  # parameters are shared, memories are not
    source = cereal.GymnaxSource(
        env, env_params, policy_step, template, STEPS * updates, envs, policy_state_axes=axes
    )
    segments = cereal.BatchTransform(STEPS)  # [STEPS, envs, ...]
    returns = cereal.rl.RewardToGoTransform(gamma=0.99)
    return cereal.DataLoader([source, segments, returns, cereal.rl.EpisodeStatisticsTransform()])


def loss_of(params: Any, batch: Any) -> jax.Array:
    def step(hidden: jax.Array, now: Any) -> tuple[jax.Array, jax.Array]:
        hidden, logits = network(params, hidden, now["state"])
        return jnp.where(now["done"][:, None], 0, hidden), logits

    _, logits = jax.lax.scan(step, batch["extras"][0], batch)
    scores = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(scores, batch["action"][..., None], axis=-1)[..., 0]
    # Returns end with the segment, in all environments alike: so they are compared step by step.
    advantage = batch["return"] - batch["return"].mean(axis=1, keepdims=True)
    return -jnp.mean(chosen * advantage / (advantage.std() + 1e-6))


def train(key: jax.Array, updates: int) -> tuple[Any, jax.Array]:
    """One seed: the parameters, and the mean return of the episodes that ended in each segment."""
    loader = make_loader(ENVS, updates)
    rate = optax.linear_schedule(RATE, 0, updates)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))

    def update(carry: Any, batch: Any, mask: jax.Array) -> tuple[Any, jax.Array]:
        params, opt_state = carry
        changes, opt_state = optimizer.update(jax.grad(loss_of)(params, batch), opt_state)
        carry = optax.apply_updates(params, changes), opt_state
        return carry, cereal.rl.episode_summary(batch, mask)["mean_return"]

    def feedback(state: Any, carry: Any, output: Any) -> Any:
        # New parameters; what each environment's policy remembers stays.
        return loader.set_policy_state(
            state, {**loader.get_policy_state(state), "params": carry[0]}
        )

    for_params, for_play = jax.random.split(key)
    params = init_params(for_params)
    state = loader.init_state(for_play, start(params, ENVS))
    carry = params, optimizer.init(params)
    _, (params, _), curve = loader.scan_epoch(state, carry, update, feedback=feedback)
    return params, curve


def play(key: jax.Array, params: Any) -> jax.Array:
    """The mean return of 64 new episodes, the first of each environment; actions are sampled."""
    loader = make_loader(64)
    state = loader.init_state(key, start(params, 64))
    batch, _, _ = loader.next_batch(state)
    return (batch["reward"] * cereal.rl.first_episodes(batch["done"])).sum(axis=0).mean()


def main(seeds: int, updates: int, out: Path) -> dict[str, np.ndarray]:
    return over_seeds(train, play, seeds, updates, STEPS * ENVS, out)


if __name__ == "__main__":
    main(**read_options(__doc__, updates=120, out="cartpole_pg_rnn.png"))
