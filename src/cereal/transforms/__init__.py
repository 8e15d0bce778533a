"""HOW: one file for each transform."""

from .batch import BatchTransform as BatchTransform
from .cache import CacheTransform as CacheTransform
from .collate import pad_collate as pad_collate
from .device_put import DevicePutTransform as DevicePutTransform
from .filter import FilterTransform as FilterTransform
from .host.callback import HostCallbackTransform as HostCallbackTransform
from .host.filter import HostFilterTransform as HostFilterTransform
from .host.map import HostMapTransform as HostMapTransform
from .host.random_map import HostRandomMapTransform as HostRandomMapTransform
from .image import FlattenImageTransform as FlattenImageTransform
from .image import NormalizeImageTransform as NormalizeImageTransform
from .map import MapTransform as MapTransform
from .random_map import RandomMapTransform as RandomMapTransform
from .rename import RenameTransform as RenameTransform
from .time_series import TimeSeriesBatchTransform as TimeSeriesBatchTransform
from .unbatch import UnbatchTransform as UnbatchTransform
