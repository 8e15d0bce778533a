"""WHEN: the loader, its iterator, and `cereal.jit`."""

from .iterator import BatchIterator as BatchIterator
from .jit import jit as jit
from .loader import DataLoader as DataLoader
