"""The properties of a pipeline, as one frozen value that is made when the pipeline is built.

    source.traits  --over a stage-->  traits  --over a stage-->  traits of the whole pipeline
    Traits.merge([a.traits, b.traits])        of a source that is made of others

To add a trait: write one line here, with its default; set it in one place, and read it in another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..base.errors import PipelineError
from ..base.identity import Identity
from ..order.position import Remainder
from ..order.rows import Part


@dataclasses.dataclass(frozen=True)
class StageTraits:
    """What a stage adds to a pipeline."""

    random: bool = False  # it draws random numbers for every element
    changes_mask: bool = False
    light: bool = False  # it is quick to compile: a program may contain it many times
    hands_through: bool = False  # it does not change values and mask
    lane_wise: bool = False  # in a batch, each element is treated as if it were alone
    callbacks: tuple[Any, ...] = ()  # Python functions that it runs once per batch, in order
    placement: Any = None  # the device or sharding that batches go to from here on


@dataclasses.dataclass(frozen=True)
class Traits:
    """What the rest of the library asks about a source, or about a source with stages."""

    # A step
    lanes: tuple[int, ...] = ()  # its leading axes: () for one element, (128,) for a batch
    mask_shape: tuple[int, ...] = ()  # `lanes`; longer if something finer is masked
    callbacks: tuple[Any, ...] = ()  # Python functions that it runs exactly once, in order
    light: bool = False  # it is quick to compile: a program may contain many steps
    placement: Any = None  # the device or sharding that batches go to; None: where they are
    masks: bool = False  # masks are changed, so the position alone does not give the mask
    envs: tuple[int, ...] | None = None  # of rollouts: the axes of environments, after `lanes`
    drawn: bool = False  # of a stream: steps come from a buffer or shuffled, and do not follow on
    in_place: bool = False  # its state is large, and programs should change it in place
    pinned: bool = False  # a part of its state lies in host memory, beside one device

    # The order of the data
    length: int = 0  # elements in an epoch
    unknown_length: bool = False  # an epoch ends when an iterator ends; its length is not known
    remainder: Remainder = "wrap"  # what happens at the end of an epoch
    read_lanes: tuple[int, ...] | None = None  # those that are read, if not `lanes`
    part: Part | None = None  # which part of each batch is read, if not all of it
    order: Identity = ()  # in which order the data is visited
    path: Identity = ()  # for combined sources: which elements of which data these are

    # Randomness
    random_stages: int = 0  # how many there are; this is also the number of the next one
    random: bool | None = False  # a step depends on the key, or epochs differ; None: not known
    keyed: bool = False  # the element at an index depends on the key
    varies: bool = False  # the data itself has other elements in another epoch
    fixed: bool = True  # an index stands for the same element in every epoch
    once: bool = True  # no two indices stand for one element of the data
    overlap: int = 0  # if elements share data: the smallest stride at which they would not
    windows: bool = False  # an element is a row of steps itself
    episodes: bool = False  # its data is recorded episodes

    # What Python reads
    host: bool = False  # Python reads data below, outside of compiled programs
    by_python: bool = False  # Python can make a whole step, so host stages may follow
    masks_on_host: bool = False  # the part that Python runs may leave elements out
    quick: bool = True  # Python reads so quickly that a worker would not help
    ahead: int = 0  # how many elements to read ahead; 0: the source does not say

    def but(self, **changed: Any) -> Traits:
        """The same with some of them changed."""
        return dataclasses.replace(self, **changed)

    def over(self, stage: StageTraits) -> Traits:
        """The traits after a compiled stage."""
        return self.but(
            callbacks=self.callbacks + stage.callbacks,
            light=self.light and stage.light,
            placement=stage.placement or self.placement,
            masks=self.masks or stage.changes_mask,
            random_stages=self.random_stages + stage.random,
            random=True if stage.random else self.random,
            keyed=self.keyed or stage.random,
            by_python=False,
        )

    def over_host(self, stage: StageTraits) -> Traits:
        """The traits after a stage that Python runs."""
        return self.over(stage).but(
            light=self.light,
            host=True,
            by_python=True,
            quick=False,
            masks_on_host=self.masks_on_host or stage.changes_mask,
        )

    def batched(self, size: int, remainder: Remainder) -> Traits:
        """The traits after batching `size` steps."""
        lanes, mask_shape = (size, *self.lanes), (size, *self.mask_shape)
        return self.but(lanes=lanes, mask_shape=mask_shape, remainder=remainder)

    @staticmethod
    def merge(parts: Sequence[Traits]) -> dict[str, Any]:
        """The traits that a combined source has from its parts."""
        return {
            "light": all(part.light for part in parts),
            "placement": _one_place(parts),
            "masks": any(part.masks for part in parts),
            "mask_shape": _one_mask(parts),
            "random_stages": max(part.random_stages for part in parts),
            "keyed": any(part.keyed for part in parts),
            "varies": any(part.varies for part in parts),
            "fixed": all(part.fixed for part in parts),
            "once": all(part.once for part in parts),
            "overlap": max(part.overlap for part in parts),
            "windows": any(part.windows for part in parts),
            "episodes": any(part.episodes for part in parts),
            "host": any(part.host for part in parts),
            "by_python": all(part.by_python for part in parts),
            "masks_on_host": any(part.masks_on_host for part in parts),
            "quick": all(part.quick for part in parts),
            "ahead": max(part.ahead for part in parts),
        }


def _one_mask(parts: Sequence[Traits]) -> tuple[int, ...]:
    """The shape of masks: the finest, if the others are masks of whole elements."""
    found = {part.mask_shape for part in parts} - {()}
    if len(found) > 1:
        shapes = " and ".join(str(list(shape)) for shape in sorted(found)[:2])
        raise PipelineError(
            f"the parts of a combined source have masks of different shapes, {shapes}; cut all of "
            f"them into windows of one length."
        )
    return next(iter(found), ())


def _one_place(parts: Sequence[Traits]) -> Any:
    places = {part.placement for part in parts} - {None}
    if len(places) > 1:
        names = " and ".join(sorted(map(str, places))[:2])
        raise PipelineError(
            f"the parts of a combined source are put in different places, {names}, and a batch "
            f"goes to one; write one DevicePutTransform, after the BatchTransform."
        )
    return next(iter(places), None)
