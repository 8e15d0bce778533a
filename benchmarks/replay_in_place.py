"""Replay in place: a step does not take longer with more items, and needs no second buffer.

    python benchmarks/replay_in_place.py [--items 10000000] [--pairs 9]
    python benchmarks/replay_in_place.py --host          images of 7 KB, in host memory

Each step collects 64 transitions of 41 bytes, draws 256 and sets their priorities: by `iterate` and
`feed_back`, and in `scan_epoch` under a `jit` to which the state is donated. 10^7 items are
compared with 10^6, which no cache holds either, and with 10^4, which lie in the cache of a CPU:
that a step reads memory instead is all that it may take longer. Beside it, what a copy of the large
buffer takes, which every call of `next_batch` outside of `jit` has to make.

With `--host`, the steps are those of 4 environments that show 84 x 84 bytes, and the same buffer is
compared in host memory (`storage="host"`) and on the device, and with one a tenth as large. It is
for GPUs: on a CPU, both are the same memory.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
from measure import compare, inverse, machine, report, report_ratio

import cereal
from cereal.pipeline.execute import run_in_place

STEPS = 200


def transition(number: Any) -> dict[str, Any]:
    one = number.astype(jnp.float32)
    state = jnp.stack([one, -one, one / 2, one / 3], axis=-1)
    done = number % 50 == 0
    return {"state": state, "action": number, "reward": one, "next_state": state + 1, "done": done}


def priority_of(batch: Any) -> Any:
    return jnp.abs(batch["reward"]) % 7 + 0.1


def body(carry: Any, batch: Any, mask: Any) -> Any:
    return carry + batch["weight"].sum(), (batch["index"], priority_of(batch))


def feedback(state: Any, carry: Any, output: Any) -> Any:
    return cereal.rl.set_priorities(state, *output)


class Buffer:
    """A loader with a buffer of so many items, and the two ways to run it in place."""

    def __init__(self, items: int) -> None:
        stages = [cereal.RangeSource(1 << 30), cereal.BatchTransform(64)]
        replay = cereal.ReplayTransform(items, 256, sample="prioritized")
        self.loader = cereal.DataLoader([*stages, cereal.MapTransform(transition), replay])
        start = self.loader.init_state(jax.random.key(0))
        memory: Any = run_in_place.lower(self.loader.source, start).compile().memory_analysis()
        self.beside = memory.temp_size_in_bytes
        self.batches = self.loader.iterate(start, steps=None, epochs=None)
        self.state = start
        self._scan = jax.jit(self._steps, donate_argnums=0)

    def _steps(self, state: Any) -> Any:
        made = self.loader.scan_epoch(state, 0.0, body, steps=STEPS, feedback=feedback)
        return made[:2]

    def iterate(self) -> Any:
        for _ in range(STEPS):
            batch, _ = next(self.batches)
            self.batches.feed_back(cereal.rl.set_priorities, batch["index"], batch["weight"])
        return batch

    def scan(self) -> Any:
        self.state, total = self._scan(self.state)
        return total

    def copy(self) -> Any:
        return jax.tree.map(jnp.copy, self.state)


@cereal.pytree_dataclass
class Images:
    """An environment of images, which costs nothing."""

    def reset(self, key: Any) -> Any:
        return jnp.zeros((84, 84), jnp.uint8), jnp.int32(0)

    def step(self, key: Any, state: Any, action: Any) -> Any:
        seen = jnp.full((84, 84), state.astype(jnp.uint8))
        return cereal.rl.Step(seen, state + 1, reward=state % 7 * 1.0, done=state % 50 == 49)

    def action_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), jnp.int32)


def images(items: int, storage: Any) -> Any:
    """So many steps of a buffer of images, each of which draws 256 and sets their priorities."""

    def act(seen: Any, policy: Any, new: Any, key: Any) -> Any:
        return jnp.int32(0), policy

    rollouts = cereal.rl.RolloutSource(Images(), act, policy_state_template=None, num_envs=4)
    only = cereal.MapTransform(lambda step: {name: step[name] for name in ("state", "reward")})
    replay = cereal.ReplayTransform(items, 256, prefill=256, sample="prioritized", storage=storage)
    loader = cereal.DataLoader([rollouts, only, replay])

    def steps(state: Any) -> Any:
        return loader.scan_epoch(state, 0.0, body, steps=STEPS, feedback=feedback)[:2]

    scan, kept = jax.jit(steps, donate_argnums=0), [loader.init_state(jax.random.key(0))]

    def run() -> Any:
        kept[0], total = scan(kept[0])
        return total

    return run


def in_host_memory(items: int, pairs: int) -> None:
    ours = images(items, "host")
    result = inverse(compare(ours, images(items // 10, "host"), pairs))
    goal = "a step is a step: below 1.5x"
    report_ratio(f"in host memory, {items:,} / a tenth", result, goal, result["ratio"] < 1.5)
    result = inverse(compare(ours, images(items, "device"), pairs))
    each = [1e6 * result[name] / STEPS for name in ("ours", "theirs")]
    report_ratio("in host memory / on the device", result, "below 10x", result["ratio"] < 10)
    print(f"      a step takes {each[0]:.0f} / {each[1]:.0f} microseconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=10_000_000)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--host", action="store_true")
    options = parser.parse_args()
    if options.host:
        print(machine())
        in_host_memory(min(options.items, 200_000), options.pairs)
        return
    print(f"{machine()}: {options.items:,} items")
    large = Buffer(options.items)
    for items, most, why in (
        (options.items // 10, 1.5, "a step is a step"),
        (10_000, 2, "memory that no cache holds"),
    ):
        small = Buffer(items)
        for name in ("scan", "iterate"):
            result = inverse(compare(getattr(large, name), getattr(small, name), options.pairs))
            what = f"{STEPS} steps by {name}, {options.items:,} / {items:,} items"
            report_ratio(what, result, f"{why}: below {most}x", result["ratio"] < most)
    result = compare(large.scan, large.copy, options.pairs)
    share = 1e3 * result["ours"] / STEPS
    report(
        "a copy of the large buffer / a step that changes it in place",
        f"{1e3 * result['theirs'] / share:.0f}x; {1e3 * result['theirs']:.1f} ms, {share:.3f} ms",
        "above 1x: a step has no time for a copy",
        1e3 * result["theirs"] > share,
    )
    whole = sum(x.nbytes for x in jax.tree.leaves(large.state))
    report(
        "memory that a step needs beside the buffer",
        f"{large.beside:,} bytes, of {whole:,}",
        "below a thousandth of the buffer",
        large.beside < whole / 1000,
    )


if __name__ == "__main__":
    main()
