"""WHEN: the loader, its iterator, `evaluate`, `preview` and `cereal.jit`."""

from .evaluate import evaluate as evaluate
from .iterator import BatchIterator as BatchIterator
from .jit import jit as jit
from .loader import DataLoader as DataLoader
from .preview import preview as preview
