"""From a list of stages to one source, with errors that name the stage."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence, Set
from typing import Any

import jax
from jax.sharding import Sharding, SingleDeviceSharding

from ..base.elsewhere import INIT_KEY
from ..base.errors import PipelineError, UsageError
from ..base.pytree import is_pytree
from ..device.placement import check_layout, in_words
from ..host.element_spec import check_arrays
from ..host.host_data import HostFunction
from ..pipeline.positional import Positional
from ..pipeline.source import Source
from ..pipeline.stage import Transform
from ..reading.bridges.recognise import recognised
from ..sources.array_trees import refuse_running
from ..sources.dataset import as_source, is_dataset
from ..transforms.host.filter import HostFilterTransform
from ..transforms.host.map import HostMapTransform
from ..transforms.host.random_map import HostRandomMapTransform


def compose(pipeline: Any) -> Source[Any]:
    """The source that a list of stages makes: each stage wraps the one before it."""
    return _of_arrays(joined(pipeline))


def joined(pipeline: Any) -> Source[Any]:
    """The same, where what comes out of the last stage need not be arrays."""
    _refuse_class(pipeline, "the pipeline")
    if isinstance(pipeline, Source):
        return checked_source(pipeline, "the pipeline")
    if isinstance(pipeline, Transform):
        raise PipelineError(
            f"the pipeline is the transform {pipeline._label} and has no source; write "
            f"`DataLoader([source, {pipeline._label}])`."
        )
    refuse_running(pipeline, "the pipeline")
    if not isinstance(pipeline, Sequence) or isinstance(pipeline, str):
        recognised(pipeline, "the pipeline")  # a loader of torch: the error has the line to write
        data = "dataset" if is_dataset(pipeline) else "ArraySampleSource(data)"
        raise PipelineError(
            f"`pipeline` must be a source or a list that starts with one, got "
            f"{_describe(pipeline)}; write `DataLoader([{data}, BatchTransform(128)])`."
        )
    if not pipeline:
        raise PipelineError("the pipeline is empty; its first stage must be a source.")
    source = _first(pipeline[0])
    for position, stage in enumerate(pipeline[1:], start=1):
        source = _attach(source, stage, f"stage {position}")
    return source


def _of_arrays(source: Source[Any]) -> Source[Any]:
    check_arrays(
        source.element_spec(),
        f"the last stage, {source._label}",
        "turn it into arrays or numbers in a HostMapTransform, or in the `collate=` of a "
        "BatchTransform",
    )
    refuse_pinned(source, source.traits.placement)
    if isinstance(source.traits.placement, Sharding):  # stages after it may have changed the batch
        check_layout(
            source.traits.placement,
            source.element_spec(),
            source.traits.mask_shape,
            f"the last stage, {source._label}, after a DevicePutTransform to "
            f"{in_words(source.traits.placement)}",
        )
    return source


def refuse_pinned(source: Source[Any], placement: Any) -> None:
    """Refuses a mesh for a buffer in host memory: it would be copied to each of its devices."""
    if source.traits.pinned and not isinstance(placement, jax.Device | SingleDeviceSharding | None):
        raise PipelineError(
            f'`storage="host"` keeps a buffer in host memory beside one device, and the batches of '
            f"this pipeline go to a mesh, {in_words(placement)}; leave `storage=` out, or make a "
            f"loader for each device, with a `DevicePutTransform(device)`."
        )


def checked_source(source: Source[Any], where: str) -> Source[Any]:
    """Refuses a source that is not a pytree, or whose length or ordering is wrong."""
    if not is_pytree(source):
        raise PipelineError(
            f"{where}: {type(source).__name__} is not a pytree, so it cannot be passed to compiled "
            f"code; write `@cereal.pytree_dataclass` above its class."
        )
    if isinstance(source, Positional):
        try:
            _ = source.traits  # checks a user's length and ordering now, not at the first step
        except PipelineError as error:
            raise PipelineError(f"{where}: {error}") from error.__cause__
    return source


def _first(stage: Any) -> Source[Any]:
    where = "stage 0"
    _refuse_class(stage, where)
    if isinstance(stage, Source):
        return checked_source(stage, where)
    _refuse_pipelines(stage, where)
    made = None if isinstance(stage, Transform) else as_source(stage)
    if made is not None:
        return made
    raise PipelineError(
        f"{where} must be a source, arrays, or a dataset with `__len__` and `__getitem__`, got "
        f"{_describe(stage)}; {_instead(stage)}."
    )


def _refuse_pipelines(stage: Any, where: str) -> None:
    """Refuses a loader, a state or several sources; of a tree, only the first part is checked."""
    refuse_running(stage, where)
    first = _first_part(stage)
    if isinstance(first, Source):
        raise PipelineError(
            f"{where} is a {type(stage).__name__} of sources, the first {first._label}; join them "
            f"with `ConcatSource`, `MixSource` or `ZipSource`, or put the one source first."
        )
    if first is not None:
        _refuse_pipelines(first, f"the first part of {where}")


def _first_part(stage: Any) -> Any:
    if isinstance(stage, list | tuple) and stage and not isinstance(stage, str):
        return stage[0]
    if isinstance(stage, Mapping) and stage:
        return next(iter(stage.values()))
    return None


def _instead(stage: Any) -> str:
    if isinstance(stage, Mapping) and any(is_dataset(value) for value in stage.values()):
        return f"these are several datasets: pass one of them, {', '.join(map(repr, stage))}"
    if hasattr(stage, "__iter__") and not isinstance(stage, str | bytes | Mapping | Set):
        return "if it can only be iterated, write `IterableSource(lambda: iter(...))`"
    return "start the list with, for example, `ArraySampleSource(data)`"


def _attach(source: Source[Any], stage: Any, where: str) -> Source[Any]:
    _refuse_class(stage, where)
    if isinstance(stage, Source):
        raise PipelineError(
            f"{where} is a second source, {stage._label}; a pipeline has one, at its beginning."
        )
    stage = _as_host_stage(stage)
    if not callable(stage):
        size = getattr(stage, "batch_size", None)
        batch = f"write `BatchTransform({size})`" if isinstance(size, int) else ""
        raise PipelineError(
            f"{where} must be a transform or a function from source to source, got "
            f"{_describe(stage)}; {batch or 'for a function of batches write `MapTransform(fn)`'}."
        )
    name = stage._label if isinstance(stage, Transform) else _describe(stage)
    try:
        made = stage(source)
    except PipelineError as error:
        raise PipelineError(f"{where}: {error}") from error.__cause__
    except (TypeError, AttributeError, KeyError, IndexError, ValueError) as error:
        if isinstance(stage, Transform):
            raise
        raise PipelineError(
            f"{where} ({name}) failed when called with the source before it: "
            f"{type(error).__name__}: {error}; a stage is a function from source to source, and a "
            f"function of batches goes into `MapTransform(fn)`."
        ) from error
    if not isinstance(made, Source):
        raise PipelineError(
            f"{where} ({name}) must return a source, returned {_describe(made)}; for a function of "
            f"batches write `MapTransform(fn)`."
        )
    return checked_source(made, where)


def _as_host_stage(stage: Any) -> Any:
    """The host stage for an object with Grain's methods; anything else unchanged."""
    if isinstance(stage, Transform) or inspect.isfunction(stage) or inspect.ismethod(stage):
        return stage
    for name, make in _GRAIN.items():
        method = getattr(stage, name, None)
        if callable(method) and not is_dataset(stage):
            return make(HostFunction(method, called=type(stage).__name__))
    return stage


