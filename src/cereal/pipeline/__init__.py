"""The interfaces of sources and stages, and how one step of a pipeline runs."""

from .positional import IndexedSource as IndexedSource
from .source import Source as Source
from .stage import Transform as Transform
from .state import PipelineState as PipelineState
