from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import cereal
from cereal.testing import check_transform

CPU = jax.devices("cpu")
DATA = {"x": np.arange(40, dtype=np.float32).reshape(10, 4), "y": np.arange(10, dtype=np.int32)}
SOURCE = cereal.ArraySampleSource(DATA, ordering="sequential")
PAD = cereal.BatchTransform(4, pad_last_batch=True)


def spread(kind: str) -> NamedSharding:
    """Rows over four devices."""
    if kind == "explicit":
        mesh = jax.make_mesh((4,), ("data",))
    else:
        mesh = Mesh(np.array(CPU[:4]), ("data",))
    return NamedSharding(mesh, PartitionSpec("data"))


def loader_to(device: Any, *more: Any) -> cereal.DataLoader[Any]:
    return cereal.DataLoader([SOURCE, PAD, cereal.DevicePutTransform(device), *more])


def handed_out(loader: cereal.DataLoader[Any]) -> list[Any]:
    """Batches by both roads that lead out of compiled code."""
    state = loader.init_state(0)
    pairs = list(loader.iterate(state))
    for _ in range(loader.steps_per_epoch):
        batch, state, mask = loader.next_batch(state)
        pairs.append((batch, mask))
    return pairs


def test_a_placement_keeps_the_contract() -> None:
    check_transform(cereal.DevicePutTransform("cpu:1"), SOURCE)


@pytest.mark.parametrize(
    ("device", "there"), [(CPU[2], CPU[2]), ("cpu:1", CPU[1]), ("cpu", CPU[0]), (None, CPU[0])]
)
def test_batches_and_masks_are_handed_out_on_the_device(device: Any, there: Any) -> None:
    for batch, mask in handed_out(loader_to(device)):
        for leaf in (*batch.values(), mask):
            assert leaf.devices() == {there}


def test_none_is_the_default_device_when_built() -> None:
    with jax.default_device(CPU[3]):
        stage = cereal.DevicePutTransform()
    assert stage.device == CPU[3]


@pytest.mark.parametrize("kind", ["explicit", "auto"])
def test_a_sharding_spreads_the_rows_over_the_devices(kind: str) -> None:
    sharding = spread(kind)
    for step, (batch, mask) in enumerate(handed_out(loader_to(sharding))):
        for leaf in (*batch.values(), mask):
            assert leaf.sharding == sharding
            assert len(leaf.addressable_shards) == 4
        start = step % 3 * 4
        np.testing.assert_array_equal(batch["y"], np.arange(start, start + 4) % 10)


def test_where_batches_go_does_not_change_them() -> None:
    plain = cereal.DataLoader([SOURCE, PAD])
    for device in ("cpu:3", spread("auto")):
        placed = loader_to(device)
        for (batch, mask), expected in zip(handed_out(placed), handed_out(plain), strict=True):
            jax.tree.map(np.testing.assert_array_equal, (batch, mask), expected)


def test_a_step_of_a_users_jit_runs_where_the_batch_is() -> None:
    loader = loader_to(spread("auto"))
    batch, _ = next(loader.iterate())
    total = jax.jit(lambda batch: batch["x"].sum(axis=1))(batch)
    assert total.sharding.is_equivalent_to(spread("auto"), total.ndim)


def test_stages_may_follow_it_and_the_last_placement_counts() -> None:
    double = cereal.MapTransform(lambda batch: {**batch, "x": batch["x"] * 2})
    for batch, _ in handed_out(loader_to("cpu:1", double)):
        assert batch["x"].devices() == {CPU[1]}
    for batch, mask in handed_out(loader_to("cpu:1", cereal.DevicePutTransform("cpu:2"))):
        assert batch["x"].devices() == mask.devices() == {CPU[2]}


def test_before_batching_it_places_batches_too() -> None:
    loader = cereal.DataLoader([SOURCE, cereal.DevicePutTransform("cpu:1"), PAD])
    for batch, _ in handed_out(loader):
        assert batch["x"].devices() == {CPU[1]}


def test_callbacks_before_it_run_once_and_their_batches_are_placed() -> None:
    seen: list[Any] = []
    log = cereal.HostCallbackTransform(lambda batch, mask: seen.append(1))
    loader = cereal.DataLoader([SOURCE, PAD, log, cereal.DevicePutTransform("cpu:1")])
    for batch, _ in loader.iterate():
        assert batch["x"].devices() == {CPU[1]}
    assert len(seen) == 3


def test_batches_of_a_stream_are_placed() -> None:
    loader = cereal.DataLoader([cereal.RangeSource(8), cereal.DevicePutTransform("cpu:1")])
    value, _, mask = loader.next_batch(loader.init_state(0))
    assert value.devices() == mask.devices() == {CPU[1]}


@pytest.mark.parametrize("kind", ["explicit", "auto"])
def test_a_batch_that_the_devices_do_not_divide_is_refused_when_built(kind: str) -> None:
    message = r"^stage 2: DevicePutTransform\(.*float32\[6,4\] cannot be laid out so: .*; choose a "
    with pytest.raises(cereal.PipelineError, match=message + "batch size that the devices divide"):
        cereal.DataLoader(
            [SOURCE, cereal.BatchTransform(6), cereal.DevicePutTransform(spread(kind))]
        )


