"""Checks that a cache in files holds what its pipeline computes: it computes a few elements again.

The name of a cache is a digest of the code above it, but no digest of code sees everything. So when
a cache is opened, its first element and some others are computed again, and compared bit by bit:

    made by Python alone       with the elements in the files
    made by compiled stages    with witnesses: elements that were computed one by one when the cache
                               was filled, since a program for many elements may round differently

A witness is written to the disk before any element is marked as present, so a cache with elements
has witnesses. If another machine filled the cache, differences of rounding are allowed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.atomic import write_atomically
from ..base.errors import PipelineError
from ..base.spec import Spec
from ..host.cpus import usable_cpus
from ..host.host_data import HostData, host_data_in
from ..order.rows import Rows
from ..pipeline.positional import IndexedSource
from .elements import FEW, few_of, few_true, read_elements, read_fetched_elements

Leaves = list[np.ndarray]
_FEW_ROUNDED = 0.02
_ELSEWHERE = "elsewhere-"


class Keeps(HostData):
    """Data on the host that keeps elements of the source `upstream`."""

    upstream: IndexedSource[Any]


def _by_python(source: IndexedSource[Any]) -> bool:
    """Whether Python alone makes its elements: also no compiled stage above another cache."""
    return source.traits.by_python and not _keeps_programs(source)


def _keeps_programs(source: IndexedSource[Any]) -> bool:
    caches = [data for data in host_data_in(source) if isinstance(data, Keeps)]
    return not all(_by_python(cache.upstream) for cache in caches)


class Check:
    """The check of one cache: `upstream` in the folder `place`."""

    def __init__(self, upstream: IndexedSource[Any], spec: Spec, place: Path, label: str) -> None:
        self._upstream, self._spec, self._place, self._label = upstream, spec, place, label
        self._compiled = not _by_python(upstream)
        self._here, self._signed = _machine(), False
        # It is not known how many elements a program above another cache computed at once, and so
        # how it rounded.
        self._exact = not _keeps_programs(upstream)
        # If compiled stages make the elements: which have witnesses, and which should have.
        found = place.glob("witness-*.npz") if self._compiled else ()
        self._seen = {int(path.stem.partition("-")[2]) for path in found}
        self._wanted = set(few_of(len(upstream), upstream).tolist()) if self._compiled else set()

    def open(self, arrays: list[Any], filled: np.ndarray) -> None:
        """Computes a few of the present elements again; raises an error if one differs."""
        indices = few_true(filled, self._upstream)
        try:
            if self._compiled and len(indices):
                self._against_witnesses()
            elif len(indices):
                self._against_elements(arrays, indices)
        except PipelineError:
            raise
        except Exception as error:
            error.add_note(
                f"cereal: {self._label} computes a few elements again when it is opened, to see "
                f"whether its files are of this code and this data"
            )
            raise

    def _against_elements(self, arrays: list[Any], indices: np.ndarray) -> None:
        again = self._leaves(read_elements(self._upstream, indices))
        exact = set(self._place.glob("machine-*")) <= {self._signature}
        for lane, index in enumerate(indices):
            self._compare(int(index), [a[index] for a in arrays], [x[lane] for x in again], exact)

    @property
    def _signature(self) -> Path:
        """An empty file; it says that this machine has filled a part of the cache."""
        return self._place / f"machine-{self._here}"

    # Witnesses

    def witness(self, chunk: np.ndarray, rows: Rows) -> None:
        """Computes some elements of a fetched chunk one by one, and keeps them as witnesses."""
        if not self._signed:
            self._signature.touch()
            self._signed = True
        if self._wanted <= self._seen:
            return
        lanes = np.flatnonzero(np.isin(chunk, list(self._wanted - self._seen))).tolist()
        others = [lane for lane in range(min(len(chunk), 2 * FEW)) if lane not in lanes]
        lanes += others[: max(0, FEW - len(self._seen) - len(lanes))]
        for lane in lanes:
            found = self._leaves(read_fetched_elements(self._upstream, rows[lane : lane + 1]))
            held: dict[str, Any] = {"machine": np.array(self._here)}
            for k, leaf in enumerate(found):
                held[f"leaf{k}"] = np.frombuffer(leaf[0].tobytes(), np.uint8)
            index = int(chunk[lane])
            write_atomically(self._path(index), lambda file, held=held: np.savez(file, **held))
            self._seen.add(index)

    def _path(self, index: int) -> Path:
        return self._place / f"witness-{index}.npz"

    def _against_witnesses(self) -> None:
        known = sorted(self._seen, key=lambda index: (index not in self._wanted, index))
        if not known:
            raise PipelineError(
                f"CacheTransform: the cache in {self._place} has elements, but nothing to check "
                f"them by; delete that folder, and it is made anew."
            )
        for index in sorted(known[:FEW]):
            kept, machine = self._read(index)
            found = self._leaves(read_elements(self._upstream, np.array([index])))
            exact = self._exact and machine == self._here and not machine.startswith(_ELSEWHERE)
            self._compare(index, kept, [leaf[0] for leaf in found], exact)

    def _read(self, index: int) -> tuple[Leaves, str]:
        try:
            with np.load(self._path(index), allow_pickle=False) as found:
                leaves = [
                    np.frombuffer(found[f"leaf{k}"].tobytes(), spec.dtype).reshape(spec.shape)
                    for k, spec in enumerate(self._spec.leaves)
                ]
                return leaves, str(found["machine"])
        except Exception as error:
            raise PipelineError(
                f"CacheTransform: the cache in {self._place} cannot be read "
                f"({self._path(index).name}: {error}); delete that folder, and it is made anew."
            ) from error

    # Comparing

    def _leaves(self, found: tuple[Any, Any]) -> Leaves:
        kept = found if self._upstream.traits.masks else found[0]
        return [np.asarray(leaf) for leaf in jax.tree.leaves(kept)]

    def _compare(self, index: int, before: Leaves, now: Leaves, exact: bool) -> None:
        same = same_bits if exact else _alike
        last, masks = len(now) - 1, self._upstream.traits.masks
        if masks and not before[last].any() and not now[last].any():
            return  # the element was left out; the values in its place do not matter
        for at in (last, *range(last)) if masks else range(last + 1):
            if not same(old := np.asarray(before[at]), now[at]):
                self._differs(index, at, old, now)

    def _differs(self, index: int, at: int, old: np.ndarray, now: Leaves) -> None:
        again = self._leaves(read_elements(self._upstream, np.array([index])))
        if not all(same_bits(x, y[0]) for x, y in zip(now, again, strict=True)):
            raise PipelineError(
                f"{self._label}: element {index} comes out differently whenever it is computed: a "
                f"function above the cache is not deterministic. Draw random numbers below the "
                f"cache, by a RandomMapTransform or HostRandomMapTransform; then delete "
                f"{self._place}."
            )
        path = jax.tree_util.tree_flatten_with_path(self._spec.tree)[0][at][0]
        masks = self._upstream.traits.masks  # if True, the spec is a pair: the element, its mask
        where = f"`element{jax.tree_util.keystr(path[1:] if masks else path)}`"
        where = "its mask" if masks and at == len(now) - 1 else where
        raise PipelineError(
            f"{self._label}: element {index} in its files is not what the pipeline computes now: "
            f"{where} {_change(old, now[at])}. Code or data changed in a way that the "
            f"cache's name, a digest of them, does not show; or a function above the cache is not "
            f"deterministic. Write `CacheTransform(folder, version=...)` with another version "
            f"whenever that code changes, or delete {self._place}."
        )


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays have the same bits; all NaNs count as equal."""
    if one.tobytes() == other.tobytes():
        return True
    if not jnp.issubdtype(one.dtype, jnp.inexact):
        return False
    numbers = ~(np.isnan(one) & np.isnan(other))
    return one[numbers].tobytes() == other[numbers].tobytes()


