"""Python inside a compiled epoch: work on single elements, a log, a progress bar.

    python examples/host_callback.py --epochs 3

`scan_epoch` runs an epoch as one program, and still Python has a word in it:

    MNIST -> HostMapTransform(straighten) -> BatchTransform(100) -> HostCallbackTransform(watch)
             NumPy on an element, by a thread, ahead               once a batch, in its turn

`watch` is called with every batch just before it is trained on. It moves the bar, and logs: the
brightness of the images, and the loss of the weights that Python has, which are new six times an
epoch. (The loss of the weights at each step comes out of `scan_epoch`, as `body_fn` returns it.)
A linear classifier gets 91.9 % of MNIST's test images right after three epochs, and 94.1 % with
`straighten`; they take 16 seconds on two CPU cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from tqdm.auto import tqdm

import cereal

BATCH = 100


def straighten(element: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Takes the slant out of a digit: moves every row, the more the further from its centre."""
    image = element["image"][:, :, 0]
    rows, columns = np.indices(image.shape)
    total = max(image.sum(), 1)
    rows = rows - (rows * image).sum() / total
    across = columns - (columns * image).sum() / total
    slant = (rows * across * image).sum() / max((rows * rows * image).sum(), 1)
    moved = np.rint(columns + slant * rows).astype(int) % image.shape[1]
    return {**element, "image": np.take_along_axis(image, moved, axis=1)}


def losses_of(weights: Any, batch: Any, xp: Any = jnp) -> Any:
    """The cross-entropy of a linear classifier, by JAX for training, by NumPy for the log."""
    logits = batch["image"] @ weights
    scores = logits - xp.log(xp.sum(xp.exp(logits), axis=1, keepdims=True))
    return -xp.take_along_axis(scores, batch["label"][:, None], axis=1)[:, 0]


def body_fn(weights: jax.Array, batch: Any, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    def loss_of(weights: jax.Array) -> jax.Array:
        return cereal.masked_mean(losses_of(weights, batch), mask)

    loss, grads = jax.value_and_grad(loss_of)(weights)
    return weights - 0.2 * grads, loss


def draw(log: dict[str, list[float]], out: Path) -> None:
    figure = Figure(figsize=(8, 4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    above.plot(log["logged"], lw=0.5, label="logged: of weights up to 100 steps old")
    above.plot(log["loss"], lw=0.5, label="from `scan_epoch`: of the weights at each step")
    above.set(ylabel="loss")
    above.legend()
    below.plot(log["brightness"], lw=0.5)
    below.set(ylabel="brightness", xlabel="step")
    figure.savefig(out)


def main(dataset: Any, epochs: int, out: Path) -> dict[str, list[float]]:
    log: dict[str, list[float]] = {"logged": [], "loss": [], "brightness": [], "accuracy": []}
    bar = tqdm(desc="training", unit="batch")

    def watch(batch: dict[str, np.ndarray], mask: np.ndarray) -> None:
        log["logged"].append(float(losses_of(known, batch, np)[mask].mean()))
        log["brightness"].append(float(batch["image"][mask].mean()))
        bar.update()

    stages = [
        cereal.HostMapTransform(straighten),
        cereal.BatchTransform(BATCH),
        cereal.NormalizeImageTransform(),
        cereal.FlattenImageTransform(),
    ]
    images = cereal.ArraySampleSource(dataset("train").as_array_dict(), ordering="shuffle")
    # `straighten` is many short NumPy calls, for which threads wait for each other: one is best.
    loader = cereal.DataLoader([images, *stages, cereal.HostCallbackTransform(watch)], workers=1)
    test_loader = cereal.DataLoader([dataset("test"), *stages], workers=1)
    print(loader)

    def right(batch: Any) -> jax.Array:
        return (batch["image"] @ weights).argmax(axis=1) == batch["label"]

    weights = jnp.zeros((loader.element_spec()["image"].shape[1], 10))
    state = loader.init_state(jax.random.key(0))
    steps = loader.steps_per_epoch // 6
    bar.reset(total=6 * epochs * steps)
    for _ in range(6 * epochs):
        known = np.asarray(weights)
        state, weights, losses = loader.scan_epoch(state, weights, body_fn, steps=steps)
        log["loss"] += losses.tolist()
    bar.close()
    log["accuracy"].append(float(cereal.evaluate(test_loader, right)))
    print(f"test accuracy {log['accuracy'][-1]:.1%}")
    draw(log, out)
    return log


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, default="host_callback.png")
    main(cereal.MNISTDataset, **vars(parser.parse_args()))
