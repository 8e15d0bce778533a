"""A whole loop of prioritized replay in CartPole, with a full buffer of 10^6; flashbax beside it.

    python benchmarks/replay_loop.py [--capacity 1000000] [--pairs 5] [--steps 500]

Each step acts 4 times in 64 environments, stores the 256 transitions, draws 256, computes errors of
a linear network, and sends them back as priorities.

    scan      `scan_epoch(..., feedback=...)`; flashbax: the same in a `lax.scan` by hand
    iterate   `iterate` and `feed_back`; flashbax: three compiled calls a step (act, add and sample;
              the errors; the priorities), with the state donated
"""

from __future__ import annotations

import argparse
import importlib
import warnings
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
from measure import compare, machine, report_ratio

import cereal

ENVS, COLLECT, BATCH = 64, 4, 256
ENV, ENV_PARAMS = gymnax.make("CartPole-v1")
PARAMS = 0.1 * jax.random.normal(jax.random.key(7), (4, 2))
KEYS = ("state", "action", "reward", "next_state", "done")


def act(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
    del new_episode
    return jax.random.categorical(key, observation @ policy_state), policy_state


def priorities(params: Any, batch: Any) -> Any:
    chosen = jnp.take_along_axis(batch["state"] @ params, batch["action"][:, None], 1)[:, 0]
    best = jnp.max(batch["next_state"] @ params, axis=1) * ~batch["done"]
    return jnp.abs(batch["reward"] + 0.99 * best - chosen) + 1e-3


def before(*shape: int) -> dict[str, Any]:
    """Transitions that fill a buffer."""
    zero = jnp.zeros(shape)
    states = jnp.zeros((*shape, 4))
    made = (states, zero.astype(jnp.int32), zero, states, zero.astype(bool))
    return dict(zip(KEYS, made, strict=True))


# ------------------------------------------------------------------------------------ cereal


def our_loader(capacity: int) -> Any:
    source = cereal.GymnaxSource(ENV, ENV_PARAMS, act, PARAMS, 10**9, ENVS)
    only = cereal.MapTransform(lambda step: {name: step[name] for name in KEYS})
    replay = cereal.ReplayTransform(capacity, BATCH, collect=COLLECT, sample="prioritized")
    return cereal.DataLoader([source, only, replay])


def update(params: Any, batch: Any, mask: Any) -> Any:
    del mask
    loss = jnp.mean(batch["weight"])
    return params, {"index": batch["index"], "new": priorities(params, batch), "loss": loss}


def feedback(state: Any, params: Any, output: Any) -> Any:
    del params
    return cereal.rl.set_priorities(state, output["index"], output["new"])


class Ours:
    def __init__(self, capacity: int, steps: int) -> None:
        self.loader, self.steps = our_loader(capacity), steps
        start = self.loader.init_state(jax.random.key(0), policy_state=jnp.array(PARAMS))
        self.state = cereal.rl.fill_replay(start, before(capacity // ENVS, ENVS))
        self.update = jax.jit(update)
        self.epoch = jax.jit(
            lambda state: self.loader.scan_epoch(
                state, PARAMS, update, feedback=feedback, steps=steps
            ),
            donate_argnums=0,
        )
        self.batches: Any = None

    def scan(self) -> Any:
        self.state, _, output = self.epoch(self.state)
        return output["loss"]

    def iterate(self) -> Any:
        if self.batches is None:
            self.batches = self.loader.iterate(self.state, steps=10**9)
        output = None
        for _ in range(self.steps):
            batch, mask = next(self.batches)
            _, output = self.update(PARAMS, batch, mask)
            self.batches.feed_back(cereal.rl.set_priorities, output["index"], output["new"])
        return output


# ---------------------------------------------------------------------------------- flashbax


def one_step(carry: Any, _: None) -> tuple[Any, Any]:
    key, observation, state = carry
    key, chance, move = jax.random.split(key, 3)
    action = jax.random.categorical(chance, observation @ PARAMS)
    keys = jax.random.split(move, ENVS)
    after, state, reward, terminated, truncated, info = jax.vmap(ENV.step, in_axes=(0, 0, 0, None))(
        keys, state, action, ENV_PARAMS
    )
    made = (observation, action, reward, info["final_observation"], terminated | truncated)
    return (key, after, state), dict(zip(KEYS, made, strict=True))


class Theirs:
    def __init__(self, capacity: int, steps: int) -> None:
        fbx = importlib.import_module("flashbax")
        self.steps = steps
        self.buffer = fbx.make_prioritised_item_buffer(
            capacity,
            BATCH,
            BATCH,
            add_sequences=True,
            add_batches=True,
            device=jax.default_backend(),
        )
        keys = jax.random.split(jax.random.key(0), ENVS)
        begin = (jax.random.key(1), *jax.vmap(ENV.reset, in_axes=(0, None))(keys, ENV_PARAMS))
        one = jax.tree.map(lambda x: x[0], one_step(begin, None)[1])
        add, stored = jax.jit(self.buffer.add), self.buffer.init(one)
        for _ in range(100):
            stored = add(stored, before(ENVS, capacity // ENVS // 100 + 1))
        self.state = jax.tree.map(jnp.array, (begin, stored))
        self.epoch = jax.jit(self._epoch, donate_argnums=0)
        self.drawn = jax.jit(self._drawn, donate_argnums=0)
        self.update = jax.jit(update)
        self.set = jax.jit(self.buffer.set_priorities, donate_argnums=0)

    def _drawn(self, carry: Any) -> Any:
        (key, *rest), stored = carry
        key, chance = jax.random.split(key)
        rollout, steps = jax.lax.scan(one_step, (key, *rest), length=COLLECT)
        stored = self.buffer.add(stored, steps)
        sample = self.buffer.sample(stored, chance)
        weight = (1 / sample.probabilities) ** 0.4
        own = {"index": sample.indices, "weight": weight / weight.max()}
        return (rollout, stored), {**sample.experience, **own}

    def _epoch(self, carry: Any) -> Any:
        def body(carry: Any, _: None) -> tuple[Any, Any]:
            (rollout, stored), batch = self._drawn(carry)
            _, output = update(PARAMS, batch, None)
            stored = self.buffer.set_priorities(stored, output["index"], output["new"])
            return (rollout, stored), output["loss"]

        return jax.lax.scan(body, carry, length=self.steps)

    def scan(self) -> Any:
        self.state, losses = self.epoch(self.state)
        return losses

    def iterate(self) -> Any:
        output = None
        for _ in range(self.steps):
            (rollout, stored), batch = self.drawn(self.state)
            _, output = self.update(PARAMS, batch, None)
            self.state = (rollout, self.set(stored, output["index"], output["new"]))
        return output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{machine()}: {args.capacity:,} items, {ENVS} x {COLLECT} steps, batches of {BATCH}")
    ours, theirs = Ours(args.capacity, args.steps), Theirs(args.capacity, args.steps)
    for way in ("scan", "iterate"):
        result = compare(getattr(ours, way), getattr(theirs, way), args.pairs)
        result |= {name: result[name] / args.steps for name in ("ours", "theirs")}
        report_ratio(
            f"a step in `{way}`: flashbax / cereal", result, "above 1x", result["ratio"] > 1
        )


if __name__ == "__main__":
    main()
