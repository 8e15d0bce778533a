"""torch's loaders and samplers, as lines of cereal that do the same: for errors."""

from __future__ import annotations

from typing import Any

_PLAIN = ("default_collate", "default_convert")


def line_for_loader(loader: Any) -> str:
    """The line to write instead of a torch `DataLoader`, called `loader`."""
    batch_size, drops = loader.batch_size, loader.drop_last
    source = _source("loader.dataset", loader.sampler, "loader.sampler")
    batches = loader.batch_sampler
    if batch_size is None and batches is not None:  # the user's own batches
        order = "ordering=[i for batch in loader.batch_sampler for i in batch]"
        source = f"DatasetSource(loader.dataset, {order})"
        batch_size = getattr(batches, "batch_size", "batch_size")
        drops = getattr(batches, "drop_last", False)
    stages = [source]
    if batch_size is not None:
        options = ", drop_last=True" if drops else ""
        if getattr(loader.collate_fn, "__name__", "") not in _PLAIN:
            options += ", collate=loader.collate_fn"
        stages.append(f"BatchTransform({batch_size}{options})")
    workers = f", workers={loader.num_workers}" if loader.num_workers else ""
    return f"DataLoader([{', '.join(stages)}]{workers})"


def line_for_sampler(sampler: Any) -> str:
    """The line to write instead of a torch sampler, called `sampler`, over a `dataset`."""
    size, drops = 128, ""
    if _kind(sampler) == "BatchSampler":
        size, drops = sampler.batch_size, ", drop_last=True" if sampler.drop_last else ""
        sampler = sampler.sampler
    source = _source("dataset", sampler, "sampler")
    shard = ', shard="jax"' if _kind(sampler) == "DistributedSampler" else ""
    return f"DataLoader([{source}, BatchTransform({size}{drops})]{shard})"


def _source(dataset: str, sampler: Any, called: str) -> str:
    """What stands first in the list."""
    if _kind(sampler) == "SubsetRandomSampler":
        return f'SliceSource(DatasetSource({dataset}), {called}.indices, ordering="shuffle")'
    order = _order(sampler, called)
    return f"DatasetSource({dataset}, {order})" if order else dataset


def _order(sampler: Any, called: str) -> str:
    """The `ordering=` that does the same; "": the dataset's own order."""
    kind = _kind(sampler)
    if kind in ("SequentialSampler", "_InfiniteConstantSampler"):
        return ""
    if kind == "RandomSampler":
        return "ordering=Bootstrap()" if sampler.replacement else 'ordering="shuffle"'
    if kind == "DistributedSampler":
        return 'ordering="shuffle"' if sampler.shuffle else ""
    if kind == "WeightedRandomSampler":
        length = f"length={sampler.num_samples}"
        drawn = length if sampler.replacement else f"replacement=False, {length}"
        return f"ordering=WeightedSampling({called}.weights, {drawn})"
    return f"ordering=list({called})"


def _kind(sampler: Any) -> str:
    """The name of the class of torch that it is of; "" for a user's own sampler."""
    own = type(sampler)
    known = own.__module__.partition(".")[0] == "torch"
    return own.__name__ if known else ""
