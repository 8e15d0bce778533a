"""Trains a small network on handwritten digits, through a real pipeline.

    python examples/digits.py        # offline: the digits come with the package

Shuffle, batch, add noise, normalise; then Adam, in plain JAX, one compiled step a batch.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp

import cereal

EPOCHS, BATCH, HIDDEN, RATE = 40, 50, 256, 3e-3


def speckle(element: dict[str, jax.Array], key: jax.Array) -> dict[str, jax.Array]:
    """Adds noise to the image, drawn anew for every element of every epoch."""
    noise = jax.random.randint(key, element["image"].shape, -24, 25)
    image = jnp.clip(element["image"].astype(jnp.int32) + noise, 0, 255)
    return {**element, "image": image.astype(jnp.uint8)}


def make_loader(split: Any, *random: Any, **remainder: bool) -> cereal.DataLoader:
    data = cereal.DigitsDataset(split).as_array_dict()
    return cereal.DataLoader(
        [
            cereal.ArraySampleSource(data, ordering="shuffle" if random else "sequential"),
            *random,
            cereal.BatchTransform(BATCH, **remainder),
            cereal.NormalizeImageTransform(),
            cereal.FlattenImageTransform(),
        ]
    )


def init_params(key: jax.Array) -> list[jax.Array]:
    first, second = jax.random.split(key)
    return [
        jax.random.normal(first, (64, HIDDEN)) * 64**-0.5,
        jnp.zeros(HIDDEN),
        jax.random.normal(second, (HIDDEN, 10)) * HIDDEN**-0.5,
        jnp.zeros(10),
    ]


def logits_of(params: list[jax.Array], image: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(image @ params[0] + params[1])
    return hidden @ params[2] + params[3]


def loss_of(params: list[jax.Array], batch: Any, mask: jax.Array) -> jax.Array:
    scores = jax.nn.log_softmax(logits_of(params, batch["image"]))
    losses = -jnp.take_along_axis(scores, batch["label"][:, None], axis=1)[:, 0]
    return cereal.masked_mean(losses, mask)


@jax.jit
def train_step(train: Any, batch: Any, mask: jax.Array) -> tuple[Any, jax.Array]:
    params, mean, square, step = train
    loss, grads = jax.value_and_grad(loss_of)(params, batch, mask)
    step += 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, square, grads)
    rate = RATE * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    params = jax.tree.map(lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-8), params, mean, square)
    return (params, mean, square, step), loss


def accuracy(params: list[jax.Array], loader: cereal.DataLoader) -> float:
    """Over every element once: the last batch is padded, and the mask leaves padding out."""

    def count(right: jax.Array, batch: Any, mask: jax.Array) -> tuple[jax.Array, None]:
        correct = logits_of(params, batch["image"]).argmax(axis=-1) == batch["label"]
        return right + jnp.sum(correct & mask), None

    _, right, _ = loader.scan_epoch(loader.init_state(0), jnp.int32(0), count)
    return int(right) / len(cereal.DigitsDataset("test"))


def main() -> float:
    train_loader = make_loader("train", cereal.RandomMapTransform(speckle))
    test_loader = make_loader("test", pad_last_batch=True)
    print(train_loader, "\n")

    params = init_params(jax.random.key(0))
    zeros = jax.tree.map(jnp.zeros_like, params)
    train = (params, zeros, zeros, jnp.float32(0))
    state = train_loader.init_state(jax.random.key(1))
    loss, begin = jnp.float32(0), 0.0
    batches = train_loader.iterate(state, epochs=EPOCHS, progress="training")
    for step, (batch, mask) in enumerate(batches):
        if step == train_loader.steps_per_epoch:  # compiled by now
            begin = time.perf_counter()
        train, loss = train_step(train, batch, mask)
    jax.block_until_ready(train)
    rate = (EPOCHS - 1) * len(cereal.DigitsDataset("train")) / (time.perf_counter() - begin)

    result = accuracy(train[0], test_loader)
    print(f"\nlast loss {float(loss):.3f}, test accuracy {result:.1%}, {rate:,.0f} elements/s")
    return result


if __name__ == "__main__":
    main()
