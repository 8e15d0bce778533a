"""Random Python functions: one generator per element, whoever runs it, wherever it stands."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal import (
    BatchTransform,
    DataLoader,
    DatasetSource,
    HostFilterTransform,
    HostMapTransform,
    HostRandomMapTransform,
    MapTransform,
    PipelineError,
    RandomMapTransform,
    RangeSource,
)
from cereal.testing import assert_same, check_loader, check_resume, check_source

N, SIZE = 10, 4
KEYS = [0, 12_345_678_901, (1 << 64) - 1]
MASK = 0xFFFF_FFFF
STAGE = 0x5300_0000


def threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """Threefry-2x32 with 20 rounds, as its paper has it, in plain integers."""
    schedule = (*key, key[0] ^ key[1] ^ 0x1BD1_1BDA)
    a, b = ((word + own) & MASK for word, own in zip(counter, key, strict=True))
    for group in range(5):
        for distance in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            a = (a + b) & MASK
            b = ((b << distance | b >> (32 - distance)) & MASK) ^ a
        a = (a + schedule[(group + 1) % 3]) & MASK
        b = (b + schedule[(group + 2) % 3] + group + 1) & MASK
    return a, b


def generator(key: int, epoch: int, index: int, stage: int = 0) -> np.random.Generator:
    """The generator that the design promises, made afresh."""
    own = threefry((key >> 32, key & MASK), (stage, STAGE))
    high, low = threefry(own, (epoch, index))
    return np.random.Generator(np.random.Philox(key=(high << 32) | low))


def draw(x: Any, rng: np.random.Generator) -> Any:
    return {"x": x, "r": rng.integers(0, 1 << 30, 3), "u": rng.random(2, np.float32)}


def jitter(x: Any, rng: np.random.Generator) -> Any:
    return x * 1000 + rng.integers(1000)


def walk(n: int, steps: int, size: int = SIZE) -> Iterator[list[tuple[int, int]]]:
    """(epoch, index) of each lane of sequential batches that wrap."""
    for step in range(steps):
        yield [divmod(step * size + lane, n) for lane in range(size)]


def data() -> DatasetSource:
    return DatasetSource(list(range(N)))


def some(loader: DataLoader[Any], steps: int, key: int = 0) -> list[Any]:
    with loader:
        return [batch for batch, _ in loader.iterate(loader.init_state(key), steps=steps)]


# What an element's generator is


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("batched", [False, True], ids=["before", "after batching"])
def test_every_element_has_the_generator_of_its_key_epoch_and_index(
    batched: bool, key: int, workers: int
) -> None:
    stages = [HostRandomMapTransform(draw), BatchTransform(SIZE)]
    found = some(DataLoader([data(), *stages[:: -1 if batched else 1]], workers=workers), 7, key)
    for batch, lanes in zip(found, walk(N, 7), strict=True):
        made = [draw(index, generator(key, epoch, index)) for epoch, index in lanes]
        for name in ("x", "r", "u"):
            np.testing.assert_array_equal(batch[name], np.stack([each[name] for each in made]))


@pytest.mark.parametrize("size", [1, 3, 10, 23])
@pytest.mark.parametrize("ordering", ["sequential", "shuffle"])
@pytest.mark.filterwarnings("ignore:.*is larger than the data")
def test_the_batch_size_changes_no_element(size: int, ordering: str) -> None:
    source = DatasetSource(list(range(N)), ordering=ordering)
    loader = DataLoader([source, HostRandomMapTransform(jitter), BatchTransform(size)])
    found = np.concatenate(some(loader, -(-3 * N // size), key=5))[: 3 * N]
    order = np.concatenate([loader.indices_at(5, step) for step in range(-(-3 * N // size))])
    expected = [
        jitter(int(index), generator(5, at // N, int(index)))
        for at, index in enumerate(order[: 3 * N])
    ]
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("key", "digest"),
    [
        (0, "78f4bd9558b0eec9f3d7378946b13807"),
        (12_345_678_901, "44bc652882c973daed6949decb510619"),
    ],
)
def test_the_numbers_of_three_epochs_are_those_of_all_versions(key: int, digest: str) -> None:
    loader = DataLoader(
        [data(), HostRandomMapTransform(lambda x, rng: rng.integers(0, 1 << 31, 5)),
         BatchTransform(5)]
    )  # fmt: skip
    found = np.concatenate(some(loader, 6, key)).astype("<i4")
    assert hashlib.sha256(found.tobytes()).hexdigest()[:32] == digest


def test_every_road_gives_the_same_numbers() -> None:
    stages = [BatchTransform(SIZE, pad_last_batch=True), HostRandomMapTransform(draw)]
    for order in (stages, stages[::-1]):
        loader = DataLoader([data(), *order], workers=2)
        check_loader(loader, key=3)
        check_resume(loader, key=3)
        check_source(loader.source, key=3)
        loader.close()


def test_a_restart_in_any_epoch_gives_the_rest_of_the_numbers() -> None:
    loader = DataLoader([data(), HostRandomMapTransform(jitter), BatchTransform(SIZE)], workers=1)
    expected = some(loader, 8, key=7)
    for step in (1, 2, 5, 7):
        state = loader.state_at(7, step)
        rest = [batch for batch, _ in loader.iterate(state, steps=8 - step)]
        assert_same(rest, expected[step:], f"from step {step}")


def test_an_element_read_by_hand_is_that_of_the_loader() -> None:
    loader = DataLoader([data(), HostRandomMapTransform(jitter), BatchTransform(SIZE)])
    assert loader.read_element(7, key=9, epoch=2) == jitter(7, generator(9, 2, 7))


@pytest.mark.filterwarnings("ignore:.*is larger than the data")
def test_microbatches_have_the_numbers_of_their_elements() -> None:
    stage = HostRandomMapTransform(jitter)
    expected = np.array(
        [jitter(i, generator(1, e, i)) for e, i in itertools.chain(*walk(N, 2, 12))]
    ).reshape(2, 3, 4)
    for stages in (
        [stage, BatchTransform(4), BatchTransform(3)],
        [BatchTransform(4), stage, BatchTransform(3)],
        [BatchTransform(4), BatchTransform(3), stage],
    ):
        np.testing.assert_array_equal(some(DataLoader([data(), *stages]), 2, key=1), expected)


# Numbering


def words_of(x: Any, key: jax.Array) -> jax.Array:
    return jax.random.key_data(key)


def raw(x: Any, rng: np.random.Generator) -> Any:
    return rng.integers(0, 1 << 31, 2)


def of_words(words: Any) -> np.ndarray:
    """What `raw` draws, from the words of JAX's key."""
    keys = [(int(high) << 32) | int(low) for high, low in np.asarray(words)]
    return np.stack(
        [np.random.Generator(np.random.Philox(key=key)).integers(0, 1 << 31, 2) for key in keys]
    )


