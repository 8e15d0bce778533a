"""The tutorial on little data, with every library that it is about."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.bridges
EXAMPLE = Path(__file__).parents[2] / "examples" / "tutorial_mnist.py"


@pytest.fixture(scope="module")
def tutorial() -> Any:
    spec = importlib.util.spec_from_file_location("tutorial_mnist", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(n: int, seed: int) -> dict[str, np.ndarray]:
    """Ten kinds of images that a network can tell apart: a bright bar, and noise."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 10, n).astype(np.int32)
    image = rng.integers(0, 64, (n, 28, 28, 1), np.uint8)
    for row, kind in zip(image, label, strict=True):
        row[2 * kind + 3 : 2 * kind + 6] = 200
    return {"image": image, "label": label}


def test_all_loaders_train_the_same_network(
    tutorial: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tutorial.main(made(500, seed=0), made(200, seed=1), epochs=3)
    table = capsys.readouterr().out

    names = [(row.dataset, row.loader) for row in found]
    ways = ["its own", "cereal, streamed", "cereal, read once"]
    libraries = ["torch", "TFDS", "Grain", "Hugging Face"]
    assert names[:-1] == [(library, way) for library in libraries for way in ways]
    assert names[-1] == ("arrays", "cereal, read once")
    for row in found:
        assert f"{row.dataset:12}  {row.loader:17}" in table
        assert row.epoch > 0
        assert (row.reading is not None) == ("once" in row.loader)
    for scores in ([row.train for row in found], [row.test for row in found]):
        assert max(scores) - min(scores) <= 0.005  # the same images in the same order
        assert min(scores) > 0.3  # a guess has 0.1


def test_without_the_libraries_cereal_trains_from_arrays(
    tutorial: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = {name: (f"absent_{name}", make) for name, (_, make) in tutorial.LIBRARIES.items()}
    monkeypatch.setattr(tutorial, "LIBRARIES", absent)
    (row,) = tutorial.main(made(300, seed=0), made(100, seed=1), epochs=2)
    assert (row.dataset, row.loader) == ("arrays", "cereal, read once")
    lines = capsys.readouterr().out.splitlines()
    assert sum("is left out" in line for line in lines) == 4


def test_the_network_is_the_tutorials(tutorial: Any) -> None:
    params = tutorial.init_params(tutorial.jax.random.key(0))
    assert [w.shape for w, _ in params] == [(512, 784), (512, 512), (10, 512)]
    data = made(7, seed=2)
    x = data["image"].reshape(7, -1).astype(np.float64)
    for w, b in params[:-1]:
        x = np.maximum(0, x @ np.asarray(w, np.float64).T + np.asarray(b))
    logits = x @ np.asarray(params[-1][0], np.float64).T + np.asarray(params[-1][1])
    wanted = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(
        tutorial.predict(params, data["image"]), wanted, rtol=1e-3, atol=1e-4
    )
