"""Minari: files that are damaged, or that say two things; and what must not be taken for that."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal import PipelineError
from cereal.rl import MinariSource
from cereal.rl.offline.minari_arrow import arrow_episodes
from cereal.rl.offline.minari_folder import open_folder

pytestmark = pytest.mark.bridges
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own imports
    gymnasium = import_module("gymnasium")
    minari = import_module("minari")
    h5py = import_module("h5py")
    arrow = import_module("pyarrow")
    ipc = import_module("pyarrow.ipc")
    parquet = import_module("pyarrow.parquet")
spaces = gymnasium.spaces
FORMATS, TABLES = ("hdf5", "arrow", "parquet"), ("arrow", "parquet")
STEPS = 12
OBSERVATIONS = spaces.Dict(
    {
        "a": spaces.Box(-9, 9, (2, 2), np.float32),
        "pair": spaces.Tuple((spaces.Discrete(50), spaces.Box(-9, 9, (3,), np.float64))),
    }
)


def buffer(number: int) -> Any:
    rng, rows = np.random.default_rng(number), STEPS + 1
    pair = (np.arange(rows), rng.normal(size=(rows, 3)))
    return minari.data_collector.EpisodeBuffer(
        observations={"a": rng.normal(size=(rows, 2, 2)).astype(np.float32), "pair": pair},
        actions=np.arange(STEPS) % 3,
        rewards=np.arange(STEPS) + 100.0 * number,
        terminations=np.arange(STEPS) == STEPS - 1,
        truncations=np.zeros(STEPS, bool),
        infos={"l": [[t, t + 1] for t in range(rows)], "late": [None, *range(1, rows)]},
    )


def created(name: str, kind: str, numbers: range) -> Any:
    made = [buffer(number) for number in numbers]
    if kind == "hdf5":  # for which Minari writes neither of these infos
        made = [dataclasses.replace(each, infos={"z": np.arange(STEPS + 1)}) for each in made]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nobody is named as its author
        return minari.create_dataset_from_buffers(
            name,
            made,
            observation_space=OBSERVATIONS,
            action_space=spaces.Discrete(3),
            data_format=kind,
        )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A dataset of four episodes in each format."""
    folder = tmp_path_factory.mktemp("minari")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        for kind in FORMATS:
            created(f"toy/{kind}-v0", kind, range(4))
        yield folder


@pytest.fixture
def data(root: Path, tmp_path: Path) -> dict[str, Path]:
    """Copies, to be damaged: the folders with the metadata."""
    for kind in FORMATS:
        shutil.copytree(root / "toy" / f"{kind}-v0", tmp_path / kind)
    return {kind: tmp_path / kind / "data" for kind in FORMATS}


def refused(folder: Any, match: str, **options: Any) -> None:
    with pytest.raises(PipelineError, match=match):
        MinariSource(folder, **options)


def whole(folder: Path, **options: Any) -> Any:
    source = MinariSource(folder, ordering="sequential", **options)
    return source.take(np.arange(len(source)))


def say(folder: Path, **changes: Any) -> None:
    """Changes the metadata; None takes a key out."""
    path = folder / "metadata.json"
    known = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: each for key, each in known.items() if each is not None}))


