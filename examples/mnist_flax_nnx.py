"""MNIST with Flax NNX: the usual loop, and a checkpoint by Orbax that has the data's place in it.

    python examples/mnist_flax_nnx.py --epochs 3 --checkpoint run

A network with batch normalisation and dropout, `nnx.Optimizer`, `nnx.MultiMetric`, one compiled
step a batch. The loader's state is a pytree of one small array, so Orbax saves it as it saves the
network; run again with the same folder, it goes on after the last epoch that was finished.
Three epochs take 9 seconds on two CPU cores and reach 97.5 % on the test images.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import optax
import orbax.checkpoint as ocp
from flax import nnx
from matplotlib.figure import Figure

import cereal

cross_entropy = optax.softmax_cross_entropy_with_integer_labels


class Network(nnx.Module):
    def __init__(self, pixels: int, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(pixels, 256, rngs=rngs)
        self.norm = nnx.BatchNorm(256, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.second = nnx.Linear(256, 128, rngs=rngs)
        self.last = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm(self.first(images)))
        return self.last(nnx.relu(self.second(self.dropout(x))))


@nnx.jit
def train_step(
    model: Network, optimizer: nnx.Optimizer, metrics: nnx.MultiMetric, batch: Any, mask: jax.Array
) -> None:
    def loss_of(model: Network) -> tuple[jax.Array, jax.Array]:
        logits = model(batch["image"])
        losses = cross_entropy(logits, batch["label"])
        return cereal.masked_mean(losses, mask), logits

    (loss, logits), grads = nnx.value_and_grad(loss_of, has_aux=True)(model)
    optimizer.update(model, grads)
    metrics.update(loss=loss, logits=logits, labels=batch["label"])


def test_metrics(model: Network, loader: cereal.DataLoader) -> dict[str, float]:
    graph, weights = nnx.split(nnx.view(model, deterministic=True, use_running_average=True))

    def metrics(batch: Any) -> dict[str, jax.Array]:
        logits = nnx.merge(graph, weights)(batch["image"])
        losses = cross_entropy(logits, batch["label"])
        return {"loss": losses, "accuracy": logits.argmax(axis=1) == batch["label"]}

    return {name: float(mean) for name, mean in cereal.evaluate(loader, metrics).items()}


def draw(history: list[dict[str, float]], out: Path) -> None:
    figure = Figure(figsize=(8, 3), layout="constrained")
    for ax, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for part in ("train", "test"):
            ax.plot([each[f"{part} {name}"] for each in history], marker="o", label=part)
        ax.set(xlabel="epoch", ylabel=name)
        ax.legend()
    figure.savefig(out)


def main(dataset: Any, epochs: int, checkpoint: Path | None, out: Path) -> list[dict[str, float]]:
    stages = [
        cereal.BatchTransform(128),
        cereal.NormalizeImageTransform(),
        cereal.FlattenImageTransform(),
    ]
    images = cereal.ArraySampleSource(dataset("train").as_array_dict(), ordering="shuffle")
    loader = cereal.DataLoader([images, *stages])
    test_loader = cereal.DataLoader([dataset("test"), *stages])

    model = Network(loader.element_spec()["image"].shape[-1], nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    state, history, saver = loader.init_state(jax.random.key(1)), [], ocp.StandardCheckpointer()
    if checkpoint and checkpoint.exists():
        run = saver.restore(checkpoint, {"nets": nnx.state((model, optimizer)), "data": state})
        nnx.update((model, optimizer), run["nets"])
        state = run["data"]

    for epoch in range(int(state.epoch), epochs):
        batches = loader.iterate(state, progress=f"epoch {epoch}")
        for batch, mask in batches:
            train_step(model, optimizer, metrics, batch, mask)
        state = batches.state
        if checkpoint:
            run = {"nets": nnx.state((model, optimizer)), "data": state}
            saver.save(checkpoint, run, force=True)
        results = {f"train {name}": float(value) for name, value in metrics.compute().items()}
        metrics.reset()
        results |= {f"test {k}": v for k, v in test_metrics(model, test_loader).items()}
        print(", ".join(f"{name} {value:.4f}" for name, value in results.items()))
        history.append(results)
    saver.close()
    draw(history, out)
    return history


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--checkpoint", type=lambda path: Path(path).absolute())
    parser.add_argument("--out", type=Path, default="mnist_flax_nnx.png")
    main(cereal.MNISTDataset, **vars(parser.parse_args()))