def test_rows_cannot_be_spread_before_there_are_batches() -> None:
    stages = [cereal.DevicePutTransform(spread("auto")), cereal.BatchTransform(4)]
    message = r"^stage 1: DevicePutTransform\(.*int32\[\] cannot be spread.*after the Batch"
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.DataLoader([cereal.RangeSource(8), *stages])


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu:7", "there is no device 'gpu:7'; this process has cpu:0, cpu:1, cpu:2, cpu:3"),
        ("cpu:99", "there is no device 'cpu:99'"),
        (3, '`device` must be a jax.Device, a sharding, None or a name such as "gpu:1", got int'),
        (CPU, "got list"),
    ],
)
def test_what_is_no_device_is_refused_when_built(device: Any, message: str) -> None:
    with pytest.raises(cereal.PipelineError, match="^DevicePutTransform: .*" + message):
        cereal.DevicePutTransform(device)


def test_the_mask_is_bool_wherever_it_is() -> None:
    for _, mask in handed_out(loader_to(spread("auto"))):
        assert mask.dtype == jnp.bool_


def test_a_sharding_before_batching_is_refused() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    placed = cereal.DevicePutTransform(sharding)(cereal.RangeSource(8))
    with pytest.raises(cereal.PipelineError, match="put the DevicePutTransform after the Batch"):
        cereal.BatchTransform(4)(placed)


def test_a_sharding_of_two_axes_fits_images_labels_masks_and_numbers_per_batch() -> None:
    mesh = Mesh(np.array(CPU[:4]).reshape(2, 2), ("data", "model"))
    add_mean = cereal.MapTransform(lambda batch: {**batch, "mean": batch["x"].mean()})
    both = NamedSharding(mesh, PartitionSpec("data", "model"))
    stages = [SOURCE, PAD, add_mean, cereal.DevicePutTransform(both)]
    for batch, mask in handed_out(cereal.DataLoader(stages)):
        specs = {name: leaf.sharding.spec for name, leaf in batch.items()}
        rows = PartitionSpec("data")
        assert specs == {"x": both.spec, "y": rows, "mean": PartitionSpec()}
        assert mask.sharding == NamedSharding(mesh, rows)


def test_axes_after_those_of_the_batch_must_divide_too() -> None:
    mesh = Mesh(np.array(CPU[:3]).reshape(1, 3), ("data", "model"))
    put = cereal.DevicePutTransform(NamedSharding(mesh, PartitionSpec("data", "model")))
    with pytest.raises(cereal.PipelineError, match=r"float32\[4,4\] cannot be laid out so: "):
        cereal.DataLoader([SOURCE, PAD, put])


def test_what_later_stages_make_of_a_batch_must_fit_as_well() -> None:
    put = cereal.DevicePutTransform(spread("auto"))
    three = cereal.MapTransform(lambda batch: batch["x"][:3])
    message = r"^the last stage, MapTransform\(.*\), after a DevicePutT.*float32\[3,4\] cannot be"
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.DataLoader([SOURCE, PAD, put, three])


def test_several_steps_at_once_are_laid_out_batch_by_batch() -> None:
    source: Any = loader_to(spread("auto")).source
    values, mask, _ = source.next_many(source.init_state(0), 3)
    assert values["x"].shape == (3, 4, 4)
    rows = PartitionSpec(None, "data")
    assert values["x"].sharding.spec == values["y"].sharding.spec == mask.sharding.spec == rows


@pytest.mark.parametrize("width", [1, 1 << 17])
def test_batches_from_the_host_fit_a_sharding_of_two_axes(width: int) -> None:
    mesh = Mesh(np.array(CPU[:4]).reshape(2, 2), ("data", "model"))
    both = NamedSharding(mesh, PartitionSpec("data", "model"))
    rows = np.arange(8 * 2 * width, dtype=np.float32).reshape(8, 2 * width)
    source = cereal.DiskSampleSource(8, lambda i: {"x": rows[i], "y": np.int32(i)})
    stages = [source, cereal.BatchTransform(4), cereal.DevicePutTransform(both)]
    with cereal.DataLoader(stages) as loader:
        for batch, mask in handed_out(loader):
            np.testing.assert_array_equal(batch["x"], rows[np.asarray(batch["y"])])
            assert batch["x"].sharding.spec == both.spec
            assert batch["y"].sharding.spec == mask.sharding.spec == PartitionSpec("data")


def test_a_sharding_is_drawn_in_a_few_words() -> None:
    put = cereal.DevicePutTransform(spread("auto"))
    assert repr(put) == "DevicePutTransform(P('data',) over data=4)"


def test_the_default_device_under_a_mesh_is_one_and_the_mesh_stays_whole() -> None:
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[::-1])
    with jax.set_mesh(mesh):
        found = [cereal.DevicePutTransform().device for _ in range(6)]
        assert len(jnp.zeros(()).devices()) == 4  # JAX hands out a set of its own
    assert set(found) == {jax.devices()[0]}
