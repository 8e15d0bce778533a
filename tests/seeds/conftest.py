"""The names that the seeds' blocks use and do not define, and MNIST for them to train on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from tests.datasets.files import mnist_names

import cereal

Params = dict[str, jax.Array]
_LEARNING_RATE = 0.05
_GIVEN = Path(os.environ.get("CEREAL_DATA_DIR", "-")).expanduser() / "mnist"
_REAL = all((_GIVEN / name).is_file() for name in mnist_names("train"))
_DATA = ["small", *([pytest.param("real", marks=pytest.mark.slow)] if _REAL else [])]


@pytest.fixture(params=_DATA)
def mnist(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MNIST in the folder of datasets: small, and the real one where the environment has it."""
    if request.param == "small":
        request.getfixturevalue("mnist_is_small")
        return
    (tmp_path / "mnist").mkdir()
    for name in mnist_names("train"):  # by links, so that nothing is written into that folder
        (tmp_path / "mnist" / name).symlink_to((_GIVEN / name).resolve())
    monkeypatch.setenv("CEREAL_DATA_DIR", str(tmp_path))


@partial(jax.tree_util.register_dataclass, data_fields=["params", "step"], meta_fields=["apply_fn"])
@dataclass(frozen=True)
class TrainState:
    """A linear classifier in training; counts its steps."""

    apply_fn: Callable[[Params, jax.Array], jax.Array]
    params: Params
    step: jax.Array

    def apply_gradients(self, *, grads: Params) -> TrainState:
        params = jax.tree.map(lambda p, g: p - _LEARNING_RATE * g, self.params, grads)
        return replace(self, params=params, step=self.step + 1)


def apply(params: Params, images: jax.Array) -> jax.Array:
    pixels = images.reshape(images.shape[0], -1).astype(jnp.float32) / 255
    return pixels @ params["weight"] + params["bias"]


def model_init() -> TrainState:
    weight = 0.1 * jax.random.normal(jax.random.key(7), (784, 10))
    return TrainState(apply, {"weight": weight, "bias": jnp.zeros(10)}, jnp.int32(0))


def model_apply(params: Params, batch: dict[str, jax.Array], rng: jax.Array) -> jax.Array:
    """With dropout of a tenth of the pixels."""
    images = batch["image"]
    return apply(params, images * jax.random.bernoulli(rng, 0.9, images.shape))


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """One loss per example."""
    chosen = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(logits, axis=1) - chosen


def update(state: TrainState, batch: dict[str, jax.Array], mask: jax.Array) -> TrainState:
    def loss(params: Params) -> jax.Array:
        logits = state.apply_fn(params, batch["image"])
        return cereal.masked_mean(cross_entropy(logits, batch["label"]), mask)

    return state.apply_gradients(grads=jax.grad(loss)(state.params))


@pytest.fixture
def names(mnist: None) -> dict[str, Any]:
    data = cereal.MNISTDataset(split="train").as_array_dict()
    loader = cereal.DataLoader(
        [
            cereal.ArraySampleSource(data, ordering="shuffle"),
            cereal.BatchTransform(128, pad_last_batch=True),
        ]
    )
    state = model_init()
    return {
        "cereal": cereal,
        "jax": jax,
        "jnp": jnp,
        "data": data,
        "train_data": data,
        "loader": loader,
        "loader_state": loader.init_state(jax.random.PRNGKey(0)),
        "train_state": state,
        "model_state": state,
        "opt_state": state,
        "model": partial(apply, state.params),
        "model_init": model_init,
        "model_apply": model_apply,
        "cross_entropy": cross_entropy,
        "loss_fn": cross_entropy,
        "model_update": update,
        "update_model": update,
        "optimizer_update": update,
    }