_GRAIN = {
    "random_map": HostRandomMapTransform,
    "map": HostMapTransform,
    "filter": HostFilterTransform,
}


def _refuse_class(stage: Any, where: str) -> None:
    if inspect.isclass(stage):
        raise PipelineError(
            f"{where} is the class {stage.__name__}, not an instance; write "
            f"`{stage.__name__}(...)`."
        )


def _describe(value: Any) -> str:
    name = getattr(value, "__name__", None)
    return f"{type(value).__name__} {name}" if name else f"{type(value).__name__} ({value!r:.60})"


_TORCH = {
    "batch_size": "add `BatchTransform({value!r})` to the list of stages",
    "shuffle": 'write `ArraySampleSource(data, ordering="shuffle")`, or for a dataset '
    '`DatasetSource(dataset, ordering="shuffle")`: data in the list without them is read in its '
    "own order",
    "num_workers": "write `workers={value!r}`",
    "prefetch_factor": "write `prefetch=`, a number of batches",
    "persistent_workers": "leave it out: workers are threads, which start in microseconds",
    "pin_memory": "leave it out: transfers are asynchronous by themselves",
    "pin_memory_device": "leave it out: transfers are asynchronous by themselves",
    "in_order": "leave it out: batches always come in order",
    "drop_last": "write `BatchTransform(batch_size, drop_last={value!r})`",
    "collate_fn": "write `BatchTransform(batch_size, collate=fn)`",
    "sampler": "write `ArraySampleSource(data, ordering=indices)`",
    "batch_sampler": "write `DatasetSource(dataset, ordering=indices)`, the indices of all batches "
    "one after another, and `BatchTransform(batch_size)` behind it",
    "worker_init_fn": "leave it out: workers are threads of this process, with nothing to set up. "
    "For random functions, write `HostRandomMapTransform(fn)`: `fn(element, rng)` is given a "
    "generator for every element",
    "multiprocessing_context": "leave it out: workers are threads of this process",
    "generator": INIT_KEY,
    "seed": INIT_KEY,
    "key": INIT_KEY,
    "dataset": "put it into the list: `DataLoader([dataset, ...])`",
    "mesh": 'write `sharding=(mesh, "data")`, with the axis of the mesh that divides batches',
    "shard_options": 'write `sharding=(mesh, "data")` for global batches, or `shard="jax"` for '
    "those of this process",
}