def space_with(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes the subspaces of observations."""
    space = json.loads(json.loads((folder / "metadata.json").read_text())["observation_space"])
    change(space["subspaces"])
    say(folder, observation_space=json.dumps(space))


def read(path: Path) -> Any:
    return ipc.open_file(path).read_all() if path.suffix == ".arrow" else parquet.read_table(path)


def write(table: Any, path: Path) -> None:
    if path.suffix == ".parquet":
        return parquet.write_table(table, path)
    with ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    return None


def with_column(folder: Path, kind: str, name: str, change: Callable[[list[Any]], Any]) -> None:
    """Changes the rows of a column of episode 1."""
    path = folder / "1" / f"part-0.{kind}"
    table = read(path)
    column = table.column(name)
    rows = arrow.array(change(column.to_pylist()), column.type)
    write(table.set_column(table.column_names.index(name), name, rows), path)


def without_row(at: int) -> Callable[[list[Any]], list[Any]]:
    return lambda rows: [None if row == at else each for row, each in enumerate(rows)]


# Rows without a value


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminations"])
def test_a_row_without_a_value_is_refused(data: Any, kind: str, name: str) -> None:
    with_column(data[kind], kind, name, without_row(1))
    refused(data[kind], rf"episode 1 of '.*': row 1 of `{name}` has no value .*`episodes=\[...\]`")
    assert len(MinariSource(data[kind], episodes=[0, 2])) == 2 * STEPS


@pytest.mark.parametrize("kind", TABLES)
def test_a_value_that_is_missing_within_a_row_is_refused(data: Any, kind: str) -> None:
    def change(rows: list[Any]) -> list[Any]:
        rows[3]["a"][2] = None
        return rows

    with_column(data[kind], kind, "observations", change)
    refused(data[kind], r"episode 1 of '.*': row 3 of `observations\['a'\]` has no value")


@pytest.mark.parametrize("kind", TABLES)
def test_the_padding_at_the_end_needs_no_value(data: Any, kind: str) -> None:
    wanted = whole(data[kind])
    for name in ("actions", "rewards", "terminations", "truncations"):
        with_column(data[kind], kind, name, without_row(STEPS))
    found = whole(data[kind])
    assert found["action"].dtype == wanted["action"].dtype
    np.testing.assert_array_equal(found["action"], wanted["action"])
    np.testing.assert_array_equal(found["reward"], wanted["reward"])


@pytest.mark.parametrize("kind", TABLES)
def test_an_info_may_have_no_value_at_the_reset(data: Any, kind: str) -> None:
    late = whole(data[kind], infos=["late"])["info"]["late"]
    np.testing.assert_array_equal(late, np.tile(np.arange(1, STEPS + 1), 4))


# Lists in infos


@pytest.mark.parametrize("kind", TABLES)
def test_an_info_of_lists_of_one_length_is_an_array(data: Any, kind: str) -> None:
    found = whole(data[kind], infos=["l"])["info"]["l"]
    assert found.shape == (4 * STEPS, 2)
    np.testing.assert_array_equal(found[:STEPS, 1], np.arange(2, STEPS + 2))


@pytest.mark.parametrize("kind", TABLES)
def test_an_info_of_lists_of_several_lengths_is_refused(data: Any, kind: str) -> None:
    def change(rows: list[Any]) -> list[Any]:
        rows[3]["l"].append(7)
        return rows

    with_column(data[kind], kind, "infos", change)
    match = r"episode 1 of '.*': the rows of `infos\['l'\]` are lists of 2 to 3 .*`infos=\[...\]`"
    refused(data[kind], match, infos=["l"])
    assert len(MinariSource(data[kind], infos=["late"])) == 4 * STEPS


# The number of episodes


@pytest.mark.parametrize("kind", FORMATS)
def test_more_episodes_than_the_metadata_say_are_refused(data: Any, kind: str) -> None:
    say(data[kind], total_episodes=2)
    refused(data[kind], r"has 4 episodes, but 'metadata.json' says that there are 2; get the")
    assert len(MinariSource(data[kind], episodes=range(4))) == 4 * STEPS
    say(data[kind], total_episodes=None, total_steps=None)
    assert len(MinariSource(data[kind])) == 4 * STEPS


@pytest.mark.parametrize("kind", FORMATS)
def test_another_number_of_steps_than_the_metadata_say_is_a_warning(data: Any, kind: str) -> None:
    say(data[kind], total_steps=50)
    with pytest.warns(UserWarning, match=r"have 48 steps, but 'metadata.json' says .* 50"):
        assert len(MinariSource(data[kind])) == 4 * STEPS
    assert len(MinariSource(data[kind], episodes=range(4))) == 4 * STEPS


@pytest.mark.parametrize("kind", FORMATS)
def test_two_names_of_one_episode_are_refused(data: Any, kind: str) -> None:
    if kind == "hdf5":
        with h5py.File(data[kind] / "main_data.hdf5", "a") as file:
            file.copy("episode_2", "episode_02")
    else:
        shutil.copytree(data[kind] / "2", data[kind] / "02")
    refused(data[kind], r"has '(episode_)?02' and '(episode_)?2', which are both episode 2; take")


@pytest.mark.parametrize("kind", FORMATS)
def test_datasets_that_minari_has_put_together_are_read(root: Path, kind: str) -> None:
    two = [created(f"{kind}/part{at}-v0", kind, range(at, at + 2)) for at in (0, 2)]
    both = minari.combine_datasets(two, f"{kind}/both-v0")
    assert len(MinariSource(f"{kind}/both-v0")) == 4 * STEPS
    both.storage.update_from_storage(two[0].storage)
    assert len(MinariSource(f"{kind}/both-v0")) == 6 * STEPS


# Files of an episode


@pytest.mark.parametrize("kind", TABLES)
def test_parts_of_an_episode_are_read_in_the_order_of_their_numbers(data: Any, kind: str) -> None:
    wanted = whole(data[kind], episodes=[1])["reward"]
    first = data[kind] / "1" / f"part-0.{kind}"
    table = read(first)
    for at in range(STEPS + 1):
        write(table.slice(at, 1), first.with_name(f"part-{at}.{kind}"))
    np.testing.assert_array_equal(whole(data[kind], episodes=[1])["reward"], wanted)


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="it needs Linux")
def test_episodes_do_not_keep_memory_maps_of_their_files(data: Any) -> None:
    held = list(arrow_episodes(open_folder(data["arrow"], "MinariSource"), None, True))
    assert len(held) == 4
    assert "part-0.arrow" not in Path("/proc/self/maps").read_text()


# HDF5


def changed(folder: Path, change: Callable[[Any], Any]) -> Path:
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        change(file)
    return folder


def replaced(name: str) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        del file[name]
        file[name] = np.zeros(3)

    return change


def test_a_group_that_is_no_number_of_an_episode(data: Any) -> None:
    folder = changed(data["hdf5"], lambda file: file.create_group("episode_foo"))
    refused(folder, r"data' has 'episode_foo', which is no name of an episode; rename it")


def test_an_episode_that_is_an_array(data: Any) -> None:
    folder = changed(data["hdf5"], replaced("episode_1"))
    refused(folder, r"episode 1 of '.*main_data.hdf5' is no group of HDF5, but one array; get the")


def test_infos_that_are_an_array_matter_only_if_they_are_read(data: Any) -> None:
    folder = changed(data["hdf5"], replaced("episode_1/infos"))
    refused(folder, r"episode 1 of .*: `infos` is no group .*`infos=False`", infos=True)
    assert len(MinariSource(folder)) == 4 * STEPS


def test_a_tuple_without_its_first_part(data: Any) -> None:
    def change(file: Any) -> None:
        del file["episode_1/observations/pair/_index_0"]

    refused(
        changed(data["hdf5"], change),
        r"episode 1 of '.*': `observations\['pair'\]` has the parts \['_index_1'\], but its space",
    )


def test_a_shape_that_cannot_be_true_fills_no_memory(data: Any) -> None:
    def change(file: Any) -> None:
        file["episode_1/rewards"].resize((1 << 36,))

    refused(
        changed(data["hdf5"], change),
        r"episode 1 of '.*' cannot be read: ValueError: an array of shape \(68719476736,\) is said",
    )


def test_bytes_that_are_changed_lead_to_an_error_of_cereal(data: Any) -> None:
    path, errors = data["hdf5"] / "main_data.hdf5", []
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(60):
        bad = np.frombuffer(good, np.uint8).copy()
        bad[rng.integers(0, len(bad), 30)] = rng.integers(0, 256, 30)
        path.write_bytes(bad.tobytes())
        try:
            MinariSource(path.parent)
        except PipelineError as error:
            errors.append(str(error))
    assert any("cannot be read: " in error for error in errors)
    assert all("main_data.hdf5" in error or str(path.parent) in error for error in errors)


# Metadata


@pytest.mark.parametrize("kind", FORMATS)
def test_a_shape_in_the_metadata_that_is_not_that_of_the_data(data: Any, kind: str) -> None:
    space_with(data[kind], lambda inner: inner["a"].update(shape=[2, 3]))
    if kind == "hdf5":  # as rows of four numbers, they are no images
        for n in range(4):
            changed(data[kind], lambda file, n=n: flat(file, f"episode_{n}/observations/a"))
    refused(
        data[kind],
        r"episode 0 of '.*': each row of `observations\['a'\]` has the shape \(4,\), but its space "
        r"in 'metadata.json' has \(2, 3\)",
    )


def flat(file: Any, name: str) -> None:
    rows = file[name][()]
    del file[name]
    file[name] = rows.reshape(len(rows), -1)


@pytest.mark.parametrize("kind", TABLES)
def test_a_space_with_other_keys_than_the_data(data: Any, kind: str) -> None:
    parts = r"episode 0 of '.*': `observations` has the parts \['a', 'pair'\], but its space in .*"
    space_with(data[kind], lambda inner: inner.update(t=inner["a"]))
    refused(data[kind], parts + r"has \['a', 'pair', 't'\]; get the dataset again")
    space_with(data[kind], lambda inner: (inner.pop("t"), inner.pop("a")))
    refused(data[kind], parts + r"has \['pair'\]; get the dataset again")


@pytest.mark.parametrize("kind", FORMATS)
def test_metadata_that_are_no_metadata(data: Any, kind: str) -> None:
    folder = data[kind]
    for wrong in ("4", -1, 4.5, True):
        say(folder, total_episodes=wrong)
        refused(folder, r"metadata.json': `total_episodes` must be a whole number, got")
    say(folder, total_episodes=4)
    space_with(folder, lambda inner: inner["a"].pop("shape"))
    refused(folder, r"metadata.json': `observation_space\['a'\]` is no space that Minari writes")
    for wrong in (5, "5", [], {"type": 3}, {"type": "Dict"}, {"type": "Dict", "subspaces": 1}):
        say(folder, observation_space=wrong)
        refused(folder, r"metadata.json': `observation_space` is no space that Minari writes, got")
