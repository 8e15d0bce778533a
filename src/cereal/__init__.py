"""cereal: the data loader for JAX.

A pipeline is a pure function from (key, position) to a batch.

General layout, in the order in which rooms may import each other:

    core/        contracts, pytree dataclasses, permutation, epoch arithmetic, errors
    device/      WHERE data lies and how rows of it are read
    sources/     WHAT: one file per place that data can come from
    transforms/  HOW: one file per verb
    monitor/     looking at a pipeline: drawing, progress
    loaders/     WHEN: the loader, its iterator, `cereal.jit`
    datasets/    ready-made data
    testing.py   the conformance kit
"""

from typing import Any as _Any

from .core.errors import CaptureWarning as CaptureWarning
from .core.errors import CerealError as CerealError
from .core.errors import PipelineError as PipelineError
from .core.errors import StateError as StateError
from .core.errors import UsageError as UsageError
from .core.masked import masked_mean as masked_mean
from .core.pytree import pytree_dataclass as pytree_dataclass
from .core.pytree import static_field as static_field
from .core.source import IndexedSource as IndexedSource
from .core.source import Source as Source
from .core.stage import Transform as Transform
from .core.state import PipelineState as PipelineState
from .datasets.digits import DigitsDataset as DigitsDataset
from .device.storage import dataset_to_jax as dataset_to_jax
from .loaders.iterator import BatchIterator as BatchIterator
from .loaders.jit import jit as jit
from .loaders.loader import DataLoader as DataLoader
from .sources.array import ArraySampleSource as ArraySampleSource
from .sources.range import RangeSource as RangeSource
from .transforms.batch import BatchTransform as BatchTransform
from .transforms.device_put import DevicePutTransform as DevicePutTransform
from .transforms.host_callback import HostCallbackTransform as HostCallbackTransform
from .transforms.image import FlattenImageTransform as FlattenImageTransform
from .transforms.image import NormalizeImageTransform as NormalizeImageTransform
from .transforms.map import MapTransform as MapTransform
from .transforms.random_map import RandomMapTransform as RandomMapTransform
from .transforms.rename import RenameTransform as RenameTransform

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


# Users see `cereal.DataLoader`, not the file that it happens to live in.
for _name, _value in list(globals().items()):
    if not _name.startswith("_") and getattr(_value, "__module__", "").startswith("cereal."):
        _value.__module__ = "cereal"
