"""RLDS: datasets of TFDS whose elements are episodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.bridges.quiet_tensorflow import tfds

from cereal import BatchTransform, DataLoader, PipelineError
from cereal.rl import EpisodeSource, RLDSSource
from cereal.testing import check_loader, check_resume, check_source

pytestmark = pytest.mark.bridges

LENGTHS = (3, 1, 300, 4)  # transitions
FORMATS = ("array_record", "tfrecord", "parquet")


def episode(steps: int, number: int) -> dict[str, Any]:
    """An episode under Minari's names."""
    rng, last = np.random.default_rng(number), np.arange(steps) == steps - 1
    return {
        "observations": {
            "x": rng.normal(size=(steps + 1, 3)).astype(np.float32),
            "image": rng.integers(0, 256, (steps + 1, 8, 8, 3), np.uint8),
        },
        "actions": rng.integers(0, 4, steps).astype(np.int32),
        "rewards": rng.normal(size=steps).astype(np.float32),
        "terminations": last & (number % 2 == 0),
        "truncations": last & (number % 2 == 1),
        "infos": {"discount": np.full(steps, 0.5, np.float32)},
    }


EPISODES = [episode(steps, number) for number, steps in enumerate(LENGTHS)]


def steps_of(each: dict[str, Any]) -> list[Any]:
    count = len(each["rewards"])
    padded = [np.append(each[name], 0) for name in ("actions", "rewards")]
    return [
        {
            "observation": {name: x[t] for name, x in each["observations"].items()},
            "action": np.int32(padded[0][t]),
            "reward": np.float32(padded[1][t]),
            "discount": np.float32(0.5 if t < count else 0),
            "is_first": t == 0,
            "is_last": t == count,
            "is_terminal": t == count and bool(each["terminations"].any()),
        }
        for t in range(count + 1)
    ]


def examples(episodes: Any = EPISODES) -> Iterator[tuple[int, Any]]:
    for number, each in enumerate(episodes):
        yield number, {"steps": steps_of(each), "episode_id": number}


def features() -> Any:
    flag, number = tfds.features.Scalar(np.bool_), tfds.features.Scalar(np.float32)
    observation = {
        "x": tfds.features.Tensor(shape=(3,), dtype=np.float32),
        "image": tfds.features.Image(shape=(8, 8, 3)),
    }
    steps = {
        "observation": tfds.features.FeaturesDict(observation),
        "action": tfds.features.Scalar(np.int32),
        **dict.fromkeys(("reward", "discount"), number),
        **dict.fromkeys(("is_first", "is_last", "is_terminal"), flag),
    }
    return tfds.features.FeaturesDict(
        {"steps": tfds.features.Dataset(steps), "episode_id": tfds.features.Scalar(np.int64)}
    )


def store(folder: Path, name: str, file_format: str, **splits: Any) -> Any:
    tfds.disable_progress_bar()
    return tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version="1.0.0",
        features=features(),
        split_datasets=splits,
        data_dir=folder,
        file_format=file_format,
        disable_shuffling=True,
    )


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("rlds")
    return {name: store(folder, name, name, train=examples()) for name in FORMATS}


def check(source: Any, **options: Any) -> None:
    """It is the source over the same episodes in memory."""
    wanted = EpisodeSource(EPISODES, infos=options.pop("infos", False), **options)
    every = np.arange(len(wanted))
    assert len(source) == len(wanted)
    jax.tree.map(np.testing.assert_array_equal, source.take(every), wanted.take(every))


@pytest.mark.parametrize("name", FORMATS)
def test_a_folder(stored: Any, name: str) -> None:
    folder = Path(stored[name].data_dir)
    check(RLDSSource(folder, infos=["discount"]), infos=True)
    check(RLDSSource(str(folder), n_step=3, gamma=0.9), n_step=3, gamma=0.9)
    check(RLDSSource(folder, split="train", window=5, period=2), window=5, period=2)


def test_datasets_of_tensorflow_and_of_tfds(stored: Any) -> None:
    stream = stored["tfrecord"].as_dataset(split="train")
    check(RLDSSource(stream, infos=True), infos=True)
    check(RLDSSource(tfds.as_numpy(stream.take(4))))
    check(RLDSSource(stored["array_record"].as_data_source(split="train")))
    assert len(RLDSSource(stream.take(1))) == LENGTHS[0]
    made = stream.map(
        lambda e: {"steps": e["steps"].map(lambda s: {**s, "reward": s["reward"] * 2})}
    )
    np.testing.assert_allclose(RLDSSource(made)[0]["reward"], 2 * EPISODES[0]["rewards"][0])


@pytest.mark.parametrize("options", [{"n_step": 3}, {"window": 4}], ids=str)
def test_it_is_an_indexed_source(stored: Any, options: Any) -> None:
    few = stored["tfrecord"].as_dataset(split="train").skip(3)
    source = RLDSSource(few, **options)
    check_source(source)
    loader = DataLoader([source, BatchTransform(3, pad_last_batch=True)])
    check_loader(loader)
    check_resume(loader)


# Bad input


def test_splits_that_are_not_there(stored: Any, tmp_path: Path) -> None:
    folder = Path(stored["tfrecord"].data_dir)
    with pytest.raises(PipelineError, match=r"Unknown split 'test'.*it has the splits \['train'\]"):
        RLDSSource(folder, split="test")
    with pytest.raises(
        PipelineError, match=r"has no 'features.json'; pass the folder of a version"
    ):
        RLDSSource(folder.parent)
    two = store(tmp_path, "two", "tfrecord", a=examples(EPISODES[:1]), b=examples(EPISODES[:2]))
    with pytest.raises(PipelineError, match=r"has the splits \['a', 'b'\]; pass `split=`"):
        RLDSSource(two.data_dir)
    assert len(RLDSSource(two.data_dir, split="b")) == sum(LENGTHS[:2])


@pytest.mark.parametrize("name", FORMATS)
def test_splits_without_episodes_and_splits_that_are_none(stored: Any, name: str) -> None:
    folder = Path(stored[name].data_dir)
    with pytest.raises(
        PipelineError, match=r"^RLDSSource: '.*', split 'train\[:0\]' has no episod"
    ):
        RLDSSource(folder, split="train[:0]")
    with pytest.raises(PipelineError, match=r"`split` must name one of \['train'\].*got list"):
        RLDSSource(folder, split=["train"])  # type: ignore[arg-type]


def test_datasets_that_are_not_episodes_or_have_no_end(stored: Any) -> None:
    stream = stored["tfrecord"].as_dataset(split="train")
    with pytest.raises(PipelineError, match=r"`data` has no end.*leave `.repeat\(\)` out"):
        RLDSSource(stream.repeat())
    with pytest.raises(PipelineError, match=r"the key 'steps', got the keys \['action'"):
        RLDSSource(stream.flat_map(lambda each: each["steps"]))
    batched = stream.map(lambda each: {"steps": each["steps"].batch(1000)})
    with pytest.raises(PipelineError, match=r"`is_last` has the shape \(1, 4\), an axis too many"):
        RLDSSource(batched)
    empty = stream.map(lambda each: {"steps": each["steps"].take(0)})
    with pytest.raises(PipelineError, match="episode 0 has no steps"):
        RLDSSource(empty)
    cut = stream.map(lambda each: {"steps": each["steps"].take(3)}).take(1)
    with pytest.raises(PipelineError, match=r"episode 0 has no end: `is_last` is False"):
        RLDSSource(cut)
    assert len(RLDSSource(cut, unfinished="truncate")) == 2
