"""Contracts and arithmetic; needs jax and numpy alone."""

from .block_shuffle import BlockShuffle as BlockShuffle
from .errors import CaptureWarning as CaptureWarning
from .errors import CerealError as CerealError
from .errors import DatasetError as DatasetError
from .errors import EpochWarning as EpochWarning
from .errors import OptionWarning as OptionWarning
from .errors import PipelineError as PipelineError
from .errors import StateError as StateError
from .errors import UsageError as UsageError
from .masked import masked_mean as masked_mean
from .positional import IndexedSource as IndexedSource
from .pytree import pytree_dataclass as pytree_dataclass
from .pytree import static_field as static_field
from .sampling import Bootstrap as Bootstrap
from .sampling import ClassBalanced as ClassBalanced
from .sampling import WeightedSampling as WeightedSampling
from .source import Source as Source
from .stage import Transform as Transform
from .state import PipelineState as PipelineState
