"""TimeSeriesBatchTransform: sequences with one axis of features, per sequence or packed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    TimeSeriesBatchTransform,
    WindowSource,
)
from cereal.testing import assert_same, check_loader, check_resume

T = 3
SHAPES: dict[str, tuple[int, ...]] = {
    "[B, T]": (),
    "[B, T, F]": (4,),
    "[B, T, 1]": (1,),
    "[B, T, H, W]": (4, 5),
    "[B, T, H, W, C]": (2, 3, 2),
}


def data_of(features: tuple[int, ...]) -> np.ndarray:
    return np.arange(9 * int(np.prod(features)), dtype=np.float32).reshape(9, *features)


def loader_of(features: tuple[int, ...], *stages: Any) -> DataLoader[Any]:
    source = WindowSource(data_of(features), T, predict=1, ordering="sequential")
    return DataLoader([source, *stages])


def windows_of(features: tuple[int, ...], count: int) -> np.ndarray:
    data = data_of(features)
    return np.stack([data[start : start + T] for start in range(count)])


@pytest.mark.parametrize("name", SHAPES)
def test_batched_sequences_have_one_axis_of_features(name: str) -> None:
    features = SHAPES[name]
    loader = loader_of(features, BatchTransform(4), TimeSeriesBatchTransform())
    size = int(np.prod(features))
    batch, mask = loader.batch_at(0, 0)
    assert_same(batch["context"], windows_of(features, 4).reshape(4, T, size), name)
    assert loader.element_spec()["context"] == jax.ShapeDtypeStruct((4, T, size), jnp.float32)
    assert set(batch) == {"context", "target"}
    assert batch["target"].shape == (4, 1, *features)
    assert mask.shape == (4,)


@pytest.mark.parametrize("name", SHAPES)
def test_packed_sequences_follow_each_other_in_one(name: str) -> None:
    features = SHAPES[name]
    loader = loader_of(features, BatchTransform(4), TimeSeriesBatchTransform(mode="packed"))
    size = int(np.prod(features))
    batch, mask = loader.batch_at(0, 0)
    assert_same(batch["context"], windows_of(features, 4).reshape(4 * T, size), name)
    assert batch["sequence_start"].dtype == jnp.bool_
    assert batch["sequence_start"].tolist() == [True, False, False] * 4
    assert mask.tolist() == [True] * 4 * T


def test_microbatches_keep_their_axes_or_are_packed_into_one() -> None:
    twice = [BatchTransform(2), BatchTransform(3)]
    expected = windows_of((4,), 6)
    batched = loader_of((4,), *twice, TimeSeriesBatchTransform()).batch_at(0, 0)[0]
    assert_same(batched["context"], expected.reshape(3, 2, T, 4), "batched")
    packed, mask = loader_of((4,), *twice, TimeSeriesBatchTransform(mode="packed")).batch_at(0, 0)
    assert_same(packed["context"], expected.reshape(6 * T, 4), "packed")
    assert packed["sequence_start"].tolist() == [True, False, False] * 6
    assert mask.tolist() == [True] * 6 * T


def test_packing_before_the_second_batching_packs_every_microbatch() -> None:
    packed = TimeSeriesBatchTransform(mode="packed")
    batch, mask = loader_of((4,), BatchTransform(2), packed, BatchTransform(3)).batch_at(0, 0)
    assert_same(batch["context"], windows_of((4,), 6).reshape(3, 2 * T, 4), "the sequences")
    assert mask.shape == (3, 2 * T)
    assert batch["sequence_start"].tolist() == [[True, False, False] * 2] * 3


PACKED = [BatchTransform(4, pad_last_batch=True), TimeSeriesBatchTransform(mode="packed")]
MOMENTS = np.repeat([True, True, False, False], T)  # of the last of six windows by four


def test_padding_is_masked_moment_by_moment_and_starts_nothing() -> None:
    loader = loader_of((4,), *PACKED)
    for batch, mask in (loader.batch_at(0, 1), list(loader.iterate())[1]):
        assert mask.tolist() == MOMENTS.tolist()
        assert batch["sequence_start"].tolist() == [*[True, False, False] * 2, *[False] * 6]
        assert cereal.masked_mean(batch["context"][:, 0], mask) == pytest.approx(
            windows_of((4,), 6)[4:, :, 0].mean()
        )


def test_a_mean_over_packed_batches_is_one_over_moments() -> None:
    found = cereal.evaluate(loader_of((4,), *PACKED), lambda batch: batch["context"][:, 0])
    assert float(found) == pytest.approx(windows_of((4,), 6)[:, :, 0].mean())


def test_masks_of_moments_pass_stages_scans_and_host_pipelines() -> None:
    def first(batch: Any, mask: Any) -> Any:
        return {"x": batch["context"][:, 0], "seen": mask}

    stages = [*PACKED, cereal.MapTransform(first), cereal.FilterTransform(lambda x: x["x"] > 1)]
    windows = WindowSource(data_of((4,)), T, predict=1, ordering="sequential")
    on_host = cereal.HostMapTransform(lambda x: x)
    for pipeline in ([windows, *stages], [windows, on_host, *stages]):
        loader = DataLoader(pipeline, workers=0)
        body = lambda carry, batch, mask: (carry, (batch, mask))  # noqa: E731
        _, _, (batches, masks) = loader.scan_epoch(loader.init_state(0), 0, body)
        assert masks.shape == (2, 4 * T)
        assert masks[1].tolist() == batches["seen"][1].tolist() == MOMENTS.tolist()
        assert masks[0].tolist() == (batches["x"][0] > 1).tolist()


def test_a_stream_has_masks_of_moments_too() -> None:
    apart = [BatchTransform(2), cereal.UnbatchTransform()]
    stream = loader_of((4,), *apart, *PACKED)
    found = list(stream.iterate(stream.init_state(0)))
    assert [mask.tolist() for _, mask in found] == [[True] * 4 * T, MOMENTS.tolist()]
    assert found[1][0]["sequence_start"].tolist() == [*[True, False, False] * 2, *[False] * 6]


def test_packing_twice_is_refused() -> None:
    again = TimeSeriesBatchTransform("target", mode="packed", sequence_start_key="more")
    with pytest.raises(cereal.PipelineError, match=r"of moments already, of shape \(12,\); pack"):
        loader_of((4,), *PACKED, again)


def test_sequences_of_one_moment_all_start() -> None:
    source = WindowSource(np.arange(5.0), 1, predict=1, ordering="sequential")
    packed = TimeSeriesBatchTransform(mode="packed")
    batch, _ = DataLoader([source, BatchTransform(3), packed]).batch_at(0, 0)
    assert batch["context"].tolist() == [[0], [1], [2]]
    assert batch["sequence_start"].tolist() == [True] * 3


def test_a_recurrent_model_that_resets_at_starts_sees_every_sequence_alone() -> None:
    stages = [BatchTransform(4), TimeSeriesBatchTransform(mode="packed")]
    batch, _ = loader_of((4,), *stages).batch_at(0, 0)

    def step(total: Any, moment: Any) -> tuple[Any, Any]:
        value, start = moment
        total = jnp.where(start, value, total + value)
        return total, total

    moments = (batch["context"], batch["sequence_start"])
    sums = jax.lax.scan(step, jnp.zeros(4), moments)[1]
    assert_same(sums[T - 1 :: T], windows_of((4,), 4).sum(axis=1), "the sums")


def test_keys_are_named_and_others_left_alone() -> None:
    source = ArraySampleSource(
        {"signal": data_of((2, 2)).reshape(3, 3, 2, 2), "label": np.arange(3)},
        ordering="sequential",
    )
    stage = TimeSeriesBatchTransform("signal", mode="packed", sequence_start_key="first")
    batch, _ = DataLoader([source, BatchTransform(2), stage]).batch_at(0, 0)
    assert set(batch) == {"signal", "label", "first"}
    assert batch["signal"].shape == (6, 4)
    assert batch["label"].tolist() == [0, 1]
    assert batch["first"].tolist() == [True, False, False] * 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["batched", "packed"])
def test_every_road_gives_the_same_and_masks_stay(mode: Any, strict_jax: None) -> None:
    source = WindowSource(data_of((2,)), T, predict=1)
    stages = [BatchTransform(4, pad_last_batch=True), TimeSeriesBatchTransform(mode=mode)]
    loader = DataLoader([source, *stages])
    check_loader(loader)
    check_resume(loader, epochs=1)
    lanes = np.array([True, True, False, False])
    expected = lanes if mode == "batched" else np.repeat(lanes, T)
    assert loader.batch_at(0, 1)[1].tolist() == expected.tolist()


def test_streams_and_files_are_shaped_like_arrays(tmp_path: Any) -> None:
    path = tmp_path / "series.bin"
    data_of((2, 2)).tofile(path)
    file = np.memmap(path, np.float32, mode="r", shape=(9, 2, 2))
    stages = [BatchTransform(3), TimeSeriesBatchTransform(mode="packed")]
    expected = loader_of((2, 2), *stages).batch_at(0, 0)
    source = WindowSource(file, T, predict=1, ordering="sequential")
    assert_same(DataLoader([source, *stages]).batch_at(0, 0), expected, "a file")
    # Batches that were taken apart are a stream.
    apart = [BatchTransform(2, drop_last=True), cereal.UnbatchTransform()]
    stream = DataLoader([source, *apart, *stages])
    batch, _, mask = stream.next_batch(stream.init_state(0))
    assert_same((batch, mask), expected, "a stream")


# What goes wrong


BATCHED = BatchTransform(2)(WindowSource(data_of((4,)), T, predict=1))


@pytest.mark.parametrize(
    ("options", "source", "message"),
    [
        ({}, WindowSource(data_of(()), T, predict=1), "works on batches; put it after the Batch"),
        ({}, BatchTransform(2)(WindowSource(data_of(()), T)), "'context', they have [A-Z]"),
        ({"sequence_key": "x"}, BATCHED, r"no key 'x', they have \['context', 'target'\]; name"),
        (
            {"sequence_key": "y"},
            BatchTransform(2)(ArraySampleSource({"y": np.arange(4)})),
            r"'y' of shape \(2,\) has no axis of time after the batch's \(2,\)",
        ),
        (
            {"mode": "packed", "sequence_start_key": "target"},
            BATCHED,
            "have a key 'target' already; choose another `sequence_start_key`",
        ),
        (
            {"mode": "packed", "sequence_start_key": "context"},
            BATCHED,
            "have a key 'context' already",
        ),
        (
            {},
            BatchTransform(2)(WindowSource({"a": data_of(()), "b": data_of((2,))}, T, predict=1)),
            r"'context'(?!.*AttributeError)",
        ),
    ],
)
def test_batches_without_sequences_are_refused_when_built(
    options: Any, source: Any, message: str
) -> None:
    with pytest.raises(cereal.PipelineError, match=r"TimeSeriesBatchTransform\(.*" + message):
        DataLoader([source, TimeSeriesBatchTransform(**options)])


@pytest.mark.parametrize("mode", ["pack", None, 1])
def test_a_mode_that_there_is_not_is_refused(mode: Any) -> None:
    with pytest.raises(cereal.PipelineError, match='`mode` must be "batched" or "packed", got'):
        TimeSeriesBatchTransform(mode=mode)


def test_a_packed_batch_cannot_be_taken_apart() -> None:
    stages = [BatchTransform(2), TimeSeriesBatchTransform(mode="packed")]
    with pytest.raises(cereal.PipelineError, match="needs values with one first axis"):
        loader_of((4,), *stages, cereal.UnbatchTransform())
