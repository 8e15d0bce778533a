"""The contract: what a source is, what a stage is, and one step of a pipeline."""

from .positional import IndexedSource as IndexedSource
from .source import Source as Source
from .stage import Transform as Transform
from .state import PipelineState as PipelineState
