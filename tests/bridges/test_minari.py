"""Minari: its datasets in files, as its own library writes them."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from cereal import BatchTransform, DataLoader, HostMapTransform, PipelineError
from cereal.rl import EpisodeSource, MinariSource
from cereal.testing import check_loader, check_resume, check_source

pytestmark = pytest.mark.bridges
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own imports
    gymnasium = import_module("gymnasium")
    minari = import_module("minari")
    h5py = import_module("h5py")
spaces = gymnasium.spaces
FORMATS = ("hdf5", "arrow", "parquet")
LENGTHS = (5, 1, 3)

OBSERVATIONS = spaces.Dict(
    {
        "x": spaces.Box(-9, 9, (3,), np.float32),
        "pair": spaces.Tuple((spaces.Discrete(5), spaces.Box(0, 255, (40, 32, 3), np.uint8))),
        "bits": spaces.MultiBinary(4),
        "matrix": spaces.Box(-9, 9, (2, 2), np.float64),
    }
)
ACTIONS = spaces.Tuple((spaces.Box(-1, 1, (2,), np.float64), spaces.Discrete(7)))


def buffer(steps: int, number: int) -> Any:
    rng, last = np.random.default_rng(number), np.arange(steps) == steps - 1
    return minari.data_collector.EpisodeBuffer(
        observations={
            "x": rng.normal(size=(steps + 1, 3)).astype(np.float32),
            "pair": (
                rng.integers(0, 5, steps + 1),
                rng.integers(0, 256, (steps + 1, 40, 32, 3), np.uint8),
            ),
            "bits": rng.integers(0, 2, (steps + 1, 4), np.int8),
            "matrix": rng.normal(size=(steps + 1, 2, 2)),
        },
        actions=(rng.normal(size=(steps, 2)), rng.integers(0, 7, steps)),
        rewards=rng.normal(size=steps),
        terminations=last & (number % 2 == 0),
        truncations=last & (number % 2 == 1),
        infos={"speed": rng.normal(size=(steps + 1, 2, 2)), "deep": {"z": np.arange(steps + 1)}},
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of Minari's datasets, for this module."""
    folder = tmp_path_factory.mktemp("minari")
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    yield folder
    os.environ.pop("MINARI_DATASETS_PATH")
    if before is not None:
        os.environ["MINARI_DATASETS_PATH"] = before


@pytest.fixture(scope="module")
def stored(root: Path) -> dict[str, Any]:
    """A dataset in each format; images as JPEG, and in HDF5 also as pixels."""
    made = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nobody is named as its author
        for name, pixels in [*((name, False) for name in FORMATS), ("pixels", True)]:
            made[name] = minari.create_dataset_from_buffers(
                f"toy/{name}-v0",
                [buffer(steps, number) for number, steps in enumerate(LENGTHS)],
                observation_space=OBSERVATIONS,
                action_space=ACTIONS,
                data_format="hdf5" if pixels else name,
                jpeg_encoding=not pixels,
            )
    return made


@pytest.fixture(scope="module")
def played(root: Path) -> Any:
    """Episodes of CartPole, recorded by Minari's own wrapper; the last one was not played out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = minari.DataCollector(gymnasium.make("CartPole-v1"))
        for seed in range(3):
            env.reset(seed=seed)
            env.action_space.seed(seed)
            while not any(env.step(env.action_space.sample())[2:4]):
                pass
        env.reset(seed=3)
        env.step(1)
        made = env.create_dataset("cartpole/test-v0")
        env.env.close()
        del env  # its folder for temporary files goes with it, and it warns of that
        gc.collect()
    return made


def transitions(dataset: Any, infos: Any = None) -> Any:
    """All transitions, by Minari's own reader."""
    rows = []
    for each in dataset.iterate_episodes():
        for t in range(len(each.rewards)):
            info = {"terminated": each.terminations[t], "truncated": each.truncations[t]}
            for name in infos or ():
                info[name] = each.infos[name][t + 1]
            rows.append(
                {
                    "state": jax.tree.map(lambda x, t=t: x[t], each.observations),
                    "action": jax.tree.map(lambda x, t=t: x[t], each.actions),
                    "reward": each.rewards[t],
                    "next_state": jax.tree.map(lambda x, t=t: x[t + 1], each.observations),
                    "done": each.terminations[t] | each.truncations[t],
                    "info": info,
                }
            )
    return jax.tree.map(lambda *each: np.stack(each), *rows)


