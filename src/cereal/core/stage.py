"""Stages: transforms of one step's values, and the contract of all transforms.

A stage says what it does to one step's values; where it stands decides what a step is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, Self, TypeVar

from .elsewhere import refuse_elsewhere
from .pipeline import attach
from .placed import CompiledStage
from .positional import Positional
from .promise import infer_spec
from .pytree import said
from .source import Source, check_source
from .spec import Spec
from .stream_stages import StreamStage
from .traits import StageTraits

A = TypeVar("A")
B = TypeVar("B")


class Transform(ABC, Generic[A, B]):
    """Anything that makes a source from a source: `Transform(...)(source)`, or in a list.

    Any callable from Source to Source is a stage too; this is the base of those that come with
    cereal.

    >>> import cereal
    >>> def every_pixel_twice(source):
    ...     return cereal.MapTransform(lambda x: 2 * x)(source)
    >>> loader = cereal.DataLoader([cereal.RangeSource(3), every_pixel_twice])
    >>> [int(x) for x, mask in loader]
    [0, 2, 4]
    """

    def __new__(cls, *_: Any, **options: Any) -> Self:
        """Says where options of other libraries went, which `__init__` would only not know."""
        if options:
            refuse_elsewhere(cls, options)
        return super().__new__(cls)

    @abstractmethod
    def __call__(self, source: Source[A]) -> Source[B]:
        """The source with this transform around it."""

    @property
    def _label(self) -> str:
        """How drawings and error messages call this transform."""
        return type(self).__name__

    def __repr__(self) -> str:
        return said(lambda: self._label, f"{type(self).__name__}(...)")


class Stage(Transform[A, B]):
    """A transform of one step's values."""

    traits: ClassVar[StageTraits] = StageTraits()

    @abstractmethod
    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        """New values and mask. Arrays have `lanes` as leading axes: none for an element.

        `keys` has one key per lane for a random stage and is None for others.
        """

    def mask_shape(self, before: tuple[int, ...], spec: Spec) -> tuple[int, ...]:
        """The shape of masks after it, from that before it; `spec` is that of its result."""
        del spec
        return before

    def __call__(self, source: Source[A]) -> Source[B]:
        check_source(source, self._label)
        traits = source.traits
        stage, spec = infer_spec(self, source)
        if not isinstance(source, Positional):
            return StreamStage(source, stage, spec)
        return attach(source, CompiledStage(stage, spec, traits.lanes, traits.random_stages))
