"""Loaders that give one of several equal parts of every batch: `shard=(index, count)`.

All parts take the same number of steps, whatever the length of the data. The whole batches are
those of a loader without `shard=`: a state may go on with another number of parts.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import jax

from ...base.capture import callers_level
from ...base.errors import OptionWarning, PipelineError
from ...base.numbers import as_count, multiples_near
from ...base.pytree import pytree_dataclass, set_copy, static_field
from ...base.spec import Spec
from ...functions.traced_stage import TracedStage
from ...order.rows import Part
from ...pipeline.pipeline import attach, make_pipeline, parts_of
from ...pipeline.placed import Batching, Cutting
from ...pipeline.positional import Positional
from ...pipeline.source import Source
from ...pipeline.traits import StageTraits

_WRITE = 'write `shard=(index, count)`, or `shard="jax"` for one part for each process of JAX'


@pytree_dataclass
class _Cut:
    """The last stage of such a pipeline, in drawings."""

    traits: ClassVar[StageTraits] = StageTraits(light=True)

    _label: str = static_field()


def take_shard(source: Source[Any], shard: Any) -> Source[Any]:
    """The pipeline that gives one part of every batch; None: unchanged."""
    if shard is None:
        return source
    index, count = _as_shard(shard)
    if not isinstance(source, Positional) or not source.traits.lanes:
        what = "is a stream" if source.traits.lanes else "gives single elements"
        raise PipelineError(
            f"DataLoader: `shard=` takes a part of every batch of an indexed pipeline, and "
            f"{source._label} {what}; "
            + ("use `sharding=`." if source.traits.lanes else "add a BatchTransform.")
        )
    part = Part(index, count, source.traits.lanes[-1])
    _check_divides(part, source)
    root, stages = parts_of(source)
    first = next(k for k, placed in enumerate(stages) if isinstance(placed, Batching))
    sees = [p for p in stages[first:] if _sees_batches(p)]
    if not sees:
        return _smaller(root, stages, first, part)
    _check_cuts(source, sees[0])
    label = f"part {index} of {count}"
    warnings.warn(
        f"DataLoader: {sees[0]._label} is given whole batches and may mix their elements, so every "
        f"part reads and computes whole batches, and keeps its own elements; if it treats each "
        f"element alone, put it before the BatchTransform.",
        OptionWarning,
        stacklevel=callers_level(),
    )
    lanes = source.traits.lanes
    size = -(-lanes[-1] // count)
    spec = jax.tree.map(lambda x: _cut_spec(x, lanes, size), source.element_spec())
    return attach(source, Cutting(_Cut(label), Spec(spec), lanes, part))


def _check_cuts(source: Any, stage: Any) -> None:
    lanes, mask = source.traits.lanes, source.traits.mask_shape
    if mask[: len(lanes)] != lanes:
        raise PipelineError(
            f"DataLoader: `shard=` cannot cut these batches: the mask {list(mask)} has not one "
            f"value for each of the {list(lanes)} elements, and {stage._label} is given whole "
            f"batches; put it before the BatchTransform, or use `sharding=`."
        )


def _cut_spec(leaf: Any, lanes: tuple[int, ...], size: int) -> Any:
    if leaf.shape[: len(lanes)] != lanes:
        return leaf
    shape = (*lanes[:-1], size, *leaf.shape[len(lanes) :])
    return jax.ShapeDtypeStruct(shape, leaf.dtype)


def _as_shard(shard: Any) -> tuple[int, int]:
    if isinstance(shard, str) and shard == "jax":
        return jax.process_index(), jax.process_count()
    if not isinstance(shard, tuple | list) or len(shard) != 2:
        raise PipelineError(
            f"DataLoader: `shard` must be two numbers, got {shard!r:.60}; {_WRITE}."
        )
    count = as_count(shard[1], "shard[1]", "DataLoader", 1)
    return as_count(shard[0], "shard[0]", "DataLoader", 0, count - 1), count


def _check_divides(part: Part, source: Any) -> None:
    if part.size % part.count == 0 or source.traits.remainder == "pad":
        return
    raise PipelineError(
        f"DataLoader: a batch of {part.size} cannot be divided into {part.count} equal parts; the "
        f"nearest sizes that can are {multiples_near(part.size, part.count)}. Or write "
        f"`BatchTransform({part.size}, pad_last_batch=True)`: then the last parts are padded, and "
        f"the mask says where."
    )


def _sees_batches(placed: Any) -> bool:
    """Whether a stage is given whole batches, whose elements it may mix."""
    if type(placed) is Batching:
        return False
    return bool(placed.lanes or isinstance(placed, Batching)) and not placed.stage.traits.lane_wise


def _smaller(root: Any, stages: tuple[Any, ...], first: int, part: Part) -> Any:
    """The same pipeline with smaller batches."""
    placed, before = stages[first], make_pipeline(root, stages[:first])
    size = -(-part.size // part.count)
    batch = set_copy(placed.stage, batch_size=size)
    spec = Spec(before.element_spec()).batched(size)
    source = attach(before, set_copy(placed, stage=batch, spec=spec, part=part))
    for placed in stages[first + 1 :]:
        stage = placed.stage
        source = (stage.python if isinstance(stage, TracedStage) else stage)(source)
    return source