def same(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(np.asarray(x), y, rtol=1e-6)


def whole(source: Any) -> Any:
    return source.take(np.arange(len(source)))


@pytest.mark.parametrize("name", [*FORMATS, "pixels"])
def test_transitions_are_those_that_minari_reads(stored: Any, name: str) -> None:
    source = MinariSource(f"toy/{name}-v0", infos=["speed"])
    same(whole(source), transitions(stored[name], ["speed"]))
    folder = Path(stored[name].storage.data_path)
    same(whole(MinariSource(folder)), transitions(stored[name]))
    same(whole(MinariSource(folder.parent)), transitions(stored[name]))


@pytest.mark.parametrize("name", FORMATS)
def test_all_infos_are_a_tree(stored: Any, name: str) -> None:
    info = whole(MinariSource(f"toy/{name}-v0", infos=True))["info"]
    assert sorted(info) == ["deep", "speed", "terminated", "truncated"]
    assert info["deep"]["z"].tolist() == [t + 1 for steps in LENGTHS for t in range(steps)]


def test_pixels_are_exact_if_they_were_not_written_as_jpeg(stored: Any) -> None:
    pixels = whole(MinariSource("toy/pixels-v0"))["state"]["pair"][1]
    wanted = [buffer(n, k).observations["pair"][1][:-1] for k, n in enumerate(LENGTHS)]
    np.testing.assert_array_equal(pixels, np.concatenate(wanted))


def test_episodes_of_minari_are_episodes_here(stored: Any) -> None:
    source = EpisodeSource(stored["hdf5"].iterate_episodes(), infos=False)
    same(whole(source), transitions(stored["hdf5"]))


def test_a_recorded_environment(played: Any) -> None:
    source = MinariSource("cartpole/test-v0", ordering="sequential")
    found = whole(source)
    same(found, transitions(played))
    assert found["info"]["terminated"].sum() == 3
    assert bool(found["info"]["truncated"][-1]), "it was not played out"
    assert len(MinariSource("cartpole/test-v0", episodes=[3])) == 1
    lengths = [len(each.rewards) for each in played.iterate_episodes()]
    assert len(MinariSource("cartpole/test-v0", episodes=range(1, 3))) == sum(lengths[1:3])
    windows = MinariSource("cartpole/test-v0", window=8, period=8)
    assert len(windows) == sum(-(-n // 8) for n in lengths)


@pytest.mark.parametrize("options", [{}, {"n_step": 3}, {"window": 4}], ids=str)
def test_it_is_an_indexed_source(played: Any, options: Any) -> None:
    source = MinariSource("cartpole/test-v0", episodes=[0], **options)
    check_source(source)
    loader = DataLoader([source, BatchTransform(8, pad_last_batch=True)])
    check_loader(loader)
    check_resume(loader)


def as_it_is(element: Any) -> Any:
    return element


@pytest.mark.parametrize(
    "options", [{"workers": 2}, {"workers": 2, "worker_type": "process"}], ids=str
)
def test_host_stages_see_the_same(stored: Any, options: Any) -> None:
    source = MinariSource("toy/hdf5-v0", ordering="sequential")
    stages = [source, HostMapTransform(as_it_is), BatchTransform(9)]
    with DataLoader(stages, **options) as loader:
        ((batch, _),) = loader
        same(batch, transitions(stored["hdf5"]))


def test_neither_minari_nor_the_environment_is_needed(played: Any, stored: Any) -> None:
    code = (
        "import sys, cereal\n"
        "for name in ('toy/hdf5-v0', 'toy/arrow-v0', 'toy/parquet-v0', 'cartpole/test-v0'):\n"
        "    cereal.rl.MinariSource(name)\n"
        "assert not {'minari', 'gymnasium'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})


def test_the_folder_in_the_home_of_the_user(
    played: Any, root: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    shutil.copytree(root / "cartpole", tmp_path / ".minari" / "datasets" / "cartpole")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MINARI_DATASETS_PATH")
    assert len(MinariSource("cartpole/test-v0", episodes=[3])) == 1


# Bad input


@pytest.fixture
def copied(stored: Any, root: Path, tmp_path: Path) -> dict[str, Path]:
    """Copies of the datasets, to be damaged."""
    for name in FORMATS:
        shutil.copytree(root / "toy" / f"{name}-v0", tmp_path / name)
    return {name: tmp_path / name for name in FORMATS}


def refused(folder: Any, match: str, **options: Any) -> None:
    with pytest.raises(PipelineError, match=match):
        MinariSource(folder, **options)


def test_an_episode_without_an_end_names_its_file(copied: Any) -> None:
    with h5py.File(copied["hdf5"] / "data" / "main_data.hdf5", "a") as file:
        file["episode_1/truncations"][...] = False
    refused(
        copied["hdf5"], r"episode 1 of '.*main_data.hdf5' has no end.*`unfinished=\"truncate\"`"
    )
    source = MinariSource(copied["hdf5"], unfinished="truncate")
    assert whole(source)["info"]["truncated"].sum() == 1


def test_parts_that_are_missing_or_too_short(copied: Any) -> None:
    path = copied["hdf5"] / "data" / "main_data.hdf5"
    with h5py.File(path, "a") as file:
        file["episode_2/rewards"].resize((2,))
    refused(path.parent, r"episode 2 of '.*' *: `terminations` has 3 rows, but there are 2 rewards")
    with h5py.File(path, "a") as file:
        del file["episode_2/rewards"]
    refused(path.parent, r"episode 2 of .* has no key 'rewards'; it has \['actions', 'infos'")
    with h5py.File(path, "a") as file:
        for name in list(file):
            del file[name]
    refused(path.parent, "has no episodes")


def test_files_that_cannot_be_read(copied: Any) -> None:
    (copied["hdf5"] / "data" / "main_data.hdf5").write_bytes(b"no HDF5")
    refused(copied["hdf5"], r"main_data.hdf5' cannot be opened")
    for name in ("arrow", "parquet"):
        (part,) = (copied[name] / "data" / "1").glob(f"*.{name}")
        part.write_bytes(b"no table")
        refused(copied[name], rf"1/part-0.{name}' cannot be read")
        part.unlink()
        refused(copied[name], rf"data/1' has no file '\*.{name}'")


@pytest.mark.parametrize("name", FORMATS)
def test_an_episode_that_is_missing_is_not_lost_in_silence(copied: Any, name: str) -> None:
    if name == "hdf5":
        with h5py.File(copied[name] / "data" / "main_data.hdf5", "a") as file:
            del file["episode_2"]
    else:
        shutil.rmtree(copied[name] / "data" / "2")
    refused(copied[name], r"has no episode 2, but 'metadata.json' says that there are 3")
    assert len(MinariSource(copied[name], episodes=[0, 1])) == 6


def test_keys_that_look_like_those_of_a_tuple(root: Path) -> None:
    space = spaces.Dict({"_index_0": spaces.Discrete(3), "_index_1": spaces.Discrete(3)})
    seen = {"_index_0": np.arange(2), "_index_1": np.arange(2)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = {"rewards": [1.0], "terminations": [True], "truncations": [False]}
        one = minari.data_collector.EpisodeBuffer(
            observations=seen, actions=np.zeros(1, np.int64), **steps
        )
        minari.create_dataset_from_buffers(
            "toy/keys-v0", [one], observation_space=space, action_space=spaces.Discrete(2)
        )
    assert sorted(MinariSource("toy/keys-v0")[0]["state"]) == ["_index_0", "_index_1"]


def test_an_image_that_cannot_be_decoded(copied: Any) -> None:
    with h5py.File(copied["hdf5"] / "data" / "main_data.hdf5", "a") as file:
        images = file["episode_1/observations/pair/_index_1"]
        images[1] = np.zeros(9, np.uint8) if images.ndim == 1 else 0
    refused(copied["hdf5"], r"episode 1 of .*: row 1 of `observations\['pair'\]\[1\]` is an image")


def test_wrong_episodes_and_infos(stored: Any) -> None:
    refused("toy/arrow-v0", r"there is no episode 3; '.*' has the episodes 0 to 2", episodes=[3])
    refused("toy/hdf5-v0", r"`episodes` is empty", episodes=[])
    refused("toy/hdf5-v0", r"`episodes` must be numbers of episodes, got 'train'", episodes="train")
    for wrong in ([True, False, True], np.array([True, False, True]), [1.5]):
        refused("toy/hdf5-v0", r"`episodes` must be numbers of episodes", episodes=wrong)
    refused("toy/hdf5-v0", r"has no info 'mass'; it has \['deep', 'speed'\]", infos=["mass"])
    refused("toy/parquet-v0", r"has no info 'mass'; it has \['deep', 'speed'\]", infos=["mass"])


def test_observations_that_are_text(root: Path) -> None:
    steps = {"rewards": [1.0], "terminations": [True], "truncations": [False]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            "toy/text-v0",
            [
                minari.data_collector.EpisodeBuffer(
                    observations=["go", "stop"], actions=np.zeros(1, np.int64), **steps
                )
            ],
            observation_space=spaces.Text(8),
            action_space=spaces.Discrete(2),
        )
    refused(
        "toy/text-v0", r"episode 0 of .*: `observations` must be an array of numbers, got object"
    )


def test_the_block_of_the_docs_runs(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))  # and put back afterwards
    text = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    section = text.partition("## Episodes\n")[2].partition("\n## ")[0]
    code = section.partition("```python bridges\n")[2].partition("```")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari asks for the names of authors
        names: dict[str, Any] = {}
        exec(code, names)
        assert len(names["source"]) > 8
        names.clear()
        gc.collect()
