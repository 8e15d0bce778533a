"""Pipelines that cannot be built, and calls that cannot mean anything, say what to write."""

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
    IndexedSource,
    MapTransform,
    PipelineError,
    RandomMapTransform,
    RangeSource,
    StateError,
    UsageError,
)


def batch_of_two(batch: Any, mask: Any) -> Any:
    del mask
    return batch


# Lists of stages


@pytest.mark.parametrize(
    ("pipeline", "match"),
    [
        ([], "the pipeline is empty; its first stage must be a source"),
        (
            [BatchTransform(4)],
            r"stage 0 must be a source, .* got BatchTransform .*start the list with, for example, "
            r"`ArraySampleSource\(data\)`",
        ),
        ([MapTransform(abs), BatchTransform(4)], r"stage 0 must be a source, .* got MapTransform"),
        (
            BatchTransform(4),
            r"is the transform BatchTransform\(4\) and has no source; write "
            r"`DataLoader\(\[source, BatchTransform\(4\)\]\)`",
        ),
        (
            {"x": np.arange(4)},
            r"`pipeline` must be a source or a list that starts with one, got dict .*; write "
            r"`DataLoader\(\[ArraySampleSource\(data\), BatchTransform\(128\)\]\)`",
        ),
        (np.arange(4), "must be a source or a list that starts with one, got ndarray"),
        ("data", r"must be a source or a list that starts with one, got str \('data'\)"),
        (None, "must be a source or a list that starts with one, got NoneType"),
        (
            [{"a": "text"}, BatchTransform(4)],
            r"stage 0 must be a source, .* got dict .*`ArraySampleSource\(data\)`",
        ),
        (
            [RangeSource(4), BatchTransform(2), RangeSource(5)],
            r"stage 2 is a second source, RangeSource\(0, 5, ordering=sequential\); a pipeline has "
            "one, at its beginning",
        ),
        (
            [RangeSource(4), 3],
            r"stage 1 must be a transform or a function from source to source, got int \(3\); for "
            r"a function of batches write `MapTransform\(fn\)`",
        ),
        ([RangeSource(4), BatchTransform(2), None], "stage 2 must be a transform .*NoneType"),
        (
            [ArraySampleSource],
            r"stage 0 is the class ArraySampleSource, not an instance; write "
            r"`ArraySampleSource\(\.\.\.\)`",
        ),
        (
            [RangeSource(4), BatchTransform],
            r"stage 1 is the class BatchTransform, not an instance; write "
            r"`BatchTransform\(\.\.\.\)`",
        ),
        (
            [RangeSource(4), batch_of_two],
            r"stage 1 \(function batch_of_two\) failed when called with the source before it: "
            r"TypeError: .*; a stage is a function from source to source, and a function of "
            r"batches goes into `MapTransform\(fn\)`",
        ),
        (
            [RangeSource(4), lambda source: 5],
            r"stage 1 \(function <lambda>\) must return a source, returned int \(5\); for a "
            r"function of batches write `MapTransform\(fn\)`",
        ),
        (
            [RangeSource(6), BatchTransform(8, drop_last=True)],
            r"stage 1: BatchTransform: `drop_last=True` with `batch_size=8` drops all 6 elements; "
            r"pass `pad_last_batch=True`, or a batch of at most 6",
        ),
    ],
)
def test_a_list_that_is_no_pipeline_names_the_stage_and_the_fix(pipeline: Any, match: str) -> None:
    with pytest.raises(PipelineError, match=match):
        DataLoader(pipeline)


def test_a_class_as_the_pipeline_is_refused() -> None:
    with pytest.raises(PipelineError, match="the pipeline is the class ArraySampleSource, not"):
        DataLoader(ArraySampleSource)  # type: ignore[call-overload]


def test_nothing_as_the_pipeline_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"write `DataLoader\(\[ArraySampleSource\(data\), "):
        DataLoader()  # type: ignore[call-overload]


def test_a_tuple_of_stages_is_a_list_of_stages() -> None:
    loader = DataLoader((RangeSource(4), BatchTransform(2)))
    assert loader.batch_at(0, 1)[0].tolist() == [2, 3]


def test_a_failing_map_names_its_position_its_input_and_its_error() -> None:
    def label(batch: Any) -> Any:
        return batch["label"]

    data = {"image": np.zeros((4, 2)), "target": np.zeros(4)}
    match = (
        r"stage 2: MapTransform\(label\) failed on \{image: float32\[2,2\], "
        r"target: float32\[2\]\}: KeyError: 'label'"
    )
    with pytest.raises(PipelineError, match=match) as caught:
        DataLoader([ArraySampleSource(data), BatchTransform(2), MapTransform(label)])
    assert isinstance(caught.value.__cause__, KeyError)


# Sources that JAX cannot see into


class Plain(IndexedSource[jax.Array]):
    """A subclass without its decorator."""

    def __len__(self) -> int:
        return 4

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), jnp.int32)

    def take(self, indices: jax.Array) -> jax.Array:
        return indices