def _alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays differ only as much as another machine may round."""
    if same_bits(one, other):
        return True
    if one.dtype == np.bool_:
        return False
    if not jnp.issubdtype(one.dtype, jnp.inexact):  # a few pixels may differ by 1, but not a label
        by = np.maximum(one, other) - np.minimum(one, other)
        return bool((by <= 1).all() and (by > 0).mean() <= _FEW_ROUNDED)
    wide = np.complex128 if jnp.issubdtype(one.dtype, jnp.complexfloating) else np.float64
    one, other, digits = one.astype(wide), other.astype(wide), jnp.finfo(one.dtype).nmant
    finite = np.isfinite(one)
    if not same_bits(one[~finite], other[~finite]):
        return False
    size = np.abs(one[finite]).max(initial=0)
    return bool((np.abs(one[finite] - other[finite]) <= 2.0 ** -(digits // 2) * size).all())


def _change(old: np.ndarray, new: np.ndarray) -> str:
    """Where two arrays differ first, in words."""
    for at in np.ndindex(old.shape):
        if not same_bits(old[at], new[at]):
            where = f"[{', '.join(map(str, at))}] " if at else ""
            return f"{where}was {old[at]!s} and is {new[at]!s}"
    return "differs"


def _machine() -> str:
    """A name for all that rounding depends on; bits are compared only if it is the same.

    A GPU's compiler measures which algorithm is fastest, so even another run may round differently.
    """
    device = jax.config.jax_default_device or jax.devices()[0]  # type: ignore[attr-defined]
    kind = device if isinstance(device, str) else device.platform
    counts = [str(usable_cpus()), str(jax.local_device_count())]
    words = [jax.__version__, kind, platform.machine(), _processor(), *counts]
    words.append(os.environ.get("XLA_FLAGS", ""))
    found = hashlib.blake2b("\n".join(words).encode(), digest_size=8).hexdigest()
    return found if kind == "cpu" else f"{_ELSEWHERE}{found}"


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({x for x in lines if x.startswith(("flags", "Features"))}))
