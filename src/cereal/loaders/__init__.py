"""WHEN: the loader, its iterator, `evaluate`, `preview` and `cereal.jit`."""

from .batch_iterator import BatchIterator as BatchIterator
from .evaluate import evaluate as evaluate
from .jit import jit as jit
from .loader import DataLoader as DataLoader
from .preview import preview as preview