@pytest.mark.parametrize(
    ("pipeline", "where"),
    [
        (Plain(), "the pipeline"),
        ([Plain(), BatchTransform(2)], "stage 0"),
        ([RangeSource(4), lambda source: Plain()], "stage 1"),
    ],
)
def test_an_undecorated_source_names_the_decorator(pipeline: Any, where: str) -> None:
    match = f"{where}: Plain is not a pytree.*write `@cereal.pytree_dataclass` above its class"
    with pytest.raises(PipelineError, match=match):
        DataLoader(pipeline)


# Other loaders' options and names


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_size": 32}, r"no `batch_size=`; add `BatchTransform\(32\)` to the list of stages"),
        (
            {"shuffle": True},
            r'no `shuffle=`; write `ArraySampleSource\(data, ordering="shuffle"\)`, or for a '
            r'dataset `DatasetSource\(dataset, ordering="shuffle"\)`: data in the list '
            "without them is read in its own order",
        ),
        ({"worker_init_fn": len}, "leave it out: workers are threads .*HostRandomMapTransform"),
        ({"multiprocessing_context": "spawn"}, "leave it out: workers are threads"),
        (
            {"batch_sampler": [[1]]},
            r"write `DatasetSource\(dataset, ordering=indices\)`.*behind",
        ),
        ({"generator": 0}, r"no `generator=`; write `loader.init_state\(jax.random.key\(0\)\)`"),
        ({"seed": 0}, r"no `seed=`; write `loader.init_state\(jax.random.key\(0\)\)`"),
        ({"in_order": True}, "batches always come in order"),
        ({"num_workers": 4}, "no `num_workers=`; write `workers=4`"),
        (
            {"drop_last": True},
            r"no `drop_last=`; write `BatchTransform\(batch_size, drop_last=True\)`",
        ),
        (
            {"collate_fn": len},
            r"no `collate_fn=`; write `BatchTransform\(batch_size, collate=fn\)`",
        ),
        ({"sampler": [1]}, r"no `sampler=`; write `ArraySampleSource\(data, ordering=indices\)`"),
        ({"threads": 2}, "unknown option `threads=`; it takes `pipeline`, a list of stages"),
    ],
)
def test_options_of_other_loaders_print_the_line_to_write(
    options: dict[str, Any], match: str
) -> None:
    with pytest.raises(UsageError, match=match):
        DataLoader([RangeSource(4)], **options)  # type: ignore[call-overload]


def test_the_message_for_an_option_shows_a_whole_pipeline() -> None:
    shuffled = r'`DataLoader\(\[DatasetSource\(data, ordering="shuffle"\), BatchTransform\(4\)\]\)`'
    with pytest.raises(UsageError, match=shuffled):
        DataLoader(dataset=[1, 2], batch_size=4, shuffle=True)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match=r"`DataLoader\(\[data, BatchTransform\(4\)\]\)`"):
        DataLoader(dataset=[1, 2], batch_size=4)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("ArraySource", "ArraySampleSource"),
        ("FlattenTransform", "FlattenImageTransform"),
        ("Dataloader", "DataLoader"),
    ],
)
def test_names_of_other_libraries_print_ours(name: str, ours: str) -> None:
    match = f"cereal has no {name}; write `from cereal import {ours}`"
    with pytest.raises(ImportError, match=match):
        exec(f"from cereal import {name}")
    with pytest.raises(ImportError, match=match):
        getattr(cereal, name)


def test_unknown_names_are_ordinary_errors() -> None:
    with pytest.raises(AttributeError, match="module 'cereal' has no attribute 'Nonsense'"):
        _ = cereal.Nonsense
    with pytest.raises(ImportError, match="cannot import name 'Nonsense'"):
        exec("from cereal import Nonsense")


# States


def shuffled(n: int = 10) -> DataLoader[Any]:
    return DataLoader([RangeSource(n, ordering="shuffle"), BatchTransform(4)])


def test_next_batch_without_a_state_prints_the_lines_to_write() -> None:
    match = (
        r"`next_batch` needs a state; write `state = loader\.init_state\(key\)`, then "
        r"`batch, state, mask = loader\.next_batch\(state\)`"
    )
    with pytest.raises(UsageError, match=match):
        shuffled().next_batch()


def jitter(x: Any, key: Any) -> Any:
    return x + jax.random.randint(key, (), 0, 9)


