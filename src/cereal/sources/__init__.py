"""WHAT: one file for each kind of data, and for each way to combine sources."""

from .array import ArraySampleSource as ArraySampleSource
from .combined.concat import ConcatSource as ConcatSource
from .combined.mix import MixSource as MixSource
from .combined.repeat import RepeatSource as RepeatSource
from .combined.select import select as select
from .combined.slice import SliceSource as SliceSource
from .combined.split import kfold as kfold
from .combined.split import split as split
from .combined.zip import ZipSource as ZipSource
from .dataset import DatasetSource as DatasetSource
from .dataset_to_jax import dataset_to_jax as dataset_to_jax
from .disk import DiskSampleSource as DiskSampleSource
from .files.array_files import save_arrays as save_arrays
from .files.array_record import ArrayRecordSource as ArrayRecordSource
from .files.memmap import MemmapSource as MemmapSource
from .files.tar import TarSource as TarSource
from .files.tfrecord import TFRecordSource as TFRecordSource
from .iterators.iterable import IterableSource as IterableSource
from .range import RangeSource as RangeSource
from .window import WindowSource as WindowSource
from .window import split_time as split_time
