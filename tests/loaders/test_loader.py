"""A loader is one function of (key, position), however it is asked."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.slowly import quickly, slowly

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    FlattenImageTransform,
    MapTransform,
    NormalizeImageTransform,
    RandomMapTransform,
    RangeSource,
)
from cereal.testing import assert_same, check_loader, check_resume

pytestmark = pytest.mark.optimized

REMAINDERS: dict[str, dict[str, Any]] = {
    "wrap": {},
    "pad": {"pad_last_batch": True},
    "drop": {"drop_last": True},
}


def jitter(x: Any, key: Any) -> Any:
    return x + 100 * jax.random.randint(key, (), 0, 100)


def jitter_label(element: Any, key: Any) -> Any:
    return jitter(element["label"], key)


def count_real(batch: Any, mask: Any) -> Any:
    return {**batch, "real": mask.sum()}


def images(n: int) -> dict[str, np.ndarray]:
    pixels = np.arange(n * 36, dtype=np.uint8).reshape(n, 6, 6)
    return {"image": pixels, "label": np.arange(n, dtype=np.int32)}


# The matrix


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize(
    ("n", "batch", "ordering"),
    [
        slowly(10, 4, "sequential"),
        slowly(6, 1, "sequential"),
        (1, 1, "sequential"),
        (7, 3, "reversed"),
    ],
)
def test_all_ways_to_run_agree_and_resume(
    n: int, batch: int, ordering: str, remainder: str
) -> None:
    indices = ordering if ordering == "sequential" else np.arange(n)[::-1]
    source = RangeSource(n, ordering=indices)
    loader = DataLoader([source, BatchTransform(batch, **REMAINDERS[remainder])])
    check_loader(loader)
    check_resume(loader)


@pytest.mark.filterwarnings("ignore:.*is larger than the data")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "batch", "remainder"),
    [(10, 4, "wrap"), (10, 4, "pad"), (10, 4, "drop"), (3, 8, "wrap"), (3, 8, "pad")],
)
def test_shuffled_runs_agree_and_resume(n: int, batch: int, remainder: str) -> None:
    source = RangeSource(n, ordering="shuffle")
    loader = DataLoader([source, BatchTransform(batch, **REMAINDERS[remainder])])
    check_loader(loader, key=jax.random.key(3))
    check_resume(loader, key=jax.random.key(3))


@pytest.mark.parametrize("remainder", ["wrap", "pad"])
@pytest.mark.parametrize(("n", "batch"), [slowly(1, 4), (3, 11)])
@pytest.mark.filterwarnings("ignore:.*is larger than the data")
def test_a_batch_larger_than_the_data_agrees_and_resumes(
    n: int, batch: int, remainder: str
) -> None:
    loader = DataLoader([RangeSource(n), BatchTransform(batch, **REMAINDERS[remainder])])
    check_loader(loader)
    check_resume(loader)
    values, mask = loader.batch_at(0, 0)
    assert values.tolist() == [i % n for i in range(batch)]
    assert int(mask.sum()) == (batch if remainder == "wrap" else n)


STAGES: dict[str, list[Any]] = {
    "no batching": [],
    "batch of batches": [BatchTransform(2), BatchTransform(3, pad_last_batch=True)],
    "images": [BatchTransform(4), NormalizeImageTransform(), FlattenImageTransform()],
    "random before": [
        RandomMapTransform(jitter_label),
        BatchTransform(4),
    ],
    "random after": [
        BatchTransform(4, pad_last_batch=True),
        RandomMapTransform(jitter_label),
    ],
    "mask": [
        BatchTransform(4, pad_last_batch=True),
        MapTransform(count_real),
    ],
}


@pytest.mark.parametrize(
    "stages", quickly(STAGES, "no batching", "batch of batches", "random after", "mask")
)
def test_pipelines_agree_and_resume(stages: str) -> None:
    loader = DataLoader([ArraySampleSource(images(10), "sequential"), *STAGES[stages]])
    check_loader(loader)
    check_resume(loader)


# Any step


@pytest.mark.parametrize("remainder", REMAINDERS)
def test_state_at_is_where_stepping_leads(remainder: str) -> None:
    source = RangeSource(10, ordering="shuffle")
    loader = DataLoader([source, BatchTransform(4, **REMAINDERS[remainder])])
    key = jax.random.key(5)
    state = loader.init_state(key)
    for step in range(12):
        assert_same(loader.state_at(key, step), state, f"state_at({step})")
        batch, state, mask = loader.next_batch(state)
        indices = loader.indices_at(key, step)
        assert indices.tolist() == batch[np.asarray(mask)].tolist()


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize(("n", "batch"), [(10, 4), (10**9, 128), (1, 1)])
def test_the_trillionth_step_is_as_near_as_the_first(n: int, batch: int, remainder: str) -> None:
    step, per_epoch = 10**12, n // batch if remainder == "drop" else math.ceil(n / batch)
    source = RangeSource(n, ordering="shuffle")
    loader = DataLoader([source, BatchTransform(batch, **REMAINDERS[remainder])])
    state = loader.state_at(0, step)
    if remainder == "wrap":
        epoch, offset = divmod(step * batch, n)
    else:
        epoch, offset = step // per_epoch, step % per_epoch * batch
    assert (int(state.epoch), int(state.offset)) == (epoch % 2**32, offset)
    values, mask = loader.batch_at(0, step)
    assert loader.indices_at(0, step).tolist() == values[np.asarray(mask)].tolist()


def test_a_step_does_not_depend_on_the_steps_before() -> None:
    loader = DataLoader([RangeSource(10, ordering="shuffle"), BatchTransform(4)])
    backwards = [loader.batch_at(0, step) for step in reversed(range(6))]
    assert_same(backwards[::-1], list(loader.iterate(loader.init_state(0), steps=6)), "backwards")


def test_keys_of_all_kinds_name_the_same_order() -> None:
    loader = DataLoader([RangeSource(10, ordering="shuffle"), BatchTransform(10)])
    expected = loader.batch_at(7, 0)[0].tolist()
    for key in (jax.random.key(7), jax.random.PRNGKey(7), np.int64(7)):
        assert loader.batch_at(key, 0)[0].tolist() == expected
    assert loader.batch_at(8, 0)[0].tolist() != expected


# What it is


@pytest.mark.parametrize(("remainder", "steps"), [("wrap", 3), ("pad", 3), ("drop", 2)])
def test_len_is_the_steps_of_an_epoch(remainder: str, steps: int) -> None:
    loader = DataLoader([RangeSource(10), BatchTransform(4, **REMAINDERS[remainder])])
    assert len(loader) == loader.steps_per_epoch == steps
    assert len(list(loader)) == steps


def test_element_spec_is_that_of_a_batch() -> None:
    loader = DataLoader([ArraySampleSource(images(10)), BatchTransform(4)])
    assert loader.element_spec() == {
        "image": jax.ShapeDtypeStruct((4, 6, 6), jnp.uint8),
        "label": jax.ShapeDtypeStruct((4,), jnp.int32),
    }


def test_the_repr_draws_the_pipeline_with_shapes() -> None:
    stages = [BatchTransform(4, pad_last_batch=True), NormalizeImageTransform()]
    loader = DataLoader([ArraySampleSource(images(1_000)), *stages])
    assert repr(loader).splitlines() == [
        "DataLoader: 1,000 elements, 250 steps an epoch",
        "ArraySampleSource(ordering=shuffle)                    "
        "{image: uint8[6,6], label: int32[]}",
        "└─ BatchTransform(4, pad_last_batch=True)              "
        "{image: uint8[4,6,6], label: int32[4]}",
        "   └─ NormalizeImageTransform('image', dtype=float32)  "
        "{image: float32[4,6,6], label: int32[4]}",
    ]


def test_a_deterministic_loader_is_iterated_directly_and_repeatedly() -> None:
    loader = DataLoader([RangeSource(5), BatchTransform(2)])
    for _ in range(2):
        assert [batch.tolist() for batch, _ in loader] == [[0, 1], [2, 3], [4, 0]]


@pytest.mark.parametrize(
    "stages",
    [
        [RangeSource(5, ordering="shuffle"), BatchTransform(2)],
        [RangeSource(5), RandomMapTransform(jitter), BatchTransform(2)],
    ],
)
def test_a_random_loader_iterated_directly_prints_the_line_to_write(stages: list[Any]) -> None:
    with pytest.raises(cereal.UsageError, match=r"for batch, mask in loader\.iterate\(state\):"):
        iter(DataLoader(stages))


def test_next_names_next_batch() -> None:
    with pytest.raises(AttributeError, match=r"write `loader\.next_batch\(state\)`"):
        _ = DataLoader(RangeSource(3)).next  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match="DataLoader has no attribute 'batches'"):
        _ = DataLoader(RangeSource(3)).batches  # pyright: ignore[reportAttributeAccessIssue]


# Copies


def pipeline() -> DataLoader[Any]:
    def augmented(element: Any, key: Any) -> Any:
        return {**element, "label": jitter(element["label"], key)}

    augment = RandomMapTransform(augmented)
    stages = [BatchTransform(4), NormalizeImageTransform(), augment]
    return DataLoader([ArraySampleSource(images(10)), *stages])


def some(loader: DataLoader[Any]) -> list[Any]:
    return list(loader.iterate(loader.init_state(0)))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_the_same_loader(copied: Any) -> None:
    loader = pipeline()
    expected = some(loader)  # leaves caches behind
    twin = copied(loader)
    assert_same(some(twin), expected, "the copy")
    assert jax.tree.structure(twin) == jax.tree.structure(loader)


def test_a_loader_of_module_level_functions_pickles() -> None:
    loader = DataLoader([RangeSource(10, ordering="shuffle"), RandomMapTransform(jitter)])
    expected = some(loader)
    twin = pickle.loads(pickle.dumps(loader))
    assert_same(some(twin), expected, "the pickled loader")
    assert repr(twin) == repr(loader)
    assert twin.source._spec == loader.source._spec  # pyright: ignore[reportAttributeAccessIssue]


def test_a_pickle_holds_the_data_once() -> None:
    data = np.zeros(100_000, np.uint8)
    loader = DataLoader([ArraySampleSource({"x": data}), BatchTransform(4)])
    some(loader)
    assert len(pickle.dumps(loader)) < 110_000


@pytest.mark.slow  # a process
def test_a_loader_with_lambdas_travels_to_another_process(tmp_path: Path) -> None:
    loader = pipeline()
    path = tmp_path / "loader.pickle"
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        path.write_bytes(cloudpickle.dumps((loader, loader.state_at(0, 5))))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    code = (
        "import pickle, sys; loader, state = pickle.load(open(sys.argv[1], 'rb')); "
        "print(loader.next_batch(state)[0]['label'].tolist())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert result.stdout.strip() == str(loader.batch_at(0, 5)[0]["label"].tolist()), result.stderr


@pytest.mark.parametrize("epoch", [-1, 1.5, "0"])
def test_an_element_is_read_in_an_epoch_that_there_is(epoch: Any) -> None:
    loader = DataLoader([["a", "bb"], cereal.HostMapTransform(len)])
    with pytest.raises(cereal.PipelineError, match="`epoch` must be an integer of at least 0, got"):
        loader.read_element(0, epoch=epoch)
