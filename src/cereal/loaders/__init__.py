"""WHEN: the loader, its iterator, and `cereal.jit`."""

from .jit import jit as jit
from .loader import DataLoader as DataLoader