OTHERS: dict[str, tuple[DataLoader[Any], str]] = {
    "length": (shuffled(11), "it has length=11, this one has length=10"),
    "ordering": (
        DataLoader([RangeSource(10), BatchTransform(4)]),
        "it has ordering=sequential, this one has ordering=shuffle",
    ),
    "random stages": (
        DataLoader([RangeSource(10, ordering="shuffle"), RandomMapTransform(jitter)]),
        "it has random_stages=1, this one has random_stages=0",
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_state_of_another_pipeline_is_refused_everywhere(other: str) -> None:
    loader, match = shuffled(), OTHERS[other][1] + r".*this loader's `init_state\(key\)`"
    state = OTHERS[other][0].init_state(0)
    with pytest.raises(StateError, match=match):
        loader.next_batch(state)
    with pytest.raises(StateError, match=match):
        loader.iterate(state)
    with pytest.raises(StateError, match=match):
        loader.scan_epoch(state, 0, lambda carry, batch, mask: (carry, None))
    with pytest.raises(StateError, match=match):
        loader.source.next(state)
    with pytest.raises(StateError, match=match):
        jax.jit(loader.next_batch)(state)


def test_a_state_of_another_batch_size_is_welcome() -> None:
    wide = DataLoader([RangeSource(10, ordering="shuffle"), BatchTransform(7)])
    batch, state, _ = shuffled().next_batch(shuffled().init_state(0))
    rest = wide.next_batch(state)[0]
    assert sorted([*batch.tolist(), *rest[:6].tolist()]) == list(range(10))


@pytest.mark.parametrize(
    ("state", "got"),
    [
        (3, r"the integer 3; write `state = loader\.init_state\(3\)`"),
        (None, r"NoneType; write `state = loader\.init_state\(key\)`"),
        ({"epoch": 0}, r"dict; write `state = loader\.init_state\(key\)`"),
        (jax.random.PRNGKey(0), r"a JAX random key; write `state = loader\.init_state\(key\)`"),
        (jax.random.key(0), r"a JAX random key; write `state = loader\.init_state\(key\)`"),
    ],
)
def test_something_that_is_no_state_is_refused(state: Any, got: str) -> None:
    match = f"must be what `init_state\\(key\\)` or the last step returned, got {got}"
    with pytest.raises(StateError, match=match):
        shuffled().next_batch(state)


@pytest.mark.parametrize(
    ("key", "match"),
    [
        (jnp.zeros(3, jnp.uint32), r"dtype uint32 and shape \(3,\), which is no random key"),
        (jnp.zeros(2), r"dtype float32 and shape \(2,\), which is no random key"),
        ("seed", r"got str; pass `jax\.random\.key\(0\)`"),
        (True, "got bool; pass"),
        (1.5, "got float; pass"),
        (jax.random.split(jax.random.key(0), 3), r"`jax\.vmap\(loader\.init_state\)\(keys\)`"),
        (jax.random.split(jax.random.PRNGKey(0), 3), r"array of keys of shape \(3,\)"),
    ],
)
def test_a_wrong_key_says_what_to_pass(key: Any, match: str) -> None:
    with pytest.raises(StateError, match=match):
        shuffled().init_state(key)
    with pytest.raises(StateError, match=match):
        shuffled().batch_at(key, 0)


@pytest.mark.parametrize("step", [-1, 1.5, "3"])
@pytest.mark.parametrize("method", ["state_at", "batch_at", "indices_at"])
def test_a_wrong_step_is_refused(method: str, step: Any) -> None:
    match = f"`step` must be an integer of at least 0, got {step!r}"
    with pytest.raises(PipelineError, match=match):
        getattr(shuffled(), method)(0, step)


# Maps that break their word


def test_a_map_whose_structure_differs_between_traces_is_named() -> None:
    extra: list[str] = []

    def unstable(batch: Any) -> Any:
        return {"x": batch, **dict.fromkeys(extra, batch)}

    loader = DataLoader([RangeSource(4), BatchTransform(2), MapTransform(unstable)])
    extra.append("late")
    match = (
        r"MapTransform\(unstable\) now returns \{late: int32\[2\], x: int32\[2\]\}, but returned "
        r"\{x: int32\[2\]\} when the pipeline was built; its result must depend on nothing but its "
        "arguments"
    )
    with pytest.raises(PipelineError, match=match):
        loader.next_batch(loader.init_state(0))


@pytest.mark.parametrize(
    ("result", "match"),
    [
        ("text", r"must return a tree of arrays, but its result is str \('text'\)"),
        ({"x": object()}, r"must return a tree of arrays, but \['x'\] is object"),
        (None, r"returned None, which holds no array; did `fn` forget to `return` the batch\?"),
    ],
)
def test_a_map_that_returns_no_arrays_is_refused_when_built(result: Any, match: str) -> None:
    def wrong(batch: Any) -> Any:
        del batch
        return result

    with pytest.raises(PipelineError, match=rf"stage 1: MapTransform\(wrong\) {match}"):
        DataLoader([RangeSource(4), MapTransform(wrong)])


# Streams


@cereal.pytree_dataclass
class Counter(cereal.Source[jax.Array]):
    steps_per_epoch: int = cereal.static_field(default=5)

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), jnp.int32)

    def init_state(self, key: Any) -> Any:
        del key
        return jnp.int32(0)

    def next(self, state: Any) -> Any:
        return state, jnp.bool_(True), state + 1


@pytest.mark.parametrize("method", ["state_at", "batch_at", "indices_at"])
def test_a_stream_has_no_positions_and_says_what_to_do(method: str) -> None:
    match = f"`{method}` needs an indexed pipeline; .*Counter.* is a stream.*with `next_batch`"
    with pytest.raises(UsageError, match=match):
        getattr(DataLoader([Counter()]), method)(0, 3)
