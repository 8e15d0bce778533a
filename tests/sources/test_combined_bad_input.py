"""Combined sources that cannot be built say what is wrong, where, and what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal import (
    ArraySampleSource,
    BatchTransform,
    BlockShuffle,
    Bootstrap,
    CerealError,
    ConcatSource,
    HostCallbackTransform,
    MixSource,
    PipelineError,
    RangeSource,
    RepeatSource,
    SliceSource,
    Source,
    ZipSource,
    kfold,
    pytree_dataclass,
    select,
    split,
    static_field,
)

N = RangeSource(10)


@pytree_dataclass
class Walk(Source[jax.Array]):
    """A stream."""

    steps_per_epoch: int = static_field(default=5)

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), jnp.int32)

    def init_state(self, key: Any) -> Any:
        del key
        return jnp.int32(0)

    def next(self, state: Any) -> Any:
        return state, jnp.bool_(True), state + 1


def of_one(source: Any) -> dict[str, Callable[[], Any]]:
    """Everything that is made of one source."""
    return {
        "SliceSource": lambda: SliceSource(source, range(1)),
        "RepeatSource": lambda: RepeatSource(source, 2),
        "split": lambda: split(source, (0.5, 0.5)),
        "kfold": lambda: kfold(source, 2, 0),
        "select": lambda: select(source, lambda x: x > 0),
    }


def of_many(source: Any) -> dict[str, Callable[[], Any]]:
    """Everything that is made of several, with this one second."""
    return {
        "ConcatSource": lambda: ConcatSource([N, source]),
        "MixSource": lambda: MixSource([N, source]),
        "ZipSource": lambda: ZipSource([N, source]),
    }


NO_PARTS = {
    "raw arrays": (np.arange(3), r"must be a source, got ndarray; .*ArraySampleSource\(data\)"),
    "a list": ([N], r"must be a source, got list"),
    "nothing": (None, r"must be a source, got NoneType"),
    "a transform": (BatchTransform(2), r"must be a source, got BatchTransform"),
    "the class": (RangeSource, r"is the class RangeSource; write `RangeSource\(\.\.\.\)`"),
    "batches": (BatchTransform(2)(N), r", BatchTransform\(2\), has batches; .*batch them together"),
    "a stream": (Walk(), r", Walk, is a stream, which has no index"),
    "a callback": (
        HostCallbackTransform(lambda batch, mask: None)(N),
        r"has a HostCallbackTransform, .*put it after the BatchTransform",
    ),
    "listed indices": (
        RangeSource(10, ordering=[3, 1]),
        r"the ordering indices\(2, [0-9a-f]{8}\), which chooses among its elements, .*"
        r"`SliceSource\(source, indices\)`, and give the order to what is outermost",
    ),
    "a bootstrap": (RangeSource(10, ordering=Bootstrap()), r"has the ordering Bootstrap, which"),
}


@pytest.mark.parametrize("name", NO_PARTS)
def test_what_is_no_part_is_refused_by_all(name: str) -> None:
    source, message = NO_PARTS[name]
    for owner, build in of_one(source).items():
        with pytest.raises(PipelineError, match=rf"^{owner}: `source`.*{message}"):
            build()
    for owner, build in of_many(source).items():
        with pytest.raises(PipelineError, match=rf"^{owner}: source 1.*{message}"):
            build()
    with pytest.raises(PipelineError, match=rf"^ZipSource: source 'b'.*{message}"):
        ZipSource({"a": N, "b": source})


@pytest.mark.parametrize("combined", [ConcatSource, MixSource])
@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([], "the list of sources is empty; give it at least one"),
        (N, r"`sources` must be a list of sources, got RangeSource; write `\w+\(\[first, second"),
        ({"a": N}, "`sources` must be a list of sources, got dict"),
        (iter([N]), "`sources` must be a list of sources, got list_iterator"),
        (
            [N, N, ArraySampleSource(np.zeros(3, np.float32))],
            r"elements of source 2 are float32\[\], those of source 0 are int32\[\]; .*MapTr",
        ),
        (
            [
                ArraySampleSource({"x": np.zeros((3, 2))}),
                ArraySampleSource({"x": np.zeros((3, 4))}),
            ],
            r"source 1 are \{x: float32\[4\]\}, those of source 0 are \{x: float32\[2\]\}",
        ),
        (
            [ArraySampleSource({"x": np.zeros(3)}), ArraySampleSource({"y": np.zeros(3)})],
            r"\{y: float32\[\]\}, those of source 0 are \{x: float32\[\]\}; .*RenameTransform",
        ),
    ],
)
def test_lists_of_sources(combined: Any, sources: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=rf"^{combined.__name__}: .*{message}"):
        combined(sources)


BUILDERS: dict[str, tuple[Callable[[], Any], str]] = {
    # Mixtures
    "a negative weight": (
        lambda: MixSource([N, N], (1, -2)),
        r"MixSource: the weight of source 1 is -2; weights are finite and not negative",
    ),
    "a weight that is no number": (
        lambda: MixSource([N, N], (float("nan"), 1)),
        r"MixSource: the weight of source 0 is nan",
    ),
    "an infinite weight": (
        lambda: MixSource([N, N], (1, float("inf"))),
        r"MixSource: the weight of source 1 is inf",
    ),
    "weights of zero": (
        lambda: MixSource([N, N], (0, 0.0)),
        r"MixSource: all `weights` are zero, so there is nothing to read; raise one",
    ),
    "too few weights": (
        lambda: MixSource([N, N], (1,)),
        r"MixSource: there are 2 sources and 1 `weights`; give one per source",
    ),
    "too many weights": (
        lambda: MixSource([N], (1, 2)),
        r"MixSource: there are 1 sources and 2 `weights`",
    ),
    "a single weight": (
        lambda: MixSource([N, N], 3),
        r"MixSource: `weights` must be one number per source, got 3; write `weights=\(3, 1\)`",
    ),
    "weights in words": (lambda: MixSource([N, N], "ab"), r"one number per source, got 'ab'"),
    "a schedule that begins later": (
        lambda: MixSource([N, N], {5: (1, 1)}),
        r"MixSource: a schedule begins at position 0 .*got \[5\]; write `weights=\{0: \(3, 1\)",
    ),
    "an empty schedule": (lambda: MixSource([N], {}), r"a schedule begins at position 0"),
    "a schedule of names": (
        lambda: MixSource([N], {"first": (1,)}),
        r"a schedule has positions, counted in elements, as keys, got \['first'\]",
    ),
    "a schedule with too few weights": (
        lambda: MixSource([N, N], {0: (1, 1), 9: (1,)}),
        r"MixSource: there are 2 sources and 1 `weights`",
    ),
    "no such epoch": (
        lambda: MixSource([N], epoch="last"),
        r'MixSource: `epoch` must be "first", "all" or a number of elements, got \'last\'',
    ),
    "an epoch of nothing": (lambda: MixSource([N], epoch=0), r"`epoch` must be .*got 0"),
    "half an epoch": (lambda: MixSource([N], epoch=0.5), r"`epoch` must be .*got 0.5"),  # type: ignore[arg-type]
    "several epochs": (
        lambda: MixSource([N], epoch=np.array([1, 2])),  # type: ignore[arg-type]
        r'MixSource: `epoch` must be "first"',
    ),
    "an epoch without end": (
        lambda: MixSource([N], epoch=2**40),
        r"MixSource: an epoch of the mixture would have 1099511627776 elements, and can have 1 to",
    ),
    "a mixture by indices": (
        lambda: MixSource([N, N], ordering=[0, 1]),
        r'MixSource: `ordering` is indices.*mixed "sequential" or "shuffle"; write `ordering="sh',
    ),
    "a part in blocks": (
        lambda: MixSource([N, RangeSource(9, ordering=BlockShuffle(3))]),
        r"MixSource: source 1 has BlockShuffle\(3\), but sources are mixed",
    ),
    # Slices
    "an index too large": (
        lambda: SliceSource(N, [0, 10]),
        r"SliceSource: .*has the index 10, outside the data's range 0 to 9; drop it",
    ),
    "a negative index": (lambda: SliceSource(N, [-1]), r"SliceSource: .*has the index -1, outside"),
    "a boolean mask": (
        lambda: SliceSource(N, np.ones(10, np.bool_)),
        r"one axis of integers, got bool\[10\]; for a boolean mask write `np.flatnonzero\(mask\)`",
    ),
    "indices of two axes": (
        lambda: SliceSource(N, np.zeros((2, 2), int)),
        r"SliceSource: .*one axis of integers, got int64\[2, 2\]",
    ),
    "no indices": (lambda: SliceSource(N, []), r"SliceSource: the array of indices is empty"),
    "one integer": (
        lambda: SliceSource(N, 3),
        r"`where` must be a range or an array of indices, got 3; write `SliceSource\(source, range",
    ),
    "an empty range": (
        lambda: SliceSource(N, range(5, 5)),
        r"SliceSource: range\(5, 5\) of 10 elements is empty; choose at least one",
    ),
    "a range outside": (
        lambda: SliceSource(N, range(-2, 12)),
        r"range\(-2, 12\) reaches from -2 to 11, outside .*0 to 9; cut it to `range\(0, 10\)`",
    ),
    "a range of steps outside": (
        lambda: SliceSource(N, range(1, 15, 3)),
        r"range\(1, 15, 3\) reaches from 1 to 13, outside .*; cut it to `range\(1, 10, 3\)`",
    ),
    # Repeats
    "zero times": (
        lambda: RepeatSource(N, 0),
        r"RepeatSource: `times` must be an integer of at least 1, got 0; for no end, .*epochs=None",
    ),
    "half a time": (lambda: RepeatSource(N, 1.5), r"RepeatSource: `times` .*got 1.5"),  # type: ignore[arg-type]
    "a boolean time": (lambda: RepeatSource(N, True), r"RepeatSource: `times` .*got True"),
    "too often": (
        lambda: RepeatSource(RangeSource(2**30), 2),
        r"RepeatSource: it would have 2147483648 elements, more than compiled code can count",
    ),
    # Zips
    "different lengths": (
        lambda: ZipSource([N, RangeSource(7)]),
        r"one length, got RangeSource\[10\], RangeSource\[7\]; cut .*`SliceSource\(source, range\(",
    ),
    "nothing to zip": (lambda: ZipSource({}), r"ZipSource: there are no sources; give it at least"),
    "one source to zip": (
        lambda: ZipSource(N),  # type: ignore[arg-type]
        r"`sources` must be a list or a dict of sources, got RangeSource; write `ZipSource\(\[ima",
    ),
    # Splits
    "fractions below one": (
        lambda: split(N, (0.5, 0.4)),
        r"split: `fractions` must sum to one, \(0.5, 0.4\) sum to 0.9; to leave elements out, name",
    ),
    "fractions above one": (lambda: split(N, (0.9, 0.2)), r"split: .*\(0.9, 0.2\) sum to 1.1"),
    "sizes": (
        lambda: split(N, (5, 4)),
        r"split: the sizes \(5, 4\) sum to 9, the source has 10 elements; pass sizes that sum",
    ),
    "a fraction of zero": (
        lambda: split(N, (1.0, 0.0)),
        r"split: `fractions` must all be positive, got \(1.0, 0.0\); .*leave its fraction out",
    ),
    "a negative fraction": (lambda: split(N, (1.5, -0.5)), r"must all be positive"),
    "no fractions": (lambda: split(N, ()), r"split: `fractions` must"),
    "a single fraction": (lambda: split(N, 0.5), r"split: `fractions` must be numbers, got 0.5"),  # type: ignore[arg-type]
    "a fraction of nothing": (
        lambda: split(N, (0.99, 0.01)),
        r"split: the fraction 0.01 of 10 elements is no element at all; make it larger",
    ),
    "a key that is none": (
        lambda: split(N, (0.5, 0.5), key="a"),
        r"`key` must be a JAX random key",
    ),
    "no folds": (
        lambda: kfold(N, 1, 0),
        r"kfold: `k` must be an integer from 2 to 10, got 1; there are 10 elements",
    ),
    "more folds than elements": (lambda: kfold(N, 11, 0), r"kfold: `k` .* 10, got 11"),
    "broken folds": (lambda: kfold(N, 2.5, 0), r"kfold: `k` must be an integer .*got 2.5"),  # type: ignore[arg-type]
    "a fold too far": (lambda: kfold(N, 3, 3), r"kfold: `fold` .* integer from 0 to 2, got 3"),
    "a negative fold": (lambda: kfold(N, 3, -1), r"kfold: `fold` .*from 0 to 2, got -1"),
    "a fold that is no integer": (lambda: kfold(N, 3, 1.0), r"kfold: `fold` .*got 1.0"),
    "a boolean fold": (lambda: kfold(N, 3, True), r"kfold: `fold` .*got True"),
    # Selections
    "a selection without a function": (
        lambda: select(N, 3),  # type: ignore[arg-type]
        r"select: `fn` must be callable, got int \(3\); write `select\(source, lambda",
    ),
    # Orders
    "no such order": (
        lambda: ConcatSource([N], ordering="random"),
        r'ConcatSource: `ordering` must be "sequential", "shuffle", .*got \'random\'',
    ),
    "an order outside": (
        lambda: ConcatSource([N, N], ordering=[20]),
        r"ConcatSource: an `ordering` of indices has the index 20, outside .* 0 to 19",
    ),
    "an order that is longer than a part": (
        lambda: split(N, (0.5, 0.5), ordering=[5]),
        r"split: an `ordering` of indices has the index 5, outside .* 0 to 4",
    ),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_it_says_what_where_and_what_to_write(name: str) -> None:
    build, message = BUILDERS[name]
    with pytest.raises(CerealError, match=message):
        build()


# Inside jit, where values cannot be looked at


@pytest.mark.parametrize("where", [jnp.int32(3), jnp.zeros((2, 2), jnp.int32), jnp.zeros(2)])
def test_traced_indices_of_a_wrong_shape_or_type_are_refused(where: Any) -> None:
    with pytest.raises(PipelineError, match=r"^SliceSource: .*one axis of integers"):
        jax.jit(lambda where: SliceSource(N, where).take(jnp.arange(1)))(where)


@pytest.mark.parametrize("fold", [jnp.arange(3), jnp.float32(1)])
def test_a_traced_fold_that_is_no_integer_is_refused(fold: Any) -> None:
    with pytest.raises(PipelineError, match=r"^kfold: `fold` must be an integer"):
        jax.jit(lambda fold: kfold(N, 3, fold)[1].take(jnp.arange(1)))(fold)
