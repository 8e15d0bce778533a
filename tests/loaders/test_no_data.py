"""What is no data, no option and no batch, though newcomers take it for one: what they read."""

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
    DatasetSource,
    DiskSampleSource,
    IterableSource,
    MixSource,
    PipelineError,
    RangeSource,
    UnbatchTransform,
    UsageError,
)

SOURCE = ArraySampleSource({"x": np.arange(6.0)})
LOADER = DataLoader([SOURCE, BatchTransform(2)])
MAPPED = cereal.MapTransform(lambda batch: batch)
STREAM = DataLoader([SOURCE, BatchTransform(2), MAPPED, UnbatchTransform()])


class Words:
    """A dataset as torch has them."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


# Pipelines as data


@pytest.mark.parametrize(
    ("first", "match"),
    [
        (LOADER, r"stage 0 is a DataLoader, .*`DataLoader\(\[loader.source, ...\]\)`"),
        ({"x": LOADER}, "the first part of stage 0 is a DataLoader"),
        ([LOADER, LOADER], "the first part of stage 0 is a DataLoader"),
        (LOADER.init_state(0), "stage 0 is a PipelineState, a position and not data; pass it to"),
        (STREAM.init_state(0), "stage 0 is an UnbatchedState, a position and not data"),
        ({"s": LOADER.init_state(0)}, "first part of stage 0 is a PipelineState"),
        (LOADER.iterate(LOADER.init_state(0)), "stage 0 is an iterator over the batches"),
        ([SOURCE, SOURCE], r"is a list of sources, the first ArraySampleSource.*`ConcatSource`"),
        ({"a": SOURCE, "b": SOURCE}, "is a dict of sources, .*`ZipSource`"),
    ],
)
def test_a_pipeline_is_no_data_of_another(first: Any, match: str) -> None:
    with pytest.raises(PipelineError, match=match):
        DataLoader([first, BatchTransform(2)])


def test_a_loader_of_a_loader_is_refused_and_of_its_pipeline_is_not() -> None:
    with pytest.raises(PipelineError, match="the pipeline is a DataLoader"):
        DataLoader(LOADER)  # type: ignore[call-overload]
    assert DataLoader([LOADER.source, BatchTransform(3)]).element_spec()["x"].shape == (3, 2)


def test_a_dataset_without_a_list_is_told_to_be_put_into_one() -> None:
    with pytest.raises(PipelineError, match=r"`DataLoader\(\[dataset, BatchTransform\(128\)\]\)`"):
        DataLoader(Words())  # type: ignore[call-overload]


# Options of other libraries


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: ArraySampleSource(np.arange(4), **options),
        lambda **options: DatasetSource(Words(), **options),
        lambda **options: DiskSampleSource(4, lambda i: i, **options),
        lambda **options: cereal.MemmapSource(np.arange(4), **options),
        lambda **options: cereal.WindowSource(np.arange(4), 2, **options),
        lambda **options: RangeSource(4, **options),
        lambda **options: MixSource([RangeSource(4)], **options),
    ],
)
def test_shuffle_and_seed_on_a_source_print_the_line_to_write(make: Any) -> None:
    with pytest.raises(UsageError, match=r'Source has no `shuffle=`; .*ordering="shuffle"\)`'):
        make(shuffle=True)
    with pytest.raises(UsageError, match=r'has no `shuffle=`; .*ordering="sequential"\)`'):
        make(shuffle=False)
    for name in ("seed", "rng", "generator"):
        with pytest.raises(UsageError, match=rf"no `{name}=`; write `loader.init_state\(jax"):
            make(**{name: 0})
    with pytest.raises(UsageError, match=r"no `num_workers=`; .*`DataLoader\(\[...\], workers"):
        make(num_workers=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        make(nonsense=2)


def test_what_only_iterates_is_told_who_shuffles() -> None:
    for options in ({"shuffle": True}, {"ordering": "shuffle"}):
        with pytest.raises(UsageError, match=r"shuffle in `make_iterator\(epoch, key\)`"):
            IterableSource(lambda: iter([1]), **options)  # type: ignore[arg-type]


def test_a_batch_does_not_shuffle() -> None:
    with pytest.raises(UsageError, match=r"BatchTransform has no `shuffle=`; write `ordering="):
        BatchTransform(4, shuffle=True)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match=r"`BatchTransform\(batch_size, collate=fn\)`"):
        BatchTransform(4, collate_fn=np.stack)  # type: ignore[call-arg]


def test_a_source_of_the_users_own_may_have_these_options() -> None:
    @cereal.pytree_dataclass
    class Seeded(cereal.IndexedSource[Any]):
        seed: int = cereal.static_field()
        shuffle: bool = cereal.static_field(default=False)

        def __len__(self) -> int:
            return 3

        def element_spec(self) -> Any:
            return jax.ShapeDtypeStruct((), jnp.int32)

        def take(self, indices: Any) -> Any:
            return indices + self.seed

    found = [int(x) for x, _ in DataLoader(Seeded(seed=5, shuffle=True))]
    assert found == [5, 6, 7]


# What is no source yet


def test_splitting_a_dataset_prints_the_call() -> None:
    match = r'`split\(DatasetSource\(dataset, ordering="shuffle"\), ...\)`'
    with pytest.raises(PipelineError, match=match):
        cereal.split(Words(), (0.5, 0.5))  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=r"`split\(ArraySampleSource\(data\), ...\)`"):
        cereal.split({"x": np.arange(4)}, (0.5, 0.5))  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="a loader is the end of a pipeline"):
        cereal.split(LOADER, (0.5, 0.5))  # type: ignore[arg-type]
    with pytest.raises(
        PipelineError, match=r'write `DatasetSource\(dataset, ordering="shuffle"\)`'
    ):
        MixSource([Words(), Words()])  # type: ignore[list-item]


# A forgotten BatchTransform


def test_a_function_that_fails_on_a_single_element_is_told_that_nothing_batches() -> None:
    single = DataLoader([SOURCE])
    body = lambda carry, batch, mask: (carry + batch["x"].sum(axis=1), None)  # noqa: E731
    with pytest.raises(ValueError, match="axis") as caught:
        single.scan_epoch(single.init_state(0), 0.0, body)
    assert "add `BatchTransform(128)`" in "".join(caught.value.__notes__)
    with pytest.raises(ValueError, match="axis") as caught:
        cereal.evaluate(single, lambda batch: batch["x"].sum(axis=1))
    assert "add `BatchTransform(128)`" in "".join(caught.value.__notes__)
    with pytest.raises(ValueError, match="axis") as caught:
        cereal.evaluate(LOADER, lambda batch: batch["x"].sum(axis=1))
    assert "BatchTransform" not in "".join(getattr(caught.value, "__notes__", []))


def test_stages_that_are_not_in_the_list_are_told_so() -> None:
    data = {"x": np.arange(4.0)}
    match = r"one list .*; got int \(32\) as well\. Write `.*BatchTransform\(32\)\]\)`\.$"
    with pytest.raises(UsageError, match=match):
        DataLoader(data, 32)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match=r"got BatchTransform .* as well\. Write `DataLoader\(\["):
        DataLoader(ArraySampleSource(data), BatchTransform(2))  # type: ignore[call-overload]


OPTIONS_OF_BATCHES = {
    "drop_remainder": r"write `BatchTransform\(batch_size, drop_last=True\)`",
    "transform": r"add `MapTransform\(fn\)`, or for Python `HostMapTransform\(fn\)`",
    "element_spec_override": r"`BatchTransform\(batch_size, collate=fn, spec=\.\.\.\)`",
}


@pytest.mark.parametrize("option", OPTIONS_OF_BATCHES)
def test_options_that_batches_have_elsewhere_print_the_line_to_write(option: str) -> None:
    words = OPTIONS_OF_BATCHES[option]
    with pytest.raises(UsageError, match=rf"BatchTransform has no `{option}=`; .*{words}"):
        BatchTransform(2, **{option: None})  # type: ignore[arg-type]
