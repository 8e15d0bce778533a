"""A pole balanced by a policy that was trained without any environment: from a file.

    python examples/cartpole_offline.py           # or --data cartpole_dqn.npz

The file has all steps that `cartpole_dqn.py` made while it learned, good and bad. (If it is not
there, that example is run first, with one seed.) `EpisodeSource` makes them 3-step transitions in a
computed order: nothing is collected, and any batch can be had again. Conservative Q-learning lowers
the values of actions that the file does not have, which no environment would correct. (Without it,
half of the seeds stay below 400.) After every 500 batches the greedy policy plays 64 episodes:
these means are the learning curve. The program prints the return of each seed's last network: five
take 40 seconds on two CPU cores.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import cartpole_dqn as dqn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from over_seeds import over_seeds, read_options

import cereal

BATCH, RATE, STEPS = 256, 1e-3, 500
CONSERVATIVE = 1.0  # how much values of other actions are lowered


def read_episodes(path: Path) -> list[dict[str, np.ndarray]]:
    """The episodes in the file, under the names that `EpisodeSource` (and Minari) has."""
    with np.load(path) as file:
        steps = dict(file)
    ends = np.flatnonzero(steps["terminated"] | steps["truncated"]) + 1
    parts = {name: np.split(values, ends[:-1]) for name, values in steps.items()}
    return [
        {
            "observations": np.concatenate([parts["state"][n], parts["next_state"][n][-1:]]),
            "actions": parts["action"][n],
            "rewards": parts["reward"][n],
            "terminations": parts["terminated"][n],
            "truncations": parts["truncated"][n],
        }
        for n in range(len(ends))
    ]


def make_loader(path: Path) -> cereal.DataLoader:
    source = cereal.rl.EpisodeSource(read_episodes(path), n_step=dqn.N_STEP, gamma=dqn.GAMMA)
    return cereal.DataLoader([source, cereal.BatchTransform(BATCH)])


def loss_of(params: Any, target: Any, batch: Any) -> jax.Array:
    values = dqn.q_values(params, batch["state"])
    chosen = dqn.value_of(params, batch["state"], batch["action"])
    others = jax.nn.logsumexp(values, axis=-1) - chosen
    return jnp.mean(optax.huber_loss(dqn.errors_of(params, target, batch)) + CONSERVATIVE * others)


def train(loader: cereal.DataLoader, key: jax.Array, rounds: int) -> tuple[Any, jax.Array]:
    """One seed: the parameters, and the mean return after each round."""
    optimizer = optax.adam(optax.linear_schedule(RATE, 0, rounds * STEPS))

    def update(carry: Any, batch: Any, mask: jax.Array) -> tuple[Any, None]:
        params, target, opt_state = carry
        changes, opt_state = optimizer.update(jax.grad(loss_of)(params, target, batch), opt_state)
        params = optax.apply_updates(params, changes)
        return (params, optax.incremental_update(params, target, dqn.TAU), opt_state), None

    def one_round(trained: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        state, carry = trained
        state, carry, _ = loader.scan_epoch(state, carry, update, steps=STEPS)
        return (state, carry), dqn.play(key, carry[1:])

    for_params, for_loader, for_games = jax.random.split(key, 3)
    params = dqn.init_params(for_params)
    trained = loader.init_state(for_loader), (params, params, optimizer.init(params))
    games = jax.random.split(for_games, rounds)
    (_, carry), curve = jax.lax.scan(one_round, trained, games)
    return carry[1:], curve


def main(seeds: int, updates: int, out: Path, data: Path) -> dict[str, np.ndarray]:
    if not data.exists():
        print(f"{data} is not there yet; cartpole_dqn.py makes it:")
        dqn.main(1, 40, data.with_suffix(".png"), data)
    learn = partial(train, make_loader(data))
    return over_seeds(learn, dqn.play, seeds, updates, STEPS, out, axis="batches of the file")


if __name__ == "__main__":
    main(**read_options(__doc__, updates=20, out="cartpole_offline.png", data="cartpole_dqn.npz"))
