"""Options of other libraries that cereal does not have, and what to write instead."""

from __future__ import annotations

import inspect
from typing import Any

from .errors import UsageError

INIT_KEY = "write `loader.init_state(jax.random.key(0))`: all that is random comes from that key"
_LOADER = "it is an option of the loader: write `DataLoader([...], workers=...)`"
_WORDS = {
    "seed": INIT_KEY,
    "key": INIT_KEY,
    "rng": INIT_KEY,
    "generator": INIT_KEY,
    "random_state": INIT_KEY,
    "workers": _LOADER,
    "num_workers": _LOADER,
    "batch_size": "add `BatchTransform(batch_size)` to the loader's list of stages",
    "collate_fn": "write `BatchTransform(batch_size, collate=fn)`",
    "drop_remainder": "write `BatchTransform(batch_size, drop_last=True)`",
    "transform": "add `MapTransform(fn)`, or for Python `HostMapTransform(fn)`, to the loader's "
    "list of stages",
    "element_spec_override": "what it makes is known from what it is given; with `collate=fn` the "
    "arrays of a batch may be stated, `BatchTransform(batch_size, collate=fn, spec=...)`",
    "shuffle": "",
    "ordering": "",
}


def refuse_elsewhere(cls: type, options: dict[str, Any]) -> None:
    """If a class has no option of a well-known name, raises an error that says what to write."""
    known = {**_WORDS, **getattr(cls, "_elsewhere", {})}
    found = [name for name in options if name in known]
    if not found:
        return
    parameters = inspect.signature(cls.__init__).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    for name in found:
        if name not in parameters:
            words = known[name] or _order(cls, parameters, options[name])
            raise UsageError(f"{cls.__name__} has no `{name}=`; {words}.")


def _order(cls: type, parameters: Any, value: Any) -> str:
    if "ordering" not in parameters:
        return getattr(cls, "_no_ordering", 'write `ordering="shuffle"` in the source')
    order = "shuffle" if value else "sequential"
    return f'write `{cls.__name__}(..., ordering="{order}")`'
