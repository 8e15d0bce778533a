"""A training that can be stopped at any moment: one Orbax checkpoint for the model and the data.

    python examples/resume.py run --steps 600               # stop it with Ctrl-C, if you like
    python examples/resume.py run --steps 1200 --batch 100  # goes on, with another batch size

Each checkpoint holds the weights and the loader's place in the data. Orbax shows a checkpoint only
when all of it is written, so both are always of the same step. No element is lost or repeated, also
if the batch size changes. The digits come with the package; 600 steps take 7 seconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

import cereal

EVERY = 100


def speckle(element: dict[str, jax.Array], key: jax.Array) -> dict[str, jax.Array]:
    """Adds noise. It depends on the key, the epoch and the element: it is resumed exactly, too."""
    noise = jax.random.randint(key, element["image"].shape, -24, 25)
    image = jnp.clip(element["image"].astype(jnp.int32) + noise, 0, 255)
    return {**element, "image": image.astype(jnp.uint8)}


def make_loader(split: Any, batch: int, *random: Any) -> cereal.DataLoader:
    data = cereal.DigitsDataset(split).as_array_dict()
    return cereal.DataLoader(
        [
            cereal.ArraySampleSource(data, ordering="shuffle" if random else "sequential"),
            *random,
            cereal.BatchTransform(batch),
            cereal.NormalizeImageTransform(),
            cereal.FlattenImageTransform(),
        ]
    )


def scores_of(weights: jax.Array, batch: Any) -> jax.Array:
    return jax.nn.log_softmax(batch["image"] @ weights)


@jax.jit
def train_step(weights: jax.Array, batch: Any, mask: jax.Array) -> jax.Array:
    def loss_of(weights: jax.Array) -> jax.Array:
        chosen = jnp.take_along_axis(scores_of(weights, batch), batch["label"][:, None], axis=1)
        return cereal.masked_mean(-chosen[:, 0], mask)

    return weights - 0.5 * jax.grad(loss_of)(weights)


def correct(batch: Any, weights: jax.Array) -> dict[str, jax.Array]:
    return {"accuracy": scores_of(weights, batch).argmax(axis=1) == batch["label"]}


def main(folder: Path, steps: int, batch: int) -> jax.Array:
    loader = make_loader("train", batch, cereal.RandomMapTransform(speckle))
    batches = loader.iterate(loader.init_state(jax.random.key(0)), epochs=None)
    weights, begin = jnp.zeros((64, 10)), 0

    with ocp.CheckpointManager(folder.absolute()) as manager:
        last = manager.latest_step()
        if last is not None:
            found = manager.restore(
                last,
                args=ocp.args.Composite(
                    model=ocp.args.StandardRestore({"weights": weights}),
                    data=ocp.args.JsonRestore(),
                ),
            )
            weights, begin = found["model"]["weights"], last + 1
            batches.set_state(found["data"])
            place = found["data"]
            print(f"step {begin}: epoch {place['epoch']}, element {place['offset']}")

        for step in range(begin, steps):
            elements, mask = next(batches)
            weights = train_step(weights, elements, mask)
            if step % EVERY == EVERY - 1:
                manager.save(
                    step,
                    args=ocp.args.Composite(
                        model=ocp.args.StandardSave({"weights": weights}),
                        data=ocp.args.JsonSave(batches.get_state()),
                    ),
                )
        manager.wait_until_finished()

    accuracy = cereal.evaluate(make_loader("test", 100), correct, weights)["accuracy"]
    print(f"step {max(begin, steps)}: accuracy {float(accuracy):.1%}")
    return weights


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=50)
    main(**vars(parser.parse_args()))
