from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal.testing import check_transform

pytestmark = pytest.mark.optimized

N = 12
ORDER = np.random.default_rng(0).permutation(N)
DATA = {"x": np.zeros(N, np.int32)}
SOURCE = cereal.ArraySampleSource(DATA, ordering=ORDER, index_key="index")


def noise(element: Any, key: jax.Array) -> Any:
    return {**element, "x": element["x"] ^ jax.random.bits(key, (), jnp.uint32).astype(jnp.int32)}


NOISE = cereal.RandomMapTransform(noise)
KEEP = cereal.MapTransform(lambda element: element)


def drawn(*stages: Any, key: Any = 0, epochs: int = 1) -> np.ndarray:
    """What was drawn for each element, by epoch and index."""
    loader = cereal.DataLoader([SOURCE, *stages])
    table = np.zeros((epochs, N), np.int32)
    batches = [batch for batch, _ in loader.iterate(loader.init_state(key), epochs=epochs)]
    index = np.concatenate([np.ravel(batch["index"]) for batch in batches])
    values = np.concatenate([np.ravel(batch["x"]) for batch in batches])
    for place in range(epochs * N):
        table[place // N, index[place]] = values[place]
    return table


def batch(size: int, **rule: Any) -> cereal.BatchTransform:
    return cereal.BatchTransform(size, **rule)


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return drawn(NOISE, batch(4), epochs=2)


def test_a_random_map_keeps_the_contract() -> None:
    check_transform(
        NOISE, cereal.ArraySampleSource({"x": np.zeros(5, np.int32)}, ordering=range(4))
    )


@pytest.mark.parametrize(
    "stages",
    [
        [batch(4), NOISE],
        [NOISE],
        [NOISE, batch(3)],
        [batch(5), NOISE],
        [batch(24), NOISE],
        [batch(2), NOISE, batch(3)],
        [batch(2), batch(3), NOISE],
        [KEEP, NOISE, batch(4)],
        [batch(4), KEEP, NOISE, KEEP],
        [batch(6, drop_last=True), NOISE],
        [NOISE, batch(6, pad_last_batch=True)],
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*is larger than the data")
def test_an_element_of_an_epoch_is_augmented_alike_wherever_the_stage_stands(
    stages: Any, expected: np.ndarray
) -> None:
    np.testing.assert_array_equal(drawn(*stages, epochs=2), expected)


def test_padding_is_augmented_as_the_elements_that_it_repeats_are_in_this_epoch(
    expected: np.ndarray,
) -> None:
    loader = cereal.DataLoader([SOURCE, batch(8, pad_last_batch=True), NOISE])
    last, mask = list(loader.iterate(loader.init_state(0)))[-1]
    assert int(mask.sum()) == 4
    np.testing.assert_array_equal(last["x"], expected[0, np.asarray(last["index"])])


def test_elements_epochs_and_keys_differ(expected: np.ndarray) -> None:
    tables = [expected, *(drawn(NOISE, batch(4), key=key, epochs=2) for key in (1, 2**32))]
    assert len(np.unique(np.concatenate(tables))) == 3 * 2 * N


def test_two_random_stages_draw_apart(expected: np.ndarray) -> None:
    both = drawn(NOISE, batch(4), NOISE)
    second = both ^ expected[:1]
    assert (second != expected[:1]).all()
    assert len(np.unique(second)) == N


def test_a_random_stage_after_it_changes_nothing(expected: np.ndarray) -> None:
    other = cereal.RandomMapTransform(lambda element, key: element)
    np.testing.assert_array_equal(drawn(NOISE, batch(4), other), expected[:1])


def test_inserting_an_image_stage_changes_no_augmentation() -> None:
    images = {"image": np.zeros((6, 4, 4), np.uint8), "x": np.zeros(6, np.int32)}
    source = cereal.ArraySampleSource(images, ordering="sequential")
    results = []
    for stages in ([], [cereal.NormalizeImageTransform()], [cereal.FlattenImageTransform()]):
        loader = cereal.DataLoader([source, *stages, NOISE, batch(3)])
        results.append(np.asarray(loader.batch_at(0, 1)[0]["x"]))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_keys_are_jax_random_keys_of_the_default_kind() -> None:
    seen = []

    def look(element: Any, key: jax.Array) -> Any:
        seen.append((key.dtype, key.shape))
        return element

    drawn(cereal.RandomMapTransform(look), batch(4))
    drawn(batch(4), cereal.RandomMapTransform(look))
    assert set(seen) == {(jax.random.key(0).dtype, ())}


def test_the_kind_of_the_users_key_does_not_matter() -> None:
    typed = drawn(NOISE, batch(4), key=jax.random.key(0))
    legacy = drawn(NOISE, batch(4), key=jax.random.PRNGKey(0))
    np.testing.assert_array_equal(typed, legacy)
    rbg = jax.random.key(0, impl="rbg")
    np.testing.assert_array_equal(drawn(NOISE, batch(4), key=rbg), drawn(batch(3), NOISE, key=rbg))


def test_each_visit_of_a_repeating_order_is_augmented_anew() -> None:
    source = cereal.ArraySampleSource({"x": np.zeros(3, np.int32)}, ordering=[1, 1, 2])
    values, _ = cereal.DataLoader([source, NOISE, batch(3)]).batch_at(0, 0)
    assert len(set(values["x"].tolist())) == 3


@pytest.mark.parametrize("fn", [lambda element: element, jnp.square, lambda e, scale=1.0: e])
def test_a_function_without_a_key_is_refused_when_built(fn: Any) -> None:
    message = r"^RandomMapTransform: `.*` must take two arguments.*`def .*\(element, key\): ...`"
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.RandomMapTransform(fn)


def test_a_value_for_the_whole_batch_before_it_is_refused_when_built() -> None:
    total = cereal.MapTransform(lambda b: {**b, "total": b["x"].sum()})
    message = r"^stage 3: RandomMapTransform\(noise\) works on elements, but `batch\['total'\]` of"
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.DataLoader([SOURCE, batch(4), total, NOISE])