def refuse_misplaced(misplaced: tuple[Any, ...]) -> None:
    """Refuses `DataLoader(data, 32)` and `DataLoader(source, transform)`: there is one list."""
    if not misplaced:
        return
    second = misplaced[0]
    batch = f"BatchTransform({second})" if type(second) is int else "BatchTransform(128)"
    raise UsageError(
        f"`DataLoader` takes one list with the source and all stages, and options by name; got "
        f"{_describe(second)} as well. Write `DataLoader([ArraySampleSource(data, "
        f'ordering="shuffle"), {batch}])`.'
    )


def _example(options: dict[str, Any]) -> str:
    """A line that does what all these options of torch would."""
    size, shuffled = options.get("batch_size"), options.get("shuffle", "batch_size" not in options)
    size = size if isinstance(size, int) else 128
    source = 'DatasetSource(data, ordering="shuffle")' if shuffled else "data"
    drops = ", drop_last=True" if options.get("drop_last") else ""
    collate = ", collate=fn" if options.get("collate_fn") else ""
    count = options.get("num_workers")
    workers = f", workers={count}" if isinstance(count, int) and count else ""
    return f"DataLoader([{source}, BatchTransform({size}{drops}{collate})]{workers})"


def refuse_options(options: dict[str, Any]) -> None:
    """Refuses unknown options; for those of other loaders, says what to write instead."""
    if not options:
        return
    name, value = next(iter(options.items()))
    if name in _TORCH:
        raise UsageError(
            f"DataLoader has no `{name}=`; {_TORCH[name].format(value=value)}. For example: "
            f"`{_example(options)}`."
        )
    raise UsageError(
        f"DataLoader got an unknown option `{name}=`; it takes `pipeline`, a list of stages; "
        f"`workers`, `worker_type`, `prefetch`, `on_error` and `timeout` for what Python reads; "
        f"and `sharding`, `shard` and `check_replicas` for many devices."
    )
