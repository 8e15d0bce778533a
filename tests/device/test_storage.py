from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding
from tests.aligned import aligned

import cereal
from cereal import dataset_to_jax
from cereal.device.storage import as_device

CPU = jax.devices("cpu")


class Pair(NamedTuple):
    image: Any
    label: Any


class Rows:
    """A plain Python dataset."""

    def __init__(self, elements: list[Any]) -> None:
        self.elements = elements

    def __len__(self) -> int:
        return len(self.elements)

    def __getitem__(self, index: int) -> Any:
        return self.elements[index]


class WithArrays:
    def as_array_dict(self) -> dict[str, np.ndarray]:
        return {"x": np.arange(4.0)}


# Devices


def test_devices_are_read_from_names_devices_and_shardings() -> None:
    sharding = SingleDeviceSharding(CPU[1])
    assert as_device("cpu", "Test") == CPU[0]
    assert as_device("cpu:2", "Test") == CPU[2]
    assert as_device(CPU[3], "Test") is CPU[3]
    assert as_device(sharding, "Test") is sharding


def test_none_is_the_default_device() -> None:
    assert as_device(None, "Test") == jax.devices()[0]
    with jax.default_device(CPU[2]):
        assert as_device(None, "Test") == CPU[2]


@pytest.mark.parametrize("name", ["cpu:4", "cpu:x", "abacus", "abacus:1", "cpu:-1"])
def test_an_unknown_device_is_refused_with_those_that_there_are(name: str) -> None:
    message = rf"Test: there is no device {name!r}; this process has cpu:0, cpu:1, cpu:2, cpu:3"
    with pytest.raises(cereal.PipelineError, match=message):
        as_device(name, "Test")


@pytest.mark.parametrize("device", [0, 1.5, CPU])
def test_what_is_no_device_is_refused(device: Any) -> None:
    message = f"Test: `device` must be a jax.Device, .* got {type(device).__name__}"
    with pytest.raises(cereal.PipelineError, match=message):
        as_device(device, "Test")


# dataset_to_jax


@pytest.mark.parametrize(
    ("storage", "device"),
    [("cpu", CPU[0]), ("cpu:3", CPU[3]), (CPU[1], CPU[1]), (None, jax.devices()[0])],
)
def test_data_is_committed_to_the_storage_device(storage: Any, device: Any) -> None:
    data = dataset_to_jax({"x": np.arange(4), "y": jnp.arange(4)}, storage_device=storage)
    for leaf in jax.tree.leaves(data):
        assert leaf.devices() == {device}
        assert leaf.committed


def test_data_is_stored_on_the_cpu_unless_said_otherwise() -> None:
    assert dataset_to_jax(np.arange(3)).devices() == {CPU[0]}


@pytest.mark.parametrize(
    "tree",
    [
        np.arange(6.0).reshape(3, 2),
        {"x": np.arange(3), "y": (np.arange(3), [jnp.arange(3)])},
        Pair(np.zeros((3, 2), np.uint8), np.arange(3)),
    ],
)
def test_trees_of_arrays_keep_their_structure_and_values(tree: Any) -> None:
    data = dataset_to_jax(tree)
    assert jax.tree.structure(data) == jax.tree.structure(tree)
    jax.tree.map(np.testing.assert_array_equal, data, tree)


def test_writing_into_the_dataset_afterwards_changes_nothing() -> None:
    given = np.arange(1_000, dtype=np.float32)
    data = dataset_to_jax(given)
    given[:] = 0
    np.testing.assert_array_equal(data, np.arange(1_000))


def test_64_bit_and_foreign_byte_orders_become_what_jax_has() -> None:
    data = dataset_to_jax({"f": np.arange(3.0), "i": np.arange(3), "b": np.arange(3, dtype=">i2")})
    assert {name: leaf.dtype.name for name, leaf in data.items()} == {
        "f": "float32",
        "i": "int32",
        "b": "int16",
    }


def test_what_has_as_array_dict_is_asked_for_it() -> None:
    np.testing.assert_array_equal(dataset_to_jax(WithArrays())["x"], np.arange(4))


def test_the_elements_of_a_python_dataset_are_stacked() -> None:
    elements = [{"image": np.full((2, 2), i, np.uint8), "label": i} for i in range(5)]
    for dataset in (Rows(elements), elements):
        data = dataset_to_jax(dataset)
        assert data["image"].shape == (5, 2, 2)
        assert data["image"].dtype == jnp.uint8
        np.testing.assert_array_equal(data["label"], np.arange(5))
    pairs = dataset_to_jax(Rows([(np.zeros(3), 1.5), (np.ones(3), 2.5)]))
    assert [leaf.tolist() for leaf in pairs] == [[[0, 0, 0], [1, 1, 1]], [1.5, 2.5]]


def test_what_it_makes_is_data_for_a_source() -> None:
    source = cereal.ArraySampleSource(dataset_to_jax(cereal.DigitsDataset("test")))
    assert len(source) == 297


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Rows([]), "`dataset` is empty"),
        ([], "`dataset` is empty"),
        (7, "must be a tree of arrays or have `__len__` and `__getitem__`, got int"),
        (object(), "must be a tree of arrays or have `__len__` and `__getitem__`, got object"),
        (Rows([np.zeros(2), np.zeros(3)]), "do not stack into arrays .* one structure and one"),
        (Rows([{"x": 1}, {"y": 1}]), "do not stack into arrays .* one structure and one shape"),
        (Rows([{"x": 1}, (2,)]), "do not stack into arrays"),
        (Rows(["a", "b"]), r"`dataset` must be an array of numbers, got <U1\[2\]: text"),
        ({"x": np.array(["a"])}, r"`dataset\['x'\]` must be an array of numbers"),
        (Rows([{"x": object()}]), r"`dataset\['x'\]` must be an array of numbers"),
    ],
)
def test_what_cannot_become_arrays_is_refused(dataset: Any, message: str) -> None:
    with pytest.raises(cereal.PipelineError, match="^dataset_to_jax: .*" + message):
        dataset_to_jax(dataset)


def test_an_unknown_storage_device_is_refused() -> None:
    with pytest.raises(cereal.PipelineError, match=r"^dataset_to_jax: there is no device 'disk'"):
        dataset_to_jax(np.arange(3), storage_device="disk")


def test_a_list_is_a_list_of_elements() -> None:
    elements = [{"x": np.full(2, i, np.float32)} for i in range(3)]
    data = cereal.dataset_to_jax(elements)
    np.testing.assert_array_equal(data["x"], [[0, 0], [1, 1], [2, 2]])
    whole = (np.zeros((3, 2), np.float32), np.arange(3, dtype=np.int32))
    assert [leaf.shape for leaf in cereal.dataset_to_jax(whole)] == [(3, 2), (3,)]
    with pytest.raises(cereal.PipelineError, match="for whole arrays write a tuple or a dict"):
        cereal.dataset_to_jax(list(whole))


@pytest.mark.parametrize("columns", [16, 3])  # in words, and as it is
def test_data_may_be_written_to_as_soon_as_the_source_is_built(columns: int) -> None:
    @jax.jit
    def long() -> Any:
        return jnp.linalg.matrix_power(jnp.eye(300), 60)

    for number in range(1, 6):
        data = aligned((4096, columns), np.uint8)
        data[:] = number
        long()  # the device is busy, and copies later
        source = cereal.ArraySampleSource(data, ordering="sequential")
        data[:] = 0
        assert (np.asarray(source.take(jnp.arange(4096))) == number).all()
