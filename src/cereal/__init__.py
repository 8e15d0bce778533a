"""cereal: the data loader for JAX.

A pipeline is a pure function from (key, position) to a batch.

The folders of the package; each imports only from those above it:

    base/        errors, checks of arguments, pytree dataclasses, specs
    reading/     all that Python runs for a batch: readers, stages, the loop over elements; no JAX
    device/      where data lies, how rows of it are gathered, how they travel
    order/       which element comes next: permutations, orders, mixtures, rows
    functions/   users' functions: is one unchanged, or must it be traced again?
    routes/      from the index of a combined source to a row of its data
    host/        around that: the data of sources, threads, callbacks of programs
    pipeline/    the contract: source, traits, stages, state, one step
    cache/       results that are kept: how they are named, stored and checked
    workers/     the threads that read for a loader
    sources/     WHAT: one file for each kind of data, and for each way to combine sources
    transforms/  HOW: one file for each transform
    loaders/     WHEN: the loader, its iterators, its scans, its drawing, `cereal.jit`
    conversion/  from any source to a folder of mapped arrays
    preview/     looking at data
    datasets/    ready-made data
    rl/          rollouts: policies and environments as a stream of transitions
    testing.py   checks for sources and transforms that users write
"""

from typing import Any as _Any

from .base.errors import CaptureWarning as CaptureWarning
from .base.errors import CerealError as CerealError
from .base.errors import DatasetError as DatasetError
from .base.errors import EpochWarning as EpochWarning
from .base.errors import OptionWarning as OptionWarning
from .base.errors import PipelineError as PipelineError
from .base.errors import ReplicaError as ReplicaError
from .base.errors import StateError as StateError
from .base.errors import UsageError as UsageError
from .base.pytree import pytree_dataclass as pytree_dataclass
from .base.pytree import static_field as static_field
from .conversion import convert as convert
from .datasets import CelebADataset as CelebADataset
from .datasets import CIFAR10Dataset as CIFAR10Dataset
from .datasets import CIFAR100Dataset as CIFAR100Dataset
from .datasets import DailyMinTemperaturesDataset as DailyMinTemperaturesDataset
from .datasets import DigitsDataset as DigitsDataset
from .datasets import EMNISTDataset as EMNISTDataset
from .datasets import FashionMNISTDataset as FashionMNISTDataset
from .datasets import KMNISTDataset as KMNISTDataset
from .datasets import MNISTDataset as MNISTDataset
from .datasets import MNISTDiskSource as MNISTDiskSource
from .datasets import SunspotsDataset as SunspotsDataset
from .device.mesh import mesh as mesh
from .loaders import BatchIterator as BatchIterator
from .loaders import DataLoader as DataLoader
from .loaders import evaluate as evaluate
from .loaders import global_batch as global_batch
from .loaders import jit as jit
from .loaders import masked_mean as masked_mean
from .order import BlockShuffle as BlockShuffle
from .order import Bootstrap as Bootstrap
from .order import ClassBalanced as ClassBalanced
from .order import WeightedSampling as WeightedSampling
from .pipeline import IndexedSource as IndexedSource
from .pipeline import PipelineState as PipelineState
from .pipeline import Source as Source
from .pipeline import Transform as Transform
from .preview import preview as preview
from .reading.records.example import parse_example as parse_example
from .rl import BufferTransform as BufferTransform
from .rl import GymnaxSource as GymnaxSource
from .rl import ReplayTransform as ReplayTransform
from .sources import ArrayRecordSource as ArrayRecordSource
from .sources import ArraySampleSource as ArraySampleSource
from .sources import ArrowSource as ArrowSource
from .sources import ConcatSource as ConcatSource
from .sources import CSVSource as CSVSource
from .sources import DatasetSource as DatasetSource
from .sources import DiskSampleSource as DiskSampleSource
from .sources import HDF5Source as HDF5Source
from .sources import ImageFolderSource as ImageFolderSource
from .sources import IterableSource as IterableSource
from .sources import MemmapSource as MemmapSource
from .sources import MixSource as MixSource
from .sources import ParquetSource as ParquetSource
from .sources import RangeSource as RangeSource
from .sources import RepeatSource as RepeatSource
from .sources import SliceSource as SliceSource
from .sources import SQLiteSource as SQLiteSource
from .sources import TarSource as TarSource
from .sources import TFRecordSource as TFRecordSource
from .sources import WindowSource as WindowSource
from .sources import ZarrSource as ZarrSource
from .sources import ZipSource as ZipSource
from .sources import dataset_to_jax as dataset_to_jax
from .sources import kfold as kfold
from .sources import save_arrays as save_arrays
from .sources import select as select
from .sources import split as split
from .sources import split_time as split_time
from .transforms import BatchTransform as BatchTransform
from .transforms import CacheTransform as CacheTransform
from .transforms import DecodeImageTransform as DecodeImageTransform
from .transforms import DevicePutTransform as DevicePutTransform
from .transforms import FilterTransform as FilterTransform
from .transforms import FlattenImageTransform as FlattenImageTransform
from .transforms import HostCallbackTransform as HostCallbackTransform
from .transforms import HostFilterTransform as HostFilterTransform
from .transforms import HostMapTransform as HostMapTransform
from .transforms import HostRandomMapTransform as HostRandomMapTransform
from .transforms import MapTransform as MapTransform
from .transforms import NormalizeImageTransform as NormalizeImageTransform
from .transforms import RandomMapTransform as RandomMapTransform
from .transforms import RenameTransform as RenameTransform
from .transforms import TimeSeriesBatchTransform as TimeSeriesBatchTransform
from .transforms import UnbatchTransform as UnbatchTransform
from .transforms import pad_collate as pad_collate

__version__ = "0.1.0"

_elsewhere_called = {
    "ArraySource": "ArraySampleSource",
    "FlattenTransform": "FlattenImageTransform",
    "Dataloader": "DataLoader",
}


def __getattr__(name: str) -> _Any:
    if name in _elsewhere_called:
        ours = _elsewhere_called[name]
        raise ImportError(f"cereal has no {name}; write `from cereal import {ours}`.")
    raise AttributeError(f"module 'cereal' has no attribute {name!r}")


# Users see `cereal.DataLoader`, not the module in which it is defined.
for _name, _value in list(globals().items()):
    if not _name.startswith("_") and getattr(_value, "__module__", "").startswith("cereal."):
        _value.__module__ = "cereal"
