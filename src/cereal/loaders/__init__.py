"""WHEN: the loader, its iterators, its scans, its drawing, and `cereal.jit`."""

from .iterators.batch_iterator import BatchIterator as BatchIterator
from .jit import jit as jit
from .loader import DataLoader as DataLoader
from .many_hosts.global_batch import global_batch as global_batch
from .masked_mean import masked_mean as masked_mean
from .scan.evaluate import evaluate as evaluate
