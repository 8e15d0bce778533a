"""The examples run, learn, and draw what they say: each on small data, through its own `main`."""

from __future__ import annotations

import gzip
import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL.Image import open as image_of
from tests.examples.running import EXAMPLES, example

import cereal


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes(), 1))


@pytest.fixture(scope="module")
def small_mnist(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The digits that come with the package, in MNIST's size and in its files."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "mnist").mkdir()
    splits: list[tuple[Any, str]] = [("train", "train"), ("test", "t10k")]
    for split, prefix in splits:
        digits = cereal.DigitsDataset(split).as_array_dict()
        images = np.kron(digits["image"].reshape(-1, 8, 8), np.ones((1, 3, 3), np.uint8))
        images = np.pad(images, ((0, 0), (2, 2), (2, 2)))
        write_idx(folder / "mnist" / f"{prefix}-images-idx3-ubyte.gz", images)
        write_idx(folder / "mnist" / f"{prefix}-labels-idx1-ubyte.gz", digits["label"])

    class SmallMNIST(cereal.MNISTDataset):
        def __init__(self, split: Any) -> None:
            super().__init__(split, folder, verify=False)

        @classmethod
        def make_disk_source(cls, *args: Any, **options: Any) -> Any:
            return super().make_disk_source(*args, **options, cache_dir=folder, verify=False)

    return SmallMNIST


def check_picture(path: Path) -> None:
    """It is a PNG, and not of one colour."""
    with image_of(path) as image:
        assert image.format == "PNG"
        grey = np.asarray(image.convert("L"))
    assert grey.min() < grey.max()


@pytest.mark.slow
def test_equinox_learns_digits(small_mnist: Any, tmp_path: Path) -> None:
    metrics = example("mnist_equinox").main(small_mnist, 2, None, tmp_path / "wrong.png")
    assert metrics["accuracy"] > 0.7  # a tenth by chance
    check_picture(tmp_path / "wrong.png")


@pytest.mark.slow  # trains three times
def test_equinox_resumes_exactly(small_mnist: Any, tmp_path: Path) -> None:
    main, saved, picture = example("mnist_equinox").main, tmp_path / "run", tmp_path / "wrong.png"
    straight = main(small_mnist, 2, None, picture)
    main(small_mnist, 1, saved, picture)
    resumed = main(small_mnist, 2, saved, picture)
    assert {k: float(v) for k, v in resumed.items()} == {k: float(v) for k, v in straight.items()}


@pytest.mark.slow
def test_flax_learns_digits(small_mnist: Any, tmp_path: Path) -> None:
    history = example("mnist_flax_nnx").main(small_mnist, 2, None, tmp_path / "curves.png")
    assert history[-1]["test accuracy"] > 0.7
    assert history[1]["train loss"] < history[0]["train loss"]
    check_picture(tmp_path / "curves.png")


@pytest.mark.slow  # trains three times
def test_flax_resumes_from_its_checkpoint(small_mnist: Any, tmp_path: Path) -> None:
    main, saved, picture = example("mnist_flax_nnx").main, tmp_path / "run", tmp_path / "curves.png"
    straight = main(small_mnist, 2, None, picture)
    main(small_mnist, 1, saved, picture)
    assert main(small_mnist, 2, saved, picture) == straight[1:]


@pytest.mark.slow
@pytest.mark.usefixtures("orbax_threads_end")
def test_a_stopped_training_ends_with_the_same_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resume = example("resume")
    resume.EVERY = 10
    straight = resume.main(tmp_path / "straight", 45, 50)
    resume.main(tmp_path / "stopped", 38, 50)  # the last checkpoint is that of step 29
    capsys.readouterr()
    np.testing.assert_array_equal(resume.main(tmp_path / "stopped", 45, 50), straight)
    assert capsys.readouterr().out.startswith("step 30: epoch 1, element 0\nstep 45: accuracy ")
    other = resume.main(tmp_path / "stopped", 60, 25)  # from step 39, with another batch size
    assert capsys.readouterr().out.startswith("step 40: epoch 1, element 500\nstep 60: accuracy ")
    assert not np.array_equal(other, straight)


@pytest.mark.slow
def test_the_recurrent_network_beats_the_same_as_yesterday(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 0.5, 800)
    temperatures = 11 + 4 * np.sin(np.arange(800) / 5) + noise
    (tmp_path / "series").mkdir()
    lines = [f'"{day}",{value:.3f}' for day, value in enumerate(temperatures)]
    text = "\n".join(['"Date","Temp"', *lines, ""])
    (tmp_path / "series" / "daily-min-temperatures.csv").write_text(text)

    dataset = partial(cereal.DailyMinTemperaturesDataset, cache_dir=tmp_path, verify=False)
    errors = example("time_series_rnn").main(dataset, 15, tmp_path / "forecast.png")
    split = dataset("test")
    by_hand = np.sqrt(np.mean(np.diff(split.series[split.context_length - 1 :]) ** 2))
    assert errors["yesterday"]["test"] == pytest.approx(by_hand, rel=1e-4)
    assert errors["GRU"]["test"] < 0.9 * by_hand
    check_picture(tmp_path / "forecast.png")


def test_streams_from_disk_are_the_same_for_any_number_of_workers(
    small_mnist: Any, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    rows = example("disk_stream").main(small_mnist, files=60, epochs=2, workers=(1, 2))
    memory, mapped, one, two = rows
    assert memory["digest"] == mapped["digest"]
    assert one["digest"] == two["digest"]
    assert [row["skipped"] for row in rows] == [0, 0, 1, 1]
    assert all(row["rate"] > 0 for row in rows)
    assert "JPEGs, workers=2" in capsys.readouterr().out
    assert "truncated" in caplog.text


def test_the_callback_logs_every_batch_of_the_compiled_epochs(
    small_mnist: Any, tmp_path: Path
) -> None:
    host_callback = example("host_callback")
    log = host_callback.main(small_mnist, 3, tmp_path / "log.png")
    piece = len(small_mnist("train")) // host_callback.BATCH // 6
    assert len(log["logged"]) == len(log["brightness"]) == len(log["loss"]) == 18 * piece
    # Weights of zeros give every class a tenth, whatever the batch.
    np.testing.assert_allclose(log["logged"][:piece], np.log(10), rtol=1e-5)
    # The first batch of a piece meets the same weights in the log and in training.
    np.testing.assert_allclose(log["logged"][::piece], log["loss"][::piece], rtol=1e-3)
    assert log["logged"][1:piece] != log["loss"][1:piece]
    assert np.mean(log["logged"][-6:]) < 1.5
    assert log["accuracy"][-1] > 0.7
    check_picture(tmp_path / "log.png")


def test_straightening_takes_the_slant_out() -> None:
    straighten = example("host_callback").straighten
    upright = np.zeros((28, 28, 1), np.uint8)
    upright[4:24, 13:15] = 255
    slanted = np.stack([np.roll(row, (14 - at) // 2, axis=0) for at, row in enumerate(upright)])
    image = straighten({"image": slanted, "label": np.int32(1)})["image"]
    assert np.ptp(np.flatnonzero(slanted.any(axis=0))) >= 9
    assert np.ptp(np.flatnonzero(image.any(axis=0))) <= 3
    blank = straighten({"image": np.zeros_like(upright), "label": np.int32(1)})["image"]
    assert not blank.any()


@pytest.mark.slow
def test_the_small_gpt_learns_a_text_that_repeats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 200)
    gpt = example("nanogpt_tokens")
    gpt.CONTEXT, gpt.WIDTH, gpt.LAYERS, gpt.BATCH = 16, 64, 1, 16
    losses = gpt.main(text, 100, tmp_path / "loss.png")
    assert list(losses) == [0, 50, 100]
    assert losses[0] > 4
    assert losses[100] < 1
    assert "the quick brown fox" in capsys.readouterr().out.splitlines()[-1]
    check_picture(tmp_path / "loss.png")


def test_examples_are_short_and_listed() -> None:
    table = (EXAMPLES / "README.md").read_text()
    ours = [path for path in EXAMPLES.glob("*.py") if path.name != "tutorial_mnist.py"]
    assert len(ours) >= 7
    for path in ours:
        assert len(path.read_text().splitlines()) < 150, path.name
        assert path.name in table
