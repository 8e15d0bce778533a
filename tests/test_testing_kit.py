"""The conformance kit fails on everything that breaks the contract, and says where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    IndexedSource,
    MapTransform,
    NormalizeImageTransform,
    RangeSource,
    Source,
    Transform,
)
from cereal.core.ordering import Order
from cereal.core.stage import Stage
from cereal.loaders.iterator import PositionalIterator
from cereal.loaders.walk import Walk
from cereal.testing import assert_same, check_loader, check_resume, check_source, check_transform

# Sources


@cereal.pytree_dataclass
class Numbers(IndexedSource[jax.Array]):
    """A good source, whose parts the tests replace by broken ones."""

    n: int = cereal.static_field(default=6)
    ordering: Any = cereal.static_field(default="sequential")
    read_by: Callable[[Any], Any] = cereal.static_field(default=lambda indices: indices)

    def __len__(self) -> int:
        return self.n

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), jnp.int32)

    def take(self, indices: jax.Array) -> Any:
        return self.read_by(indices)


@cereal.pytree_dataclass
class Stream(Source[jax.Array]):
    """A good stream, whose step the tests replace by a broken one."""

    step_by: Callable[[Any], Any] = cereal.static_field(
        default=lambda state: (state, jnp.bool_(True), state + 1)
    )
    steps_per_epoch: int = cereal.static_field(default=4)

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), jnp.int32)

    def init_state(self, key: Any) -> Any:
        del key
        return jnp.int32(0)

    def next(self, state: Any) -> Any:
        return self.step_by(state)


def test_good_sources_pass() -> None:
    check_source(Numbers())
    check_source(Numbers(ordering="shuffle"))
    check_source(Stream())
    check_loader(DataLoader([Stream(), BatchTransform(2)]))
    check_resume(DataLoader([Stream(), BatchTransform(2)]))


@pytest.mark.parametrize(
    ("read", "match"),
    [
        (lambda i: i.astype(jnp.float32), r"gives float32\[\], element_spec says int32\[\]"),
        (lambda i: jnp.stack([i, i], axis=1), r"gives int32\[2\], element_spec says int32\[\]"),
        (lambda i: {"x": i}, r"gives \{x: int32\[\]\}, element_spec says int32\[\]"),
    ],
)
def test_a_source_whose_spec_lies_fails(read: Any, match: str) -> None:
    with pytest.raises(AssertionError, match=f"Numbers, step 0: {match}"):
        check_source(Numbers(read_by=read))


def test_a_source_whose_rows_depend_on_their_neighbours_fails() -> None:
    with pytest.raises(AssertionError, match=r"Numbers: take\(\[1\]\)"):
        check_source(Numbers(read_by=lambda indices: indices - indices[0]))


def test_a_source_that_counts_behind_the_users_back_fails() -> None:
    calls: list[int] = []

    def counting(indices: Any) -> Any:
        calls.append(1)
        return indices + len(calls)

    with pytest.raises(AssertionError, match="Numbers, step 0, asked twice"):
        check_source(Numbers(read_by=counting))


def test_a_stream_that_counts_behind_the_users_back_fails() -> None:
    calls: list[int] = []

    def counting(state: Any) -> Any:
        calls.append(1)
        return jnp.int32(len(calls)), jnp.bool_(True), state

    with pytest.raises(AssertionError, match="Stream, step 0, asked twice"):
        check_source(Stream(counting))


def test_a_stream_that_differs_under_jit_fails() -> None:
    def looking(state: Any) -> Any:
        traced = isinstance(state, Tracer)
        return state + (1 if traced else 0), jnp.bool_(True), state + 1

    with pytest.raises(AssertionError, match="Stream, step 0, under jit"):
        check_source(Stream(looking))


@pytest.mark.parametrize(
    ("mask", "match"),
    [(jnp.int32(1), "the mask is int32, not bool"), (jnp.ones(2, bool), r"mask has shape \(2,\)")],
)
def test_a_source_with_a_wrong_mask_fails(mask: Any, match: str) -> None:
    with pytest.raises(AssertionError, match=f"Stream, step 0: .*{match}"):
        check_source(Stream(lambda state: (state, mask, state + 1)))


# Orders


@cereal.pytree_dataclass
class Repeating(Order):
    """Every second element twice, the others never."""

    def index(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Any:
        del key, epochs, column, n
        return position // 2 * 2

    @property
    def identity(self) -> Any:
        return ("repeating",)


@cereal.pytree_dataclass
class RepeatingLater(Order):
    """Each element once, but only in the first epoch."""

    def index(self, key: Any, epochs: Any, column: Any, position: Any, n: int) -> Any:
        del key, n
        xp = np if isinstance(position, np.ndarray) else jnp
        return xp.where(xp.asarray(epochs)[column] == 0, position, 0)

    @property
    def identity(self) -> Any:
        return ("repeating later",)


@pytest.mark.parametrize(
    ("order", "epoch"), [(Repeating(), 0), (RepeatingLater(), 1)], ids=["always", "later"]
)
def test_an_order_that_repeats_an_element_fails(order: Order, epoch: int) -> None:
    with pytest.raises(AssertionError, match=f"epoch {epoch} is not each element once"):
        check_source(Numbers(ordering=order))
    dropped = BatchTransform(4, drop_last=True)(Numbers(ordering=order))
    with pytest.raises(AssertionError, match=f"an index repeats in epoch {epoch}"):
        check_source(dropped)


def test_listed_indices_may_repeat() -> None:
    check_source(RangeSource(5, ordering=[3, 3, 1]))
    check_source(BatchTransform(2, drop_last=True)(RangeSource(5, ordering=[3, 3, 1])))


# Transforms


def labels() -> Source[Any]:
    data = {"label": np.arange(5, dtype=np.int32)}
    return ArraySampleSource(data, ordering="sequential")


@cereal.pytree_dataclass
class Broken(Stage[Any, Any]):
    """Adds what `by` makes of the lanes, so that it is another thing before and after batching."""

    by: Callable[[Any, tuple[int, ...]], Any] = cereal.static_field()

    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        del keys
        return {**values, "label": self.by(values["label"], lanes)}, mask


def test_a_transform_that_differs_before_and_after_batching_fails() -> None:
    check_transform(Broken(lambda label, lanes: label + 1), labels())
    with pytest.raises(AssertionError, match="Broken: before and after batching"):
        check_transform(Broken(lambda label, lanes: label + len(lanes)), labels())


@cereal.pytree_dataclass
class Fickle(Transform[Any, Any]):
    """Makes another source at every call."""

    calls: ClassVar[list[int]] = []

    def __call__(self, source: Source[Any]) -> Source[Any]:
        self.calls.append(1)
        number = len(self.calls)

        def numbered(element: Any) -> Any:
            return {**element, "number": jnp.int32(number)}

        return MapTransform(numbered)(source)


def test_a_transform_that_differs_between_calls_fails() -> None:
    with pytest.raises(AssertionError, match="Fickle: called and in a list"):
        check_transform(Fickle())


def test_a_map_may_look_at_the_whole_batch() -> None:
    def centred(batch: Any) -> Any:
        return {**batch, "label": batch["label"] - jnp.min(batch["label"])}

    check_transform(MapTransform(centred), labels())


def test_a_callable_that_is_no_stage_is_checked_by_its_source() -> None:
    @cereal.pytree_dataclass
    class Twice(Transform[Any, Any]):
        def __call__(self, source: Source[Any]) -> Source[Any]:
            return NormalizeImageTransform()(source)

    check_transform(Twice())


# Loaders


def loader() -> DataLoader[Any]:
    return DataLoader([RangeSource(6), BatchTransform(4)])


def test_an_iterator_whose_state_is_off_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = property(lambda self: self._source.init_state(0))
    monkeypatch.setattr(PositionalIterator, "state", ahead)
    with pytest.raises(AssertionError, match=r"iterator\.state after step 0"):
        check_loader(loader())
    with pytest.raises(AssertionError, match="restored at step 1 "):
        check_resume(loader())


def test_an_iterator_that_gives_too_many_batches_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walk, "left", None)
    monkeypatch.setattr(Walk, "total", property(lambda self: None, lambda self, total: None))
    with pytest.raises(AssertionError, match=r"iterate\(steps=4\) gave more"):
        check_loader(loader())


def test_an_epoch_that_ends_at_the_wrong_batch_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walk, "to_the_end", lambda self, epochs: 2 * epochs)
    with pytest.raises(AssertionError, match=r"iterate from step 1 gave 2 batches, .* 1 more"):
        check_resume(DataLoader([RangeSource(8), BatchTransform(4)]))


def test_a_loader_that_reads_other_batches_ahead_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from cereal.loaders import iterator as module

    read = module.read_many

    def reversed_batches(source: Any, words: Any, count: int) -> Any:
        pairs, words = read(source, words, count)
        return [(values[::-1], mask) for values, mask in pairs], words

    monkeypatch.setattr(module, "read_many", reversed_batches)
    with pytest.raises(AssertionError, match="iterate, step 0"):
        check_loader(loader())


def test_a_loader_whose_batches_differ_from_its_spec_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = jax.ShapeDtypeStruct((4,), jnp.float32)
    monkeypatch.setattr(DataLoader, "element_spec", lambda self: wrong)
    with pytest.raises(AssertionError, match=r"a batch is int32\[4\], element_spec says float32"):
        check_loader(loader())


def test_a_stage_that_depends_on_how_often_it_was_traced_fails() -> None:
    traces: list[int] = []

    def traced(x: Any) -> Any:
        traces.append(1)
        return x + len(traces)

    with pytest.raises(AssertionError, match=r"iterate, step 0|jit, loader|scan_epoch"):
        check_loader(DataLoader([RangeSource(6), BatchTransform(4), MapTransform(traced)]))


# Comparing


@pytest.mark.parametrize(
    ("one", "two", "match"),
    [
        ({"x": 1}, {"y": 1}, "the pair: structure"),
        (np.int32(1), np.float32(1), "the pair: dtype int32 is not float32"),
        (np.zeros(2), np.zeros(3), r"the pair: shape \(2,\) is not \(3,\)"),
        ({"x": np.arange(2)}, {"x": np.array([0, 2])}, r"the pair\['x'\]"),
        (np.float32(1), np.float32(1.001), "the pair"),
        (jax.random.key(0), jax.random.key(1), "the pair"),
        (jnp.bfloat16(1), jnp.bfloat16(1.5), "the pair"),
    ],
)
def test_trees_that_differ_are_told_apart(one: Any, two: Any, match: str) -> None:
    assert_same(one, one, "one")
    with pytest.raises(AssertionError, match=match):
        assert_same(one, two, "the pair")


def test_floats_may_differ_in_the_last_bits() -> None:
    assert_same(np.float32(1), np.nextafter(np.float32(1), np.float32(2)), "nearly one")


@pytest.mark.slow
@pytest.mark.parametrize(
    "transform",
    [
        cereal.HostMapTransform(lambda e: {**e, "image": e["image"] // 2}),
        cereal.HostRandomMapTransform(lambda e, rng: {**e, "label": e["label"] + rng.integers(9)}),
        cereal.HostFilterTransform(lambda e: e["label"] % 2 == 1),
    ],
    ids=["map", "random map", "filter"],
)
def test_host_transforms_pass_the_kit(transform: Any) -> None:
    check_transform(transform)


def test_a_host_map_that_remembers_fails_the_kit() -> None:
    calls = iter(range(10**6))
    with pytest.raises(AssertionError):
        check_transform(cereal.HostMapTransform(lambda e: {**e, "call": next(calls)}))
