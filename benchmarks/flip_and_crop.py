"""The shuffled gather, alone and feeding a flip or a crop: the order must not be fused into them.

python benchmarks/flip_and_crop.py
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from measure import compare, inverse, machine, mnist_shaped, on_gpu, report_ratio

import cereal


def flip(element: Any, key: jax.Array) -> Any:
    image = element["image"]
    return {**element, "image": jnp.where(jax.random.bernoulli(key), image[:, ::-1], image)}


def crop(element: Any, key: jax.Array) -> Any:
    top, left = jax.random.randint(key, (2,), 0, 5)
    return {**element, "image": jax.lax.dynamic_slice(element["image"], (top, left), (24, 24))}


def flip_all(batch: Any) -> Any:
    image = batch["image"]
    return {**batch, "image": jnp.where(image[:, :1, :1] > 100, image[:, :, ::-1], image)}


def main() -> None:
    for kind, data in (
        ("uint8", mnist_shaped()),
        ("float32", {"image": mnist_shaped(10_000)["image"].astype("float32")}),
    ):
        source = cereal.ArraySampleSource(data, ordering="shuffle")
        batch = cereal.BatchTransform(128)
        plain = cereal.DataLoader([source, batch])
        state = plain.init_state(0)
        for name, stage, goal in (
            ("flip of the batch", cereal.MapTransform(flip_all), 3.0),
            ("random flip", cereal.RandomMapTransform(flip), None),
            ("random crop", cereal.RandomMapTransform(crop), None),
        ):
            staged = cereal.DataLoader([source, batch, stage])
            start = staged.init_state(0)
            result = inverse(
                compare(
                    lambda staged=staged, start=start: staged.next_batch(start),
                    lambda plain=plain, state=state: plain.next_batch(state),
                    pairs=101,
                )
            )
            bound = goal if goal and not on_gpu() else None
            text = f"at most {bound}x" if bound else "reported (its own randomness included)"
            met = bound is None or result["ratio"] <= bound
            report_ratio(f"{kind}: gather + {name} / gather", result, text, met)


if __name__ == "__main__":
    print(machine())
    main()
