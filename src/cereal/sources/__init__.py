"""WHAT: one file per place that data can come from."""

from .array import ArraySampleSource as ArraySampleSource
from .range import RangeSource as RangeSource
