"""Errors, checks, pytrees and specs: what all other folders use. Knows nothing of pipelines."""

from .errors import CaptureWarning as CaptureWarning
from .errors import CerealError as CerealError
from .errors import DatasetError as DatasetError
from .errors import EpochWarning as EpochWarning
from .errors import OptionWarning as OptionWarning
from .errors import PipelineError as PipelineError
from .errors import StateError as StateError
from .errors import UsageError as UsageError
from .pytree import pytree_dataclass as pytree_dataclass
from .pytree import static_field as static_field
