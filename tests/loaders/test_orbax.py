"""The loader's state beside the model's in checkpoints of Orbax."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from tests.pipeline.counter import Counter
from tests.rl.corridor import ONE, walk

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DiskSampleSource,
    IterableSource,
    RandomMapTransform,
)
from cereal.testing import assert_same

pytestmark = pytest.mark.usefixtures("orbax_threads_end")
N = 22
PARAMS = {"w": jnp.arange(3.0), "b": jnp.zeros(2)}


def noise(x: Any, key: Any) -> Any:
    return x + jax.random.uniform(key)


def memory(n: int = N, size: int = 4) -> DataLoader[Any]:
    source = ArraySampleSource(np.arange(float(n)), ordering="shuffle")
    return DataLoader([source, RandomMapTransform(noise), BatchTransform(size)])


def disk(n: int = N, size: int = 4, **options: Any) -> DataLoader[Any]:
    source = DiskSampleSource(n, np.float32, ordering="shuffle")
    return DataLoader([source, BatchTransform(size)], **options)


def iterable() -> DataLoader[Any]:
    return DataLoader([IterableSource(lambda: map(np.float32, range(N))), BatchTransform(4)])


def rollout() -> DataLoader[Any]:
    return DataLoader([walk(num_envs=2), BatchTransform(4)])


def stream() -> DataLoader[Any]:
    return DataLoader([Counter(N), BatchTransform(4)])


KINDS = {f.__name__: f for f in (memory, disk, iterable, rollout, stream)}


def begun(loader: DataLoader[Any], key: int, steps: int = 0) -> Any:
    policy = ONE if "Rollout" in repr(loader) else None
    batches = loader.iterate(loader.init_state(key, policy), epochs=None)
    taken(batches, steps)
    return batches


def taken(batches: Any, count: int) -> list[Any]:
    return [jax.device_get(pair) for pair in itertools.islice(batches, count)]


# CheckpointManager


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ocp.CheckpointManager]:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        yield manager


def save(manager: ocp.CheckpointManager, step: int, data: Any) -> None:
    manager.save(step, args=ocp.args.Composite(model=ocp.args.StandardSave(PARAMS), data=data))
    manager.wait_until_finished()


def restored(manager: ocp.CheckpointManager, data: Any) -> Any:
    wanted = ocp.args.Composite(model=ocp.args.StandardRestore(PARAMS), data=data)
    found = manager.restore(manager.latest_step(), args=wanted)
    assert_same(found["model"], PARAMS, "the model")
    return found["data"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_save_holds_the_model_and_the_place_in_the_data(
    kind: str, manager: ocp.CheckpointManager
) -> None:
    with KINDS[kind]() as loader, KINDS[kind]() as other:
        batches = begun(loader, 3, steps=7)
        save(manager, 7, ocp.args.JsonSave(batches.get_state()))
        rest = begun(other, 0)
        rest.set_state(restored(manager, ocp.args.JsonRestore()))
        assert_same(taken(rest, 8), taken(batches, 8), "the rest")


def test_training_goes_on_while_it_is_saved(manager: ocp.CheckpointManager) -> None:
    batches = begun(memory(), 3, steps=2)
    data = ocp.args.JsonSave(batches.get_state())
    manager.save(2, args=ocp.args.Composite(model=ocp.args.StandardSave(PARAMS), data=data))
    later = taken(batches, 5)
    manager.wait_until_finished()
    batches.set_state(restored(manager, ocp.args.JsonRestore()))
    assert_same(taken(batches, 5), later, "from where it was when it was saved")


def test_the_batch_size_and_the_workers_may_change(manager: ocp.CheckpointManager) -> None:
    with disk(size=4, workers=2) as loader, disk(size=3, workers=1, prefetch=5) as other:
        batches = begun(loader, 3, steps=2)
        save(manager, 2, ocp.args.JsonSave(batches.get_state()))
        rest = begun(other, 0)
        rest.set_state(restored(manager, ocp.args.JsonRestore()))
        after = np.concatenate([batch for batch, _ in taken(rest, 12)])
        expected = np.concatenate([batch for batch, _ in taken(batches, 9)])
    np.testing.assert_array_equal(after, expected)


@pytest.mark.parametrize("devices", [1, 2])
def test_the_devices_may_change(devices: int, manager: ocp.CheckpointManager) -> None:
    def over(count: int) -> DataLoader[Any]:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:count]), "batch")
        spread = jax.NamedSharding(mesh, jax.P("batch"))
        source = ArraySampleSource(np.arange(float(N)), ordering="shuffle")
        return DataLoader([source, BatchTransform(4), cereal.DevicePutTransform(spread)])

    batches = begun(over(4), 3, steps=2)
    save(manager, 2, ocp.args.JsonSave(batches.get_state()))
    rest = begun(over(devices), 0)
    rest.set_state(restored(manager, ocp.args.JsonRestore()))
    assert len(next(rest)[0].devices()) == devices
    assert len(next(batches)[0].devices()) == 4
    assert_same(taken(rest, 8), taken(batches, 8), "the rest")


def test_another_pipeline_refuses_what_was_restored(manager: ocp.CheckpointManager) -> None:
    save(manager, 2, ocp.args.JsonSave(begun(memory(), 3, steps=2).get_state()))
    with pytest.raises(cereal.StateError, match="it has length=22, this one has length=30"):
        begun(memory(30), 0).set_state(restored(manager, ocp.args.JsonRestore()))


# States as they are: pytrees of arrays


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_saved_like_a_model(kind: str, manager: ocp.CheckpointManager) -> None:
    with KINDS[kind]() as loader, KINDS[kind]() as other:
        batches = begun(loader, 3, steps=7)
        save(manager, 7, ocp.args.StandardSave({"place": batches.state}))
        rest = begun(other, 0)
        rest.state = restored(manager, ocp.args.StandardRestore({"place": rest.state}))["place"]
        assert_same(taken(rest, 8), taken(batches, 8), "the rest")


@pytest.mark.parametrize(
    "other",
    [
        memory(30),
        DataLoader([ArraySampleSource(np.arange(float(N)), ordering="shuffle")]),
        DataLoader([cereal.RangeSource(N), RandomMapTransform(noise)]),
    ],
)
def test_the_arrays_of_another_pipeline_are_refused(
    other: DataLoader[Any], manager: ocp.CheckpointManager
) -> None:
    """Orbax refuses them, since their name says which pipeline it was; its error has both names."""
    save(manager, 2, ocp.args.StandardSave(begun(memory(), 3, steps=2).state))
    message = r"(?s)do not match.*words\(length=22, ordering=shuffle, random_stages=1\)"
    with pytest.raises(ValueError, match=message):
        restored(manager, ocp.args.StandardRestore(other.init_state(0)))


def test_the_arrays_of_another_batch_size_are_welcome(manager: ocp.CheckpointManager) -> None:
    loader, other = memory(size=4), memory(size=3)
    save(manager, 2, ocp.args.StandardSave(begun(loader, 3, steps=2).state))
    state = restored(manager, ocp.args.StandardRestore(other.init_state(0)))
    assert (int(state.epoch), int(state.offset)) == (0, 8)
    assert_same(other.next_batch(state), other.next_batch(begun(loader, 3, 2).state), "a step")


# The API of Orbax v1: an iterator is saved and restored like any other part

V1 = ("orbax.checkpoint.v1", "orbax.checkpoint.experimental.v1")


@pytest.fixture
def v1() -> Any:
    names = [name for name in V1 if importlib.util.find_spec(name) is not None]
    assert names, f"this version of Orbax has none of {', '.join(V1)}"
    return importlib.import_module(names[0])


@pytest.mark.parametrize("kind", KINDS)
def test_an_iterator_is_a_part_of_a_checkpoint(kind: str, v1: Any, tmp_path: Path) -> None:
    with KINDS[kind]() as loader, KINDS[kind]() as other:
        batches = begun(loader, 3, steps=7)
        assert isinstance(batches, v1.StatefulCheckpointable)
        v1.save_checkpointables(tmp_path / "7", {"model": PARAMS, "data": batches})
        rest = begun(other, 0)
        found = v1.load_checkpointables(tmp_path / "7", {"model": PARAMS, "data": rest})
        assert found["data"] is rest
        assert_same(found["model"], PARAMS, "the model")
        assert_same(taken(rest, 8), taken(batches, 8), "the rest")


def test_an_iterator_may_go_on_while_it_is_written(v1: Any, tmp_path: Path) -> None:
    batches = begun(memory(), 3, steps=2)
    parts = {"model": PARAMS, "data": batches}
    writing = v1.save_checkpointables_async(tmp_path / "2", parts)
    later = taken(batches, 5)
    writing.result()
    v1.load_checkpointables(tmp_path / "2", parts)
    assert_same(taken(batches, 5), later, "from where it was when it was saved")


def test_a_checkpointer_saves_iterators_step_by_step(v1: Any, tmp_path: Path) -> None:
    batches = begun(memory(), 3)
    with v1.training.Checkpointer(tmp_path) as checkpointer:
        given = []
        for step in range(3):
            given += taken(batches, 1)
            checkpointer.save_checkpointables(step, {"model": PARAMS, "data": batches})
        checkpointer.load_checkpointables(0, {"model": PARAMS, "data": batches})
    assert_same(taken(batches, 2), given[1:], "from the first step")


def test_an_iterator_of_another_pipeline_is_refused_and_stays(v1: Any, tmp_path: Path) -> None:
    v1.save_checkpointables(tmp_path / "2", {"data": begun(memory(), 3, steps=2)})
    other = begun(memory(30), 0, steps=1)
    before = other.get_state()
    with pytest.raises(cereal.StateError, match="it has length=22, this one has length=30"):
        v1.load_checkpointables(tmp_path / "2", {"data": other})
    assert other.get_state() == before


@pytest.mark.parametrize("text", [None, "", '{"version": 1, "kin'])
def test_a_damaged_file_is_refused_by_its_name(text: str | None, v1: Any, tmp_path: Path) -> None:
    batches = begun(memory(), 3, steps=2)
    v1.save_checkpointables(tmp_path / "2", {"data": batches})
    [path] = tmp_path.glob("2/data/*.json")
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(cereal.StateError, match=r"read from .*loader_state.json .*another step"):
        v1.load_checkpointables(tmp_path / "2", {"data": batches})


def test_the_arrays_of_another_pipeline_are_refused_here_too(v1: Any, tmp_path: Path) -> None:
    v1.save_checkpointables(tmp_path / "2", {"data": begun(memory(), 3, steps=2).state})
    found = v1.load_checkpointables(tmp_path / "2", {"data": memory().init_state(0)})
    assert int(found["data"].offset) == 8
    with pytest.raises(Exception, match="data") as caught:
        v1.load_checkpointables(tmp_path / "2", {"data": memory(30).init_state(0)})
    assert "words(length=22, ordering=shuffle" in f"{caught.value} {caught.value.__cause__}"
