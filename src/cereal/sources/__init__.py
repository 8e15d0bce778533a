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
from .files.arrow import ArrowSource as ArrowSource
from .files.csv import CSVSource as CSVSource
from .files.hdf5 import HDF5Source as HDF5Source
from .files.image_folder import ImageFolderSource as ImageFolderSource
from .files.memmap import MemmapSource as MemmapSource
from .files.parquet import ParquetSource as ParquetSource
from .files.sqlite import SQLiteSource as SQLiteSource
from .files.tar import TarSource as TarSource
from .files.zarr import ZarrSource as ZarrSource
from .iterators.iterable import IterableSource as IterableSource
from .range import RangeSource as RangeSource
from .window import WindowSource as WindowSource
from .window import split_time as split_time
