"""Rollouts: CartPole with a linear policy, against a `lax.scan` written by hand.

    python benchmarks/rollouts.py

Segments of 128 steps, in 1 and in 1,024 environments. The hand-written rollout is what one would
write: one key that is split at every step, all actions sampled at once, the environments' own
reset, and the true last observation of an episode. Both sides give the same six parts of a
transition. `--cyreal` needs cyreal 0.2.1 and gymnax 0.0.9, the last one that it can unpack.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
from measure import compare, inverse, machine, peer_path, report_ratio

import cereal

STEPS, SEGMENTS = 128, 16
ENV, ENV_PARAMS = gymnax.make("CartPole-v1")
PARAMS = 0.1 * jax.random.normal(jax.random.key(7), (4, 2))
ZERO = jnp.float32(0)


def policy_step(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
    del new_episode
    return jax.random.categorical(key, observation @ policy_state["params"]), policy_state


def our_loader(num_envs: int, segments: int = SEGMENTS) -> tuple[Any, Any]:
    policy_state = {"params": PARAMS}
    source = cereal.GymnaxSource(
        ENV, ENV_PARAMS, policy_step, policy_state, STEPS * segments, num_envs
    )
    loader = cereal.DataLoader([source, cereal.BatchTransform(STEPS)])
    return loader, loader.set_policy_state(loader.init_state(0), policy_state)


def consume(total: Any, batch: Any, mask: Any) -> tuple[Any, None]:
    del mask
    return total + sum(leaf.astype(jnp.float32).sum() for leaf in jax.tree.leaves(batch)), None


def reset_by_hand(num_envs: int) -> Any:
    keys = jax.random.split(jax.random.key(0), num_envs)
    if num_envs == 1:
        return jax.random.key(1), *ENV.reset(keys[0], ENV_PARAMS)
    return jax.random.key(1), *jax.vmap(ENV.reset, in_axes=(0, None))(keys, ENV_PARAMS)


def unpacked(stepped: Any) -> tuple[Any, ...]:
    """Six values of gymnax 1.0, or five of 0.0.9, which hides the last observation."""
    if len(stepped) == 6:
        observation, state, reward, terminated, truncated, info = stepped
        last = info["final_observation"]
        info = {name: value for name, value in info.items() if name != "final_observation"}
        return observation, state, reward, terminated | truncated, last, info
    observation, state, reward, done, info = stepped
    return observation, state, reward, done, observation, info


def one_step(params: Any, num_envs: int, carry: Any, _: None) -> tuple[Any, Any]:
    key, observation, state = carry
    key, act, move = jax.random.split(key, 3)
    action = jax.random.categorical(act, observation @ params)
    if num_envs == 1:
        stepped = ENV.step(move, state, action, ENV_PARAMS)
    else:
        keys = jax.random.split(move, num_envs)
        stepped = jax.vmap(ENV.step, in_axes=(0, 0, 0, None))(keys, state, action, ENV_PARAMS)
    after, state, reward, done, last, info = unpacked(stepped)
    transition = {
        "state": observation,
        "action": action,
        "reward": reward,
        "next_state": last,
        "done": done,
        "info": info,
    }
    return (key, after, state), transition


@partial(jax.jit, static_argnames="num_envs")
def segment_by_hand(params: Any, carry: Any, num_envs: int) -> tuple[Any, Any]:
    return jax.lax.scan(partial(one_step, params, num_envs), carry, length=STEPS)


@partial(jax.jit, static_argnames="num_envs")
def epoch_by_hand(params: Any, carry: Any, num_envs: int) -> Any:
    def body(loop: Any, _: None) -> tuple[Any, None]:
        carry, batch = jax.lax.scan(partial(one_step, params, num_envs), loop[0], length=STEPS)
        return (carry, consume(loop[1], batch, None)[0]), None

    return jax.lax.scan(body, (carry, ZERO), length=SEGMENTS)[0]


def hand_written(pairs: int) -> None:
    for num_envs in (1, 1024):
        loader, state = our_loader(num_envs)
        carry, repeat = reset_by_hand(num_envs), 10 if num_envs == 1 else 1

        def ours(loader: Any = loader, state: Any = state) -> Any:
            return loader.scan_epoch(state, ZERO, consume)

        def theirs(carry: Any = carry, num_envs: int = num_envs) -> Any:
            return epoch_by_hand(PARAMS, carry, num_envs)

        result = inverse(compare(ours, theirs, pairs, repeat))
        name = f"{num_envs:,} environments: scan_epoch / lax.scan by hand, {SEGMENTS} x {STEPS}"
        report_ratio(name, result, "at most 1.15x", result["ratio"] <= 1.15)
        result = inverse(
            compare(
                lambda loader=loader, state=state: loader.next_batch(state),
                lambda carry=carry, n=num_envs: segment_by_hand(PARAMS, carry, n),
                pairs,
                3 * repeat,
            )
        )
        name = f"{num_envs:,} environments: next_batch / jitted lax.scan by hand, {STEPS} steps"
        report_ratio(name, result, "at most 1.15x", result["ratio"] <= 1.15)


def against_cyreal(pairs: int) -> None:
    """cyreal has one environment in a source; for many, its documents map over states."""
    peer_path()
    from cyreal.loader import DataLoader
    from cyreal.rl import set_loader_policy_state
    from cyreal.sources import GymnaxSource
    from cyreal.transforms import BatchTransform

    source = GymnaxSource(
        env=ENV,
        env_params=ENV_PARAMS,
        policy_step_fn=policy_step,
        policy_state_template={"params": PARAMS},
        steps_per_epoch=STEPS,
    )
    peer = DataLoader([source, BatchTransform(batch_size=STEPS, drop_last=True)])

    def begun(key: Any) -> Any:
        return set_loader_policy_state(peer.init_state(key), {"params": PARAMS})

    epoch = partial(peer.scan_epoch, body_fn=consume)
    for num_envs in (1, 1024):
        if num_envs == 1:
            peer_state, theirs = begun(jax.random.PRNGKey(0)), jax.jit(epoch)
        else:
            peer_state = jax.vmap(begun)(jax.random.split(jax.random.PRNGKey(0), num_envs))
            theirs = jax.jit(jax.vmap(epoch, in_axes=(0, None)))
        loader, state = our_loader(num_envs, segments=1)
        result = compare(
            lambda loader=loader, state=state: loader.scan_epoch(state, ZERO, consume),
            lambda theirs=theirs, state=peer_state: theirs(state, ZERO),
            pairs,
            10 if num_envs == 1 else 1,
        )
        name = f"{num_envs:,} environments: cyreal 0.2.1's scan_epoch / ours, {STEPS} steps"
        report_ratio(name, result, "reported", True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--cyreal", action="store_true", help="where cyreal and gymnax 0.0.9 are")
    options = parser.parse_args()
    print(machine())
    hand_written(options.pairs)
    if options.cyreal:
        against_cyreal(options.pairs)
