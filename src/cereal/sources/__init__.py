"""WHAT: one file per place that data can come from, and per way to combine sources."""

from .array import ArraySampleSource as ArraySampleSource
from .concat import ConcatSource as ConcatSource
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
