"""MNIST with Equinox and Optax: augmented, and resumed exactly where it stopped.

    python examples/mnist_equinox.py --epochs 3 --checkpoint run.eqx

A small convolutional network; images are moved by up to two pixels, anew in every epoch. The
checkpoint holds the network, the optimiser and the loader's state (a key and a position): after
Ctrl-C, or with more epochs, the same command goes on in mid-epoch as if it had never stopped.
Three epochs take 15 seconds on two CPU cores and reach 98.4 % on the test images.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import cereal

optimizer = optax.adam(2e-3)


def shift(element: Any, key: jax.Array) -> Any:
    """Moves the image by up to two pixels; every element has a key of its own in every epoch."""
    image = element["image"]
    padded = jnp.pad(image, ((2, 2), (2, 2), (0, 0)))
    top, left = jax.random.randint(key, (2,), 0, 5)
    return {**element, "image": jax.lax.dynamic_slice(padded, (top, left, 0), image.shape)}


class Network(eqx.Module):
    first: eqx.nn.Conv2d
    second: eqx.nn.Conv2d
    last: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 3)
        self.first = eqx.nn.Conv2d(1, 16, kernel_size=5, stride=2, padding=2, key=keys[0])
        self.second = eqx.nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1, key=keys[1])
        self.last = eqx.nn.Linear(32 * 7 * 7, 10, key=keys[2])

    def __call__(self, image: jax.Array) -> jax.Array:
        x = jax.nn.relu(self.first(image.transpose(2, 0, 1)))
        return self.last(jax.nn.relu(self.second(x)).ravel())


def metrics_of(model: Network, batch: Any) -> dict[str, jax.Array]:
    """One value per element; means are for the caller, who knows which elements are padding."""
    logits = jax.vmap(model)(batch["image"])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return {"loss": loss, "accuracy": logits.argmax(axis=1) == batch["label"]}


@eqx.filter_jit
def train_step(model: Network, opt_state: Any, batch: Any, mask: jax.Array) -> Any:
    def loss_of(model: Network) -> jax.Array:
        return cereal.masked_mean(metrics_of(model, batch)["loss"], mask)

    grads = eqx.filter_grad(loss_of)(model)
    updates, opt_state = optimizer.update(grads, opt_state)
    return eqx.apply_updates(model, updates), opt_state


def main(dataset: Any, epochs: int, checkpoint: Path | None, out: Path) -> Any:
    train, test = dataset("train").as_array_dict(), dataset("test").as_array_dict()
    images = cereal.ArraySampleSource(train, ordering="shuffle")
    prepare = [cereal.BatchTransform(128), cereal.NormalizeImageTransform()]
    loader = cereal.DataLoader([images, cereal.RandomMapTransform(shift), *prepare])
    print(loader)

    model = Network(jax.random.key(0))
    run = model, optimizer.init(eqx.filter(model, eqx.is_array)), loader.init_state(1)
    if checkpoint and checkpoint.exists():
        run = eqx.tree_deserialise_leaves(checkpoint, run)
    model, opt_state, state = run

    for epoch in range(int(state.epoch), epochs):
        batches = loader.iterate(state, progress=f"epoch {epoch}")
        for step, (batch, mask) in enumerate(batches, start=1):
            model, opt_state = train_step(model, opt_state, batch, mask)
            if checkpoint and (step % 100 == 0 or batches.state.epoch > epoch):
                eqx.tree_serialise_leaves(checkpoint, (model, opt_state, batches.state))
        state = batches.state

    means = cereal.evaluate(cereal.DataLoader([test, *prepare]), lambda b: metrics_of(model, b))
    print(f"test accuracy {means['accuracy']:.2%}, loss {means['loss']:.4f}")

    logits = jax.lax.map(model, test["image"] / np.float32(255), batch_size=100)
    test["taken for"] = np.asarray(logits.argmax(axis=1))
    wrong = np.flatnonzero(test["taken for"] != test["label"])
    mistakes = {name: array[wrong] for name, array in test.items()}
    cereal.preview(mistakes, count=40, label_key=("label", "taken for"), path=out)
    return means


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--out", type=Path, default="mnist_equinox.png")
    main(cereal.MNISTDataset, **vars(parser.parse_args()))
