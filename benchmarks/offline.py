"""Offline data: shuffled batches of transitions, against arrays of transitions sampled by hand.

    python benchmarks/offline.py      (reading folders needs minari and h5py; tensorflow_datasets)

Episodes as those of a locomotion task: 17 numbers of observation, 6 of action, 100 to 1,000 steps.

    by hand      `state` and `next_state` stored apart; in a `lax.scan`, uniform random indices
    stored       the same arrays in an ArraySampleSource, shuffled
    n_step=3     against three-step returns and their states, computed before and stored too
    windows      16 steps, against windows of a WindowSource over all steps, which cross episodes
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import compare, inverse, machine, on_gpu, report, report_ratio

import cereal
from cereal.rl import EpisodeSource, MinariSource, RLDSSource, n_step_returns

BATCH, STEPS, WINDOW = 256, 1024, 16
TOTAL = 1_000_000


def made(total: int, least: int = 100, most: int = 1000) -> list[dict[str, Any]]:
    rng, episodes = np.random.default_rng(0), []
    while total > 0:
        steps = min(int(rng.integers(least, most + 1)), total)
        last = np.arange(steps) == steps - 1
        dies = rng.random() < 0.5
        episodes.append(
            {
                "observations": rng.normal(size=(steps + 1, 17)).astype(np.float32),
                "actions": rng.normal(size=(steps, 6)).astype(np.float32),
                "rewards": rng.normal(size=steps).astype(np.float32),
                "terminations": last & dies,
                "truncations": last & (not dies),
            }
        )
        total -= steps
    return episodes


def stored(episodes: list[Any], n: int | None) -> dict[str, Any]:
    """Transitions as arrays: what one writes without a source of episodes."""
    whole = lambda name, part=slice(None): np.concatenate([e[name][part] for e in episodes])  # noqa: E731
    terminated, truncated = whole("terminations"), whole("truncations")
    data = {
        "state": whole("observations", slice(None, -1)),
        "action": whole("actions"),
        "reward": whole("rewards"),
        "next_state": whole("observations", slice(1, None)),
        "done": terminated | truncated,
        "info": {"terminated": terminated, "truncated": truncated},
    }
    if n is None:
        return data
    made = n_step_returns(
        data["reward"], data["done"], data["next_state"], n, gamma=0.99, terminated=terminated
    )
    names = ("n_step_return", "bootstrap_state", "bootstrap_discount")
    return {**data, **dict(zip(names, map(np.asarray, made), strict=True))}


def consume(total: Any, batch: Any, mask: Any) -> tuple[Any, None]:
    del mask
    return total + sum(leaf.astype(jnp.float32).sum() for leaf in jax.tree.leaves(batch)), None


def epochs_of(source: Any) -> Any:
    """1,024 shuffled batches, in one program."""
    some = (
        cereal.SliceSource(source, range(STEPS * BATCH)) if len(source) < STEPS * BATCH else source
    )
    loader = cereal.DataLoader([some, cereal.BatchTransform(BATCH, drop_last=True)])
    run = jax.jit(lambda loader, state: scanned(loader, state))
    state = loader.init_state(0)
    return lambda: run(loader, state)


def scanned(loader: Any, state: Any) -> Any:
    def one(carry: Any, _: None) -> tuple[Any, None]:
        total, state = carry
        batch, state, mask = loader.next_batch(state)
        return (consume(total, batch, mask)[0], state), None

    return jax.lax.scan(one, (jnp.float32(0), state), length=STEPS)[0][0]


def by_hand(data: dict[str, Any]) -> Any:
    arrays = jax.tree.map(jnp.asarray, data)
    n = arrays["reward"].shape[0]

    @jax.jit
    def run(arrays: Any, key: Any) -> Any:
        def one(carry: Any, key: Any) -> tuple[Any, None]:
            at = jax.random.randint(key, (BATCH,), 0, n)
            return consume(carry, jax.tree.map(lambda x: x[at], arrays), None)

        return jax.lax.scan(one, jnp.float32(0), jax.random.split(key, STEPS))[0]

    return lambda: run(arrays, jax.random.key(0))


def nbytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def transitions(episodes: list[Any]) -> None:
    for n, name in ((None, "transitions"), (3, "n_step=3")):
        data, source = stored(episodes, n), EpisodeSource(episodes, n_step=n)
        kept = cereal.ArraySampleSource(data)
        ours = epochs_of(source)
        hand = inverse(compare(ours, by_hand(data), 7))
        report_ratio(
            f"{name}: time against sampling by hand", hand, "at most 1.1", hand["ratio"] <= 1.1
        )
        array = inverse(compare(ours, epochs_of(kept), 7))
        report_ratio(
            f"{name}: time against stored arrays", array, "at most 1.25", array["ratio"] <= 1.25
        )
        share = nbytes((source._observations, source._steps, source._places)) / nbytes(kept.data)
        report(
            f"{name}: memory against stored arrays", f"{share:.2f}", "at most 0.75", share <= 0.75
        )


def windows(episodes: list[Any]) -> None:
    ours = epochs_of(EpisodeSource(episodes, window=WINDOW))
    plain = epochs_of(cereal.WindowSource(stored(episodes, None), WINDOW))
    result = inverse(compare(ours, plain, 7))
    report_ratio(
        f"windows of {WINDOW}: time against a WindowSource that crosses episodes",
        result,
        "at most 1.25",
        result["ratio"] <= 1.25,
    )


def folders(episodes: list[Any]) -> None:
    import gymnasium
    import minari

    with tempfile.TemporaryDirectory() as root, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ["MINARI_DATASETS_PATH"] = root
        box = gymnasium.spaces.Box
        for kind in ("hdf5", "arrow"):
            name = f"benchmark/{kind}-v0"
            buffers = [minari.data_collector.EpisodeBuffer(**each) for each in episodes]
            minari.create_dataset_from_buffers(
                name,
                buffers,
                observation_space=box(-9, 9, (17,)),
                action_space=box(-9, 9, (6,)),
                data_format=kind,
            )

            def theirs(name: str = name) -> Any:
                found = list(minari.load_dataset(name).iterate_episodes())
                return stored([vars(each) for each in found], None)

            result = compare(lambda name=name: MinariSource(name)._observations, theirs, 5)
            what = f"a Minari folder ({kind}), against Minari's own reader into arrays"
            report_ratio(what, result, "at least 1", result["ratio"] >= 1)


def in_steps(episodes: list[Any]) -> Any:
    """The same in the shape of RLDS: a dict for each step, and one for the last observation."""
    for number, each in enumerate(episodes):
        count = len(each["rewards"])
        died = bool(each["terminations"].any())
        steps = []
        for t in range(count + 1):
            action = each["actions"][min(t, count - 1)]
            flags = {"is_first": t == 0, "is_last": t == count, "is_terminal": t == count and died}
            seen, reward = each["observations"][t], each["rewards"][min(t, count - 1)]
            steps.append({"observation": seen, "action": action, "reward": reward, **flags})
        yield number, {"steps": steps}


def rlds_folders(episodes: list[Any]) -> None:
    """Against TFDS: steps of a data source one by one, of TensorFlow 256 at a time."""
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    f, flags = tfds.features, ("is_first", "is_last", "is_terminal")
    steps = {
        "observation": f.Tensor(shape=(17,), dtype=np.float32),
        "action": f.Tensor(shape=(6,), dtype=np.float32),
        "reward": f.Scalar(np.float32),
        **dict.fromkeys(flags, f.Scalar(np.bool_)),
    }
    count = sum(len(each["rewards"]) for each in episodes)
    with tempfile.TemporaryDirectory() as root:
        for kind in ("tfrecord", "array_record"):
            builder = tfds.dataset_builders.store_as_tfds_dataset(
                name=kind,
                version="1.0.0",
                features=f.FeaturesDict({"steps": f.Dataset(steps)}),
                split_datasets={"train": in_steps(episodes)},
                data_dir=root,
                file_format=kind,
                disable_shuffling=True,
            )

            def by_tfds(builder: Any = builder, kind: str = kind) -> Any:
                if kind == "array_record":
                    data: Any = builder.as_data_source(split="train")
                    steps = (step for each in data for step in each["steps"])
                    return jax.tree.map(lambda *x: np.stack(x), *steps)
                data = builder.as_dataset(split="train")
                parts = (tfds.as_numpy(each["steps"].batch(256)) for each in data)
                found = (batch for part in parts for batch in part)
                return jax.tree.map(lambda *x: np.concatenate(x), *found)

            result = compare(lambda b=builder: RLDSSource(b.data_dir)._observations, by_tfds, 3)
            what = f"a folder of RLDS ({kind}), against TFDS's own reader into arrays"
            report_ratio(what, result, "at least 5", result["ratio"] >= 5)
            ours, theirs = (1e6 * result[name] / count for name in ("ours", "theirs"))
            print(f"      a step takes {ours:.2f} / {theirs:.1f} microseconds")


if __name__ == "__main__":
    print(machine())
    recorded = made(TOTAL)
    transitions(recorded)
    windows(recorded)
    if not on_gpu() and importlib.util.find_spec("minari"):
        folders(made(100_000))
    if not on_gpu() and importlib.util.find_spec("tensorflow_datasets"):
        rlds_folders(made(100_000))
