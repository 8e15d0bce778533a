"""Splits: parts of a source that share no element, in any epoch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np

from ...base.capture import is_traced
from ...base.errors import PipelineError
from ...base.identity import TRACED
from ...base.numbers import as_count, as_fractions
from ...device.transfer import sent
from ...order.ordering import digest_of
from ...pipeline.source import Source
from ...pipeline.state import key_words
from ...routes.route import Route
from ...routes.subset import Fold, Permuted
from .routed import adopt, count_of
from .slice import SliceSource, make_slice, part_of

T = TypeVar("T")


def split(
    source: Source[T], fractions: Sequence[float], key: Any = None, *, ordering: Any = None
) -> tuple[SliceSource[T], ...]:
    """Splits a source into parts: `train, val = split(source, (0.9, 0.1), key=key)`.

        key=None    0 1 2 3 4 5 6 7 8 | 9         parts follow each other
        key=key     3 9 0 4 7 1 8 2 6 | 5         random parts, the same for the same key

    The fractions must sum to one; numbers of elements that sum to the length work too. The parts
    never share an element, in any epoch and any order, and they take no memory. `ordering` is the
    order of every part; by default it is that of the source.

    >>> import cereal
    >>> train, val = cereal.split(cereal.RangeSource(10), (0.8, 0.2), key=0)
    >>> len(train), len(val)
    (8, 2)
    """
    store, path = adopt(source, "split")
    _check_once(source, "split")
    parts, first = [], 0
    for size in _sizes(fractions, path.n):
        if key is None:
            route, how = part_of(path, range(first, first + size)), ""
        else:
            route, how = _shuffled(path, key, first, size), "split, "
        words = f"{how}{first}:{first + size} of {count_of(source)}"
        parts.append(make_slice(source, store, route, ordering, words, "split"))
        first += size
    return tuple(parts)


def kfold(
    source: Source[T], k: int, fold: Any, key: Any = None, *, ordering: Any = None
) -> tuple[SliceSource[T], SliceSource[T]]:
    """Two sources, for cross-validation: `train, val = kfold(source, 5, fold, key=key)`.

        k=3, fold=1    train  0 1 2 3 | . . . . | 8 9 10
                       val    . . . . | 4 5 6 7 | . . .

    `val` is fold number `fold` of `k`; `train` is all other folds. With a `key`, folds are random.
    `fold` may be traced, so that all folds run in one `vmap`. All folds then have the shapes of
    the largest one, and the missing elements of smaller folds are masked.

    >>> import cereal, jax, jax.numpy as jnp
    >>> def total(fold):
    ...     train, val = cereal.kfold(cereal.RangeSource(6), 3, fold)
    ...     loader = cereal.DataLoader([val, cereal.BatchTransform(2)])
    ...     return loader.next_batch(loader.init_state(0))[0]
    >>> jax.vmap(total)(jnp.arange(3)).tolist()
    [[0, 1], [2, 3], [4, 5]]
    """
    owner = "kfold"
    store, path = adopt(source, owner)
    _check_once(source, owner)
    n = path.n
    k = as_count(k, "k", owner, 2, n, hint=f"there are {n} elements")
    traced = is_traced(fold)
    if traced and (fold.shape != () or not jnp.issubdtype(fold.dtype, jnp.integer)):
        raise PipelineError(
            f"kfold: `fold` must be an integer, got traced {fold.dtype}{list(fold.shape)}; write "
            f"`jax.vmap(run)(jnp.arange(k))`."
        )
    number: Any = fold if traced else as_count(fold, "fold", owner, 0, k - 1)
    if key is not None:
        path = _shuffled(path, key, 0, n)
    least, extra = divmod(n, k)
    here = least + int(extra > 0 if traced else number < extra)
    elsewhere = n - least if traced else n - here
    leaf = jnp.asarray(number, jnp.int32)
    digest, padded = (TRACED if traced else str(number)), traced and extra > 0
    made = []
    for rest, size in ((True, elsewhere), (False, here)):
        route = Fold(path, leaf, k, rest, size, padded, digest)
        words = f"{'all but ' if rest else ''}fold {digest} of {k} of {count_of(source)}"
        made.append(make_slice(source, store, route, ordering, words, "kfold"))
    return made[0], made[1]


def _check_once(source: Any, owner: str) -> None:
    if not source.traits.fixed:
        why = "gives other elements at the same index in the next epoch"
        fix = "split its sources first and mix the parts"
        if source.traits.varies:
            fix = 'split the data before it is shuffled, and read the parts by `ordering="shuffle"`'
    elif not source.traits.once:
        why = "may have an element several times"
        fix = "split its source first and repeat or combine the parts"
    elif source.traits.overlap:
        why, fix = _overlap(source)
    else:
        return
    raise PipelineError(f"{owner}: {source._label} {why}, so parts of it would share data; {fix}.")


def _overlap(source: Any) -> tuple[str, str]:
    """Why elements share data, and what to do about it."""
    apart = f"cut windows that do not overlap, with `{{}}={source.traits.overlap}`"
    if not source.traits.episodes:
        fix = f"write `split_time(source, fractions)`, or {apart.format('stride')}"
        return "has windows that overlap", fix
    windows = source.traits.windows
    why = "has windows that overlap" if windows else "has n-step returns, which reach further"
    fix = (
        "split the list of episodes before, `EpisodeSource(episodes[:90])` (for a MinariSource "
        "pass `episodes=range(90)`, for an RLDSSource `split='train[:90%]'`)"
    )
    return why, f"{fix}, or {apart.format('period')}" if windows else fix


def _shuffled(path: Route, key: Any, first: int, size: int) -> Route:
    words = key_words(key)
    digest = digest_of(words) if isinstance(words, np.ndarray) else TRACED
    return Permuted(path, jnp.asarray(sent(words)), first, size, digest)


def _sizes(fractions: Any, n: int) -> list[int]:
    given = as_fractions(fractions, "split", "(0.9, 0.1)")
    if not given or any(not math.isfinite(each) or each <= 0 for each in given):
        raise PipelineError(
            f"split: `fractions` must all be positive, got {tuple(given)}; to have no such part, "
            f"leave its fraction out."
        )
    if all(each.is_integer() for each in given) and sum(given) > 1:
        sizes = [int(each) for each in given]
        if sum(sizes) != n:
            raise PipelineError(
                f"split: the sizes {tuple(sizes)} sum to {sum(sizes)}, the source has {n} "
                f"elements; pass sizes that sum to it, or fractions such as (0.9, 0.1)."
            )
        return sizes
    if not math.isclose(sum(given), 1, abs_tol=1e-6):
        raise PipelineError(
            f"split: `fractions` must sum to one, {tuple(given)} sum to {sum(given):g}; to leave "
            f"elements out, name them as a further part."
        )
    shares = np.cumsum([0.0, *given]) / sum(given)
    cuts = [*(math.floor(n * share + 0.5) for share in shares[:-1]), n]
    sizes = [b - a for a, b in itertools.pairwise(cuts)]
    if 0 in sizes:
        empty = given[sizes.index(0)]
        raise PipelineError(
            f"split: the fraction {empty:g} of {n} elements is no element at all; make it larger."
        )
    return sizes
