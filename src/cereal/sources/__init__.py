"""WHAT: one file per place that data can come from, and per way to combine sources."""

from .array import ArraySampleSource as ArraySampleSource
from .array_files import save_arrays as save_arrays
from .concat import ConcatSource as ConcatSource
from .dataset import DatasetSource as DatasetSource
from .dataset_to_jax import dataset_to_jax as dataset_to_jax
from .disk import DiskSampleSource as DiskSampleSource
from .iterable import IterableSource as IterableSource
from .memmap import MemmapSource as MemmapSource
from .mix import MixSource as MixSource
from .range import RangeSource as RangeSource
from .repeat import RepeatSource as RepeatSource
from .select import select as select
from .slice import SliceSource as SliceSource
from .split import kfold as kfold
from .split import split as split
from .window import WindowSource as WindowSource
from .window import split_time as split_time
from .zip import ZipSource as ZipSource
