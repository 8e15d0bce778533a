"""A pipeline with a host part, and who reads it."""

from __future__ import annotations

from typing import Any, TypeVar

import jax

from ...core.positional import Positional
from ...core.pytree import pytree_dataclass, static_field
from ...core.rows import Rows
from ...core.source import Source
from ...core.wrapper import PositionalWrapper
from .options import Options
from .readers import Readers

T_co = TypeVar("T_co", covariant=True)


@pytree_dataclass
class Seam(PositionalWrapper[T_co]):
    """The pipeline of a loader, as it is run."""

    source: Any
    readers: Any
    skips: bool = static_field(default=False)

    @property
    def label(self) -> str:
        return self.source.label

    def element_spec(self) -> Any:
        return self.source.element_spec()

    @property
    def masks(self) -> bool:
        return self.source.masks or self.skips

    @property
    def service(self) -> int | None:
        return self.readers.number

    def fetch(self, rows: Rows) -> Rows:
        if isinstance(rows.index, jax.ShapeDtypeStruct):
            return self.source.fetch(rows)
        return self.readers.fetch_now(self.source, rows, in_program=False)

    def next_rows(self, words: Any) -> tuple[Rows, Any]:
        if not self.readers.threads:
            return super().next_rows(words)
        return self.readers.next_rows(self.source, words)

    def read(self, rows: Rows) -> tuple[T_co, Any]:
        return self.source.read(rows)

    def passes(self, rows: Rows) -> Any:
        return self.source.passes(rows)


def with_readers(source: Source[Any], options: Options) -> Source[Any]:
    """The pipeline with readers of its own, if Python reads a part of it."""
    if isinstance(source, Positional) and source.host:
        return Seam(source, Readers(source, options), options.skips)
    options.warn_unused()
    return source
