"""`evaluate` counts every element of an epoch exactly once."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.compilations import compilations

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    CacheTransform,
    DataLoader,
    FilterTransform,
    MapTransform,
    MixSource,
    RandomMapTransform,
    RangeSource,
    UsageError,
    WindowSource,
    evaluate,
)

N = 23
SUM = N * (N - 1) // 2
RULES: list[dict[str, Any]] = [{}, {"pad_last_batch": True}, {"drop_last": True}]


def itself(batch: Any) -> Any:
    return batch


def parity(batch: Any) -> Any:
    return {"value": batch, "even": batch % 2 == 0}


def in_order(n: int = N, batch: int = 4, **rule: Any) -> DataLoader[Any]:
    return DataLoader([RangeSource(n), BatchTransform(batch, **rule)])


# Every element, once


@pytest.mark.parametrize("rule", RULES, ids=["wrap", "pad", "drop"])
@pytest.mark.parametrize("batch", [1, 4, N])
def test_nothing_is_left_out_and_nothing_counts_twice(rule: dict[str, Any], batch: int) -> None:
    found = evaluate(in_order(batch=batch, **rule), parity)
    assert found["value"] == np.float32(SUM) / np.float32(N)
    assert found["even"] == np.float32(12) / np.float32(N)


@pytest.mark.parametrize("rule", RULES[:2], ids=["wrap", "pad"])
@pytest.mark.filterwarnings("ignore:.*is larger than the data")
def test_a_batch_may_be_larger_than_the_data(rule: dict[str, Any]) -> None:
    assert evaluate(in_order(5, 64, **rule), itself) == 2


def test_elements_without_batches_are_counted_too() -> None:
    assert evaluate(DataLoader(RangeSource(5)), itself) == 2


@pytest.mark.parametrize("rule", RULES, ids=["wrap", "pad", "drop"])
def test_microbatches_count_every_element(rule: dict[str, Any]) -> None:
    stages = [RangeSource(99), BatchTransform(8), BatchTransform(4, **rule)]
    assert evaluate(DataLoader(stages), itself) == 49


def ordered(ordering: Any) -> RangeSource:
    return RangeSource(N, ordering=ordering)


def test_a_shuffled_epoch_has_the_same_mean_for_every_key() -> None:
    loader = DataLoader([ordered("shuffle"), BatchTransform(4)])
    expected = np.float32(SUM) / np.float32(N)
    assert [evaluate(loader, itself, key=key) for key in (0, jax.random.key(7))] == [expected] * 2


def test_an_epoch_is_that_of_the_order() -> None:
    loader = DataLoader([ordered([2, 2, 8]), BatchTransform(2)])
    assert evaluate(loader, itself) == 4


def test_a_mixture_has_the_mean_of_its_epoch() -> None:
    mix = MixSource([RangeSource(6), RangeSource(100, 103)], (2, 1), epoch=9)
    loader = DataLoader([mix, BatchTransform(4)])
    elements = [int(x) for x, _ in DataLoader(mix)]
    assert len(elements) == 9
    assert evaluate(loader, itself) == np.float32(sum(elements)) / np.float32(9)


@pytest.mark.parametrize("before", [True, False])
def test_filtered_elements_do_not_count(before: bool) -> None:
    third, batch = FilterTransform(lambda x: x % 3 == 1), BatchTransform(4)
    stages = [third, batch] if before else [batch, third]
    found = evaluate(DataLoader([RangeSource(N), *stages]), itself)
    assert found == np.arange(1, N, 3).mean(dtype=np.float32)


def test_what_a_function_makes_of_elements_that_do_not_count_does_not_matter() -> None:
    positive = FilterTransform(lambda x: x > 0)
    loader = DataLoader([RangeSource(3), positive, BatchTransform(2, pad_last_batch=True)])
    assert evaluate(loader, lambda x: jnp.where(x > 0, 1.0, jnp.nan)) == 1


def test_if_nothing_counts_the_mean_is_not_a_number() -> None:
    nothing = FilterTransform(lambda x: x > 100)
    found = evaluate(DataLoader([RangeSource(5), nothing, BatchTransform(2)]), parity)
    assert all(np.isnan(value) for value in found.values())


@pytest.mark.parametrize("n", [pytest.param(8, marks=pytest.mark.slow), 11])
@pytest.mark.filterwarnings("ignore:.*is larger than the data")
def test_folds_under_vmap_count_their_own_elements(n: int) -> None:
    def means(fold: Any) -> Any:
        parts = cereal.kfold(RangeSource(n), 3, fold)
        loaders = [DataLoader([part, BatchTransform(4)]) for part in parts]
        return [evaluate(loader, itself) for loader in loaders]

    rest, one = jax.vmap(means)(jnp.arange(3))
    folds = np.array_split(np.arange(n), 3)
    np.testing.assert_allclose(one, [fold.mean() for fold in folds], rtol=1e-6)
    others = [np.setdiff1d(np.arange(n), fold) for fold in folds]
    np.testing.assert_allclose(rest, [other.mean() for other in others], rtol=1e-6)


@cereal.pytree_dataclass
class Counting(cereal.Source[Any]):
    """0, 1, 2, ...: a stream that does not end with its epoch."""

    steps_per_epoch: int = cereal.static_field(default=10)

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), np.int32)

    def init_state(self, key: Any) -> Any:
        return jnp.int32(0)

    def next(self, state: Any) -> tuple[Any, Any, Any]:
        return state, jnp.bool_(True), state + 1


@pytest.mark.parametrize("rule", RULES, ids=["wrap", "pad", "drop"])
def test_a_stream_counts_the_steps_of_its_epoch(rule: dict[str, Any]) -> None:
    loader = DataLoader([Counting(), BatchTransform(4, **rule)])
    assert evaluate(loader, itself) == 4.5


def test_windows_of_a_mapped_file_count_once(tmp_path: Path) -> None:
    np.arange(50, dtype=np.int32).tofile(tmp_path / "numbers.bin")
    mapped = np.memmap(tmp_path / "numbers.bin", np.int32, mode="r")
    loader = DataLoader([WindowSource(mapped, 4), BatchTransform(8)])
    expected = np.float32(sum(range(47))) / np.float32(47)
    assert evaluate(loader, lambda w: w[:, 0]) == expected
    assert jax.jit(lambda: evaluate(loader, lambda w: w[:, 0]))() == expected


# The metrics


def test_a_tree_of_metrics_is_a_tree_of_means() -> None:
    found = evaluate(in_order(4), lambda x: {"a": [x, (x * 2.0, None)], "b": x[:, None] + x[0]})
    assert jax.tree.structure(found) == jax.tree.structure({"a": [0, (0, None)], "b": 0})
    assert found["a"][0] == 1.5
    assert found["a"][1][0] == 3


def test_axes_after_those_of_the_batch_stay() -> None:
    table = np.arange(N * 6, dtype=np.float32).reshape(N, 2, 3)
    loader = DataLoader([ArraySampleSource(table), BatchTransform(4)])
    np.testing.assert_allclose(evaluate(loader, itself), table.mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.int8, jnp.uint8, jnp.int32])
def test_narrow_metrics_are_added_in_float32(dtype: Any, strict_jax: None) -> None:
    loader = DataLoader([RangeSource(5000), BatchTransform(1000)])
    found = evaluate(loader, lambda x: (x % 2 + 100).astype(dtype))
    assert found.dtype == jnp.float32
    assert found == 100.5


def test_complex_metrics_stay_complex() -> None:
    assert evaluate(in_order(4), lambda x: x * 1j) == 1.5j


def test_yes_and_no_are_counted_exactly() -> None:
    n = (1 << 24) + 3  # float32 cannot count them one by one
    loader = DataLoader([RangeSource(n), BatchTransform(1 << 20)])
    found = evaluate(loader, lambda x: {"all": x >= 0, "few": x < 3})
    assert found["all"] == 1
    assert found["few"] == np.float32(3) / np.float32(n)


def test_many_batches_lose_no_digits() -> None:
    n = 200_001
    loader = DataLoader([RangeSource(n), BatchTransform(1)])

    def tenth(batch: Any) -> Any:
        return jnp.where(batch >= 0, jnp.float32(0.1), jnp.float32(0))

    def add(total: Any, batch: Any, mask: Any) -> tuple[Any, None]:
        return total + tenth(batch).sum(), None

    naive = float(loader.scan_epoch(loader.init_state(0), 0.0, add)[1]) / n
    assert abs(naive - 0.1) > 1e-5
    assert abs(float(evaluate(loader, tenth)) - 0.1) < 1e-7


def test_a_function_may_ask_for_the_mask() -> None:
    def with_default(x: Any, mask: Any = None) -> Any:
        return x * mask.sum()

    loader = in_order(6, 4, pad_last_batch=True)
    assert evaluate(loader, lambda x, mask: x * mask.sum()) == (4 * 6 + 2 * 9) / 6
    assert evaluate(loader, with_default) == (4 * 6 + 2 * 9) / 6
    assert evaluate(loader, lambda x, other=2: x * other) == 5


@pytest.mark.parametrize(
    "wrap", [jax.jit, jax.vmap, lambda f: functools.wraps(f)(lambda *a: f(*a))]
)
def test_a_wrapped_function_may_ask_for_the_mask(wrap: Any) -> None:
    loader = in_order(6, 4, pad_last_batch=True)
    assert evaluate(loader, wrap(lambda x, mask: x * 2 + mask)) == 6


# Kinds of functions


@cereal.pytree_dataclass
class Model:
    weight: Any
    activation: Any = cereal.static_field(default=jnp.abs)

    def __call__(self, batch: Any) -> Any:
        return self.activation(batch * self.weight)

    def metrics(self, batch: Any) -> Any:
        return self(batch)


def scaled(weight: Any, batch: Any) -> Any:
    return batch * weight


FUNCTIONS: dict[str, Any] = {
    "a model": Model(jnp.float32(-2)),
    "a method": Model(jnp.float32(-2)).metrics,
    "a JAX partial": jax.tree_util.Partial(scaled, jnp.float32(2)),
    "a partial": functools.partial(scaled, jnp.float32(2)),
    "a jitted function": jax.jit(lambda x: x * 2),
    "a jitted partial": jax.jit(functools.partial(scaled, 2)),
    "a function of JAX": jnp.positive,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_kind_of_function_is_evaluated(name: str) -> None:
    expected = 2 if "of JAX" in name else 4
    assert evaluate(in_order(5), FUNCTIONS[name]) == expected


# Inside of JAX's transformations


@pytest.mark.parametrize("stages", [[], [CacheTransform("host")]], ids=["compiled", "host"])
def test_it_runs_under_jit_vmap_and_grad(stages: list[Any]) -> None:
    loader = DataLoader([RangeSource(6), *stages, BatchTransform(4)])

    def mean(weight: Any) -> Any:
        return evaluate(loader, lambda x: x * weight)

    assert jax.jit(mean)(2.0) == 5
    assert jax.grad(mean)(2.0) == 2.5
    np.testing.assert_array_equal(jax.vmap(mean)(jnp.arange(3.0)), [0, 2.5, 5])
    np.testing.assert_array_equal(jax.jit(jax.vmap(jax.grad(mean)))(jnp.arange(3.0)), [2.5] * 3)


def test_a_loader_may_be_an_argument_of_jit() -> None:
    loader = DataLoader([ArraySampleSource(np.arange(6.0)), BatchTransform(4)])
    assert (
        jax.jit(lambda loader, key: evaluate(loader, itself, key=key))(loader, jax.random.key(3))
        == 2.5
    )
    assert cereal.jit(lambda weight: evaluate(loader, lambda x: x * weight))(2.0) == 5


def test_random_pipelines_are_evaluated_under_their_key() -> None:
    jitter = RandomMapTransform(lambda x, key: x + jax.random.uniform(key))
    loader = DataLoader([RangeSource(6), jitter, BatchTransform(4, pad_last_batch=True)])
    for key in (0, 1):
        pairs = loader.iterate(loader.init_state(key))
        real = np.concatenate([np.asarray(batch)[np.asarray(mask)] for batch, mask in pairs])
        np.testing.assert_allclose(evaluate(loader, itself, key=key), real.mean(), rtol=1e-6)
    assert evaluate(loader, itself, key=0) != evaluate(loader, itself, key=1)


def test_stages_of_the_pipeline_run_before_the_metric() -> None:
    loader = DataLoader([RangeSource(6), BatchTransform(4), MapTransform(lambda x: x * 10)])
    assert evaluate(loader, itself) == 25


# What it refuses


@pytest.mark.parametrize(
    ("fn", "found"),
    [
        (lambda x: x.mean(), r"`metrics` is \(\)"),
        (lambda x: {"loss": x.sum()}, r"`metrics\['loss'\]` is \(\)"),
        (lambda x: [x, x[:2]], r"`metrics\[1\]` is \(2,\)"),
        (lambda x: 1.0, "`metrics` is float"),
    ],
)
def test_a_value_that_is_not_per_element_is_refused_with_the_fix(fn: Any, found: str) -> None:
    with pytest.raises(UsageError, match=f"return one value per element.*{found}"):
        evaluate(in_order(), fn)


@pytest.mark.parametrize("loader", [RangeSource(4), [RangeSource(4)], None])
def test_what_is_no_loader_is_refused_with_the_fix(loader: Any) -> None:
    with pytest.raises(UsageError, match=r"needs a DataLoader, got .*; write `evaluate"):
        evaluate(loader, itself)


def test_what_is_no_function_is_refused() -> None:
    not_a_function: Any = {"loss": 1}
    with pytest.raises(UsageError, match="needs a function of a batch, got dict"):
        evaluate(in_order(), not_a_function)


# Parameters that are new in every call


def by_a_function(predict: Any, weights: Any) -> Any:
    def scores(batch: Any) -> Any:
        return predict(weights, batch)

    return lambda batch: scores(batch)


def by_partials(predict: Any, weights: Any) -> Any:
    inner = functools.partial(predict, weights)
    return lambda batch: [inner][0](batch)


@pytest.mark.parametrize(
    "make",
    [
        lambda predict, weights: lambda batch: predict(weights, batch),
        functools.partial,
        by_a_function,
        by_partials,
    ],
    ids=["closed over", "partial", "in a function of a function", "in a partial of a function"],
)
def test_new_parameters_compile_nothing_wherever_the_function_has_them(make: Any) -> None:
    rows = np.arange(12.0).reshape(6, 2)
    loader = DataLoader([ArraySampleSource(rows), BatchTransform(2)])

    def predict(weights: Any, batch: Any) -> Any:
        return batch @ weights

    all_weights = [jnp.full(2, float(number)) for number in range(4)]
    evaluate(loader, make(predict, all_weights[0]))
    with compilations() as made:
        found = [float(evaluate(loader, make(predict, weights))) for weights in all_weights]
    assert found == [pytest.approx((rows @ np.asarray(each)).mean()) for each in all_weights]
    assert made() == 0
