"""Which element comes next: arithmetic that gives the same in NumPy and in JAX."""

from .block_shuffle import BlockShuffle as BlockShuffle
from .sampling import Bootstrap as Bootstrap
from .sampling import ClassBalanced as ClassBalanced
from .sampling import WeightedSampling as WeightedSampling