def test_a_host_stage_is_seeded_by_the_key_that_a_traced_one_in_its_place_would_get() -> None:
    batch, source = BatchTransform(SIZE), RangeSource(N, ordering="shuffle")
    traced = some(DataLoader([source, RandomMapTransform(words_of), batch]), 6, key=3)
    host = some(DataLoader([source, HostRandomMapTransform(raw), batch]), 6, key=3)
    for mine, words in zip(host, traced, strict=True):
        np.testing.assert_array_equal(mine, of_words(words))


def test_host_and_traced_random_stages_are_numbered_together() -> None:
    batch, source = BatchTransform(SIZE), RangeSource(N)
    host, traced = HostRandomMapTransform(jitter), RandomMapTransform(words_of)
    second = some(DataLoader([source, host, batch, traced]), 3)
    expected = some(DataLoader([source, traced, MapTransform(lambda x: 0), traced, batch]), 3)
    assert_same(second, expected, "a traced stage after a host one has number 1")
    first = some(DataLoader([source, traced, batch]), 3)
    assert not np.array_equal(first[0], second[0])


@pytest.mark.parametrize("stages", range(1, 4))
def test_each_random_stage_has_numbers_of_its_own(stages: int) -> None:
    def append(x: Any, rng: np.random.Generator) -> Any:
        return [*x, int(rng.integers(0, 1 << 31))]

    start = HostMapTransform(lambda x: [x])
    chain = [HostRandomMapTransform(append) for _ in range(stages)]
    found = some(DataLoader([data(), start, *chain, BatchTransform(SIZE)]), 3)
    for batch, lanes in zip(found, walk(N, 3), strict=True):
        for row, (epoch, index) in zip(np.asarray(batch), lanes, strict=True):
            drawn = [
                int(generator(0, epoch, index, stage).integers(0, 1 << 31))
                for stage in range(stages)
            ]
            assert row.tolist() == [index, *drawn]
            assert len(set(drawn)) == stages


def test_stages_that_are_not_random_change_no_number() -> None:
    same, keep = HostMapTransform(lambda x: x), HostFilterTransform(lambda x: True)
    stage, batch = HostRandomMapTransform(jitter), BatchTransform(SIZE)
    expected = some(DataLoader([data(), stage, batch]), 5, key=2)
    for stages in (
        [same, stage, batch],
        [same, keep, same, stage, same, batch],
        [same, batch, same, keep, stage],
        [stage, batch, MapTransform(lambda x: x), MapTransform(lambda x: x)],
    ):
        assert_same(some(DataLoader([data(), *stages]), 5, key=2), expected, str(stages))


def test_a_filter_before_it_changes_no_number_of_those_that_stay() -> None:
    odd = HostFilterTransform(lambda x: x % 2 == 1)
    loader = DataLoader([data(), odd, HostRandomMapTransform(jitter), BatchTransform(N)])
    batch, mask = loader.batch_at(0, 1)
    assert mask.tolist() == [index % 2 == 1 for index in range(N)]
    for index in range(1, N, 2):
        assert int(batch[index]) == jitter(index, generator(0, 1, index))


