"""One step, compiled, whoever asks: a whole pipeline gives the same bits by every road."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.compilations import compilations

import cereal
from cereal.order.threefry import STAGE, threefry
from cereal.testing import check_loader, check_resume

pytestmark = pytest.mark.optimized

STEPS = 20
# Order, element keys and integer augmentation of the pipeline below, first 20 batches, key 7.
# If this changes, every saved state means other batches: it needs a new major version.
GOLDEN = "d70d358dc9198a283f74a39423bbbaaebdfd4a205374f4b835932229a723db4b"


def shift_and_flip(element: dict[str, Any], key: jax.Array) -> dict[str, Any]:
    turn, noise = jax.random.split(key)
    image = jnp.roll(element["image"], jax.random.randint(turn, (), 0, 8), axis=1)
    bits = jax.random.bits(noise, image.shape, jnp.uint8)
    return {**element, "image": image ^ bits}


def dim(element: dict[str, Any], key: jax.Array) -> dict[str, Any]:
    levels = jax.random.randint(key, (), 0, 4).astype(jnp.uint8)
    return {**element, "image": element["image"] >> levels}


def images(n: int) -> dict[str, np.ndarray]:
    pixels = (np.arange(n * 64) * 37 % 251).astype(np.uint8).reshape(n, 8, 8)
    return {"image": pixels, "label": np.arange(n, dtype=np.int32)}


def pipeline() -> cereal.DataLoader[Any]:
    return cereal.DataLoader(
        [
            cereal.ArraySampleSource(images(50), ordering="shuffle", index_key="index"),
            cereal.RandomMapTransform(shift_and_flip),
            cereal.BatchTransform(8),
            cereal.RandomMapTransform(dim),
        ]
    )


def by_hand(loader: cereal.DataLoader[Any], state: Any) -> list[Any]:
    """Element by element: its index, its epoch, its keys, its augmentation; in NumPy but for
    jax.random."""
    key = (np.uint32(0), np.uint32(7))
    data, pairs = images(50), []
    for step in range(STEPS):
        index = loader.indices_at(7, step).astype(np.uint32)
        epoch = ((step * 8 + np.arange(8)) // 50).astype(np.uint32)
        batch = {name: jnp.asarray(values[index]) for name, values in data.items()}
        batch["index"] = jnp.asarray(index)
        for stage, augment in enumerate((shift_and_flip, dim)):
            own = threefry(key, (np.uint32(stage), STAGE))
            words = jnp.asarray(np.stack(threefry(own, (epoch, index)), axis=-1))
            batch = AUGMENT[augment](batch, jax.random.wrap_key_data(words))
        pairs.append((batch, np.ones(8, np.bool_)))
    return pairs


AUGMENT = {augment: jax.jit(jax.vmap(augment)) for augment in (shift_and_flip, dim)}


def by_next_batch(loader: cereal.DataLoader[Any], state: Any) -> list[Any]:
    pairs = []
    for _ in range(STEPS):
        batch, state, mask = loader.next_batch(state)
        pairs.append((batch, mask))
    return pairs


def by_iterate(loader: cereal.DataLoader[Any], state: Any) -> list[Any]:
    return list(loader.iterate(state, steps=STEPS))


def by_scan_epoch(loader: cereal.DataLoader[Any], state: Any) -> list[Any]:
    def keep(carry: None, batch: Any, mask: Any) -> Any:
        return carry, (batch, mask)

    stacked = loader.scan_epoch(state, None, keep, steps=STEPS)[2]
    return [jax.tree.map(lambda x, k=k: x[k], stacked) for k in range(STEPS)]


def by_batch_at(loader: cereal.DataLoader[Any], state: Any) -> list[Any]:
    return [loader.batch_at(7, step) for step in range(STEPS)]


@pytest.mark.parametrize("road", [by_next_batch, by_iterate, by_scan_epoch, by_batch_at, by_hand])
def test_the_golden_digest_of_a_whole_pipeline(road: Callable[..., list[Any]]) -> None:
    loader = pipeline()
    digest = hashlib.sha256()
    for batch, mask in road(loader, loader.init_state(jax.random.key(7))):
        for name in ("image", "index", "label"):
            digest.update(np.asarray(batch[name]).astype("<i4").tobytes())
        digest.update(np.asarray(mask).tobytes())
    assert digest.hexdigest() == GOLDEN


def flip(element: dict[str, Any], key: jax.Array) -> dict[str, Any]:
    image = element["image"]
    return {**element, "image": jax.lax.select(jax.random.bernoulli(key), image, image[::-1])}


def floats() -> cereal.DataLoader[Any]:
    return cereal.DataLoader(
        [
            cereal.ArraySampleSource(images(6), ordering="shuffle"),
            cereal.RandomMapTransform(flip),
            cereal.BatchTransform(4, pad_last_batch=True),
            cereal.NormalizeImageTransform(),
            cereal.FlattenImageTransform(),
            cereal.MapTransform(lambda batch: {**batch, "mean": jnp.mean(batch["image"])}),
        ]
    )


@pytest.mark.slow
def test_a_whole_pipeline_passes_the_kit_under_a_strict_jax(strict_jax: None) -> None:
    check_loader(floats())
    check_resume(floats(), epochs=1)


def test_floats_are_the_same_to_the_bit_in_next_and_under_jit() -> None:
    loader = floats()
    state = loader.init_state(0)
    direct = loader.next_batch(state)[0]
    passed = jax.jit(lambda loader, state: loader.next_batch(state))(loader, state)[0]
    jax.tree.map(np.testing.assert_array_equal, direct, passed)


def test_equal_pipelines_share_one_compiled_step() -> None:
    def run() -> int:
        stage = cereal.MapTransform(lambda batch: batch + 18)
        loader = cereal.DataLoader([cereal.RangeSource(9), cereal.BatchTransform(3), stage])
        state = loader.init_state(0)
        with compilations() as made:
            for _ in range(3):
                _, state, _ = loader.next_batch(state)
        return made()

    assert [run() for _ in range(3)] == [1, 0, 0]


def test_the_data_is_an_argument_of_the_step_and_not_written_into_it() -> None:
    source = cereal.ArraySampleSource(np.zeros((1_000, 100), np.float32))
    loader = cereal.DataLoader([source, cereal.BatchTransform(4)])
    state = loader.init_state(0)
    text = jax.jit(lambda loader, state: loader.next_batch(state)).lower(loader, state).as_text()
    assert len(text) < 100_000
    assert "tensor<1000x100xf32>" in text.partition("@main(")[2].partition("->")[0]
