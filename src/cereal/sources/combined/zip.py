"""Sources side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax

from ...base.errors import PipelineError
from ...base.identity import listed
from ...base.pytree import pytree_dataclass, set_fields, static_field
from ...device.masks import both
from ...order.ordering import Order
from ...order.rows import Rows
from ...pipeline.source import Source
from ...pipeline.traits import Traits
from ...reading.readers.combined import ZipReader
from ...reading.structure import structure_of
from .over_members import OverMembers
from .routed import check_part, count_of, inherited

_OWNER = "ZipSource"


@pytree_dataclass
class ZipSource(OverMembers[Any]):
    """Element i of every source, together: a tuple for a list of sources, a dict for a dict.

        [a0 a1 a2], [b0 b1 b2]  ->  (a0, b0) (a1, b1) (a2, b2)

    The sources must have one length. All are read at the same indices, in the order `ordering`; by
    default it is shuffled if one of the sources is shuffled. Random stages inside the sources are
    independent of each other: to augment an image and its mask alike, augment after zipping.

    >>> import cereal, numpy as np
    >>> letters = cereal.ArraySampleSource(np.array([7, 8, 9]), ordering="sequential")
    >>> pairs = cereal.ZipSource({"a": cereal.RangeSource(3), "b": letters})
    >>> [(int(x["a"]), int(x["b"])) for x, mask in cereal.DataLoader(pairs)]
    [(0, 7), (1, 8), (2, 9)]
    """

    sources: tuple[Any, ...]
    ordering: Order
    structure: Any = static_field(default=None)

    def __init__(
        self, sources: Sequence[Source[Any]] | Mapping[str, Source[Any]], *, ordering: Any = None
    ) -> None:
        if isinstance(sources, Source) or not isinstance(sources, Sequence | Mapping):
            raise PipelineError(
                f"{_OWNER}: `sources` must be a list or a dict of sources, got "
                f"{type(sources).__name__}; write `ZipSource([images, labels])`."
            )
        tree = dict(sources) if isinstance(sources, Mapping) else tuple(sources)
        if not tree:
            raise PipelineError(f"{_OWNER}: there are no sources; give it at least one.")
        for name, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            check_part(part, _OWNER, f"source {name!r}")
        parts, structure = jax.tree.flatten(tree, is_leaf=lambda x: isinstance(x, Source))
        if len({len(part) for part in parts}) > 1:
            counted = ", ".join(count_of(part) for part in parts)
            least = min(len(part) for part in parts)
            raise PipelineError(
                f"{_OWNER}: all sources must have one length, got {counted}; cut the longer with "
                f"`SliceSource(source, range({least}))`."
            )
        order = inherited(ordering, parts, len(parts[0]), _OWNER)
        set_fields(self, sources=tuple(parts), ordering=order, structure=structure)

    def __len__(self) -> int:
        return len(self.sources[0])

    def element_spec(self) -> Any:
        return self._tree([source.element_spec() for source in self.sources])

    @property
    def _label(self) -> str:
        counted = ", ".join(count_of(source) for source in self.sources)
        return f"ZipSource({counted}, ordering={self._order.name})"

    @property
    def _members(self) -> tuple[Any, ...]:
        return self.sources

    def _describe(self) -> Traits:
        paths = [source.traits.path for source in self.sources]
        path = listed("zip({})", paths) if any(paths) else ()
        return self._describe_as(path=path, **self._merged())

    def _route(self, rows: Rows) -> Rows:
        return rows.replaced(
            below=tuple(source._route(rows).without_key for source in self.sources)
        )

    def _fetch(self, rows: Rows) -> Rows:
        below = [source._fetch(each).without_key for source, each in self._below(rows)]
        return rows.replaced(below=tuple(below))

    def _below(self, rows: Rows) -> list[tuple[Any, Rows]]:
        """Each source with its rows, already routed."""
        pairs = enumerate(zip(self.sources, rows.below, strict=True))
        return [
            (source, each.replaced(key=self._member_key(rows.key, number)))
            for number, (source, each) in pairs
        ]

    @cached_property
    def _reader(self) -> ZipReader:
        readers = tuple(source._reader for source in self.sources)
        outer = structure_of(self._tree([0] * len(readers)))
        return ZipReader(readers, outer, self.traits.random_stages > 0)

    def _read(self, rows: Rows) -> tuple[Any, Any]:
        rows = self._route(rows) if rows.below is None else rows
        values, mask = [], None
        for source, each in self._below(rows):
            value, real = source._read(each)
            values.append(value)
            mask = real if mask is None else mask if real is None else both(mask, real)
        return self._tree(values), mask

    def _tree(self, parts: list[Any]) -> Any:
        return jax.tree.unflatten(self.structure, parts)