# Independence


def test_no_two_elements_epochs_keys_or_stages_share_a_stream() -> None:
    pair = [HostRandomMapTransform(lambda x, rng: [int(rng.integers(1 << 31))])]
    pair += [HostRandomMapTransform(lambda x, rng: [*x, int(rng.integers(1 << 31))])]
    source = DatasetSource(list(range(500)))
    drawn = [
        np.concatenate(some(DataLoader([source, *pair, BatchTransform(250)]), 4, key)).ravel()
        for key in (0, 1, 1 << 32)
    ]
    count = 3 * 2 * 2 * 500
    assert len(np.unique(drawn)) > count - 30  # 2^31 values: about eight meet by chance


def test_the_numbers_look_random_across_elements() -> None:
    n = 4000
    uniform = HostRandomMapTransform(lambda x, rng: rng.random(2))
    loader = DataLoader([RangeSource(n), uniform, BatchTransform(n)])
    first, second = (np.asarray(batch, np.float64) for batch in some(loader, 2, key=11))
    for column in (first[:, 0], first[:, 1], second[:, 0]):
        assert abs(column.mean() - 0.5) < 5 * np.sqrt(1 / 12 / n)
        counts = np.histogram(column, 16, (0, 1))[0]
        assert ((counts - n / 16) ** 2 / (n / 16)).sum() < 55  # chi-square, 15 degrees
    for a, b in (
        (first[:, 0], first[:, 1]),
        (first[:, 0], second[:, 0]),
        (first[1:, 0], first[:-1, 0]),
    ):
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(n)


@pytest.mark.parametrize(
    "before",
    [
        lambda rng: rng.integers(0, 100, dtype=np.uint32),
        lambda rng: rng.integers(0, 100, 3, dtype=np.uint8),
        lambda rng: rng.random(dtype=np.float32),
        lambda rng: rng.standard_normal(7),
        lambda rng: rng.bit_generator.random_raw(5),
        lambda rng: rng.permutation(17),
        lambda rng: rng.bit_generator.advance(1 << 70),
    ],
)
def test_nothing_that_an_element_drew_is_left_for_the_next(before: Any) -> None:
    def fn(x: Any, rng: np.random.Generator) -> Any:
        value = [int(rng.integers(0, 1 << 31, dtype=np.uint32)), int(rng.integers(1 << 31))]
        if x % 3:  # so that neighbours leave different things behind
            before(rng)
        return value

    found = some(DataLoader([data(), HostRandomMapTransform(fn), BatchTransform(N)], workers=1), 2)
    for epoch, batch in enumerate(found):
        expected = [fn(0, generator(0, epoch, index)) for index in range(N)]
        assert np.asarray(batch).tolist() == expected


def test_a_function_may_read_another_random_pipeline_in_between() -> None:
    other = DataLoader([data(), HostRandomMapTransform(jitter), BatchTransform(SIZE)], workers=0)

    def mixed(x: Any, rng: np.random.Generator) -> Any:
        partner = int(rng.integers(N))
        return [partner, other.read_element(partner, key=1), int(rng.integers(1 << 31))]

    loader = DataLoader([data(), HostRandomMapTransform(mixed), BatchTransform(N)], workers=0)
    expected = []
    for index in range(N):
        rng = generator(0, 0, index)
        partner = int(rng.integers(N))
        other_value = jitter(partner, generator(1, 0, partner))
        expected.append([partner, other_value, int(rng.integers(1 << 31))])
    assert np.asarray(some(loader, 1)[0]).tolist() == expected


# Refusals


def test_a_function_of_one_argument_is_refused() -> None:
    def flip(image: Any) -> Any:
        return image

    with pytest.raises(PipelineError, match=r"`flip` must take two arguments.*HostMapTransform"):
        HostRandomMapTransform(flip)  # type: ignore[arg-type]


def test_something_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(PipelineError, match="HostRandomMapTransform: `fn` must be callable"):
        HostRandomMapTransform(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("made", [lambda b: b.sum(), lambda b: b[:2]], ids=["scalar", "vector"])
def test_a_value_for_the_whole_batch_is_refused_when_the_pipeline_is_built(made: Any) -> None:
    whole = HostMapTransform(lambda batch: {"x": batch, "all": made(batch)})
    with pytest.raises(PipelineError, match=r"batch\['all'\]"):
        DataLoader([data(), BatchTransform(SIZE), whole, HostRandomMapTransform(lambda x, rng: x)])


def test_a_loader_over_it_is_random_and_says_so() -> None:
    loader = DataLoader([data(), HostRandomMapTransform(jitter), BatchTransform(SIZE)])
    with pytest.raises(Exception, match="this pipeline is random"):
        iter(loader)
    assert jnp.shape(loader.batch_at(0, 0)[0]) == (SIZE,)
