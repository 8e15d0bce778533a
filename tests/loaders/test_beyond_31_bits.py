"""Host pipelines count further than compiled code: positions of 64 bits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal import (
    BatchTransform,
    BlockShuffle,
    Bootstrap,
    CacheTransform,
    ConcatSource,
    DataLoader,
    DiskSampleSource,
    HostMapTransform,
    HostRandomMapTransform,
    IterableSource,
    MapTransform,
    PipelineError,
    RandomMapTransform,
    SliceSource,
    UnbatchTransform,
    ZipSource,
    select,
    split,
)
from cereal.pipeline.state import PipelineState, make_words
from cereal.sources.iterators.bookmark import Bookmark, Run, packed

N = 10**12
BORDERS = [2**31 - 6, 2**32 - 6, 2**39]


def words_of(index):
    return np.array([index >> 32, index & 0xFFFF_FFFF], np.uint32)


def whole(batch):
    words = np.asarray(batch).astype(np.int64)
    return ((words[..., 0] << 32) | words[..., 1]).tolist()


def disk(n: int = N, ordering: Any = "sequential"):
    return DiskSampleSource(n, words_of, ordering=ordering)


def at(loader, offset, key=0, epoch=0):
    words = jnp.asarray(make_words((0, key), epoch, offset))
    return PipelineState(words, loader.init_state(0).fingerprint)


def by_next_batch(loader, state, steps):
    found = []
    for _ in range(steps):
        batch, state, _ = loader.next_batch(state)
        found.append(whole(batch))
    return found, state


def by_scan(loader, state, steps):
    body = lambda carry, batch, mask: (carry, batch)  # noqa: E731
    state, _, batches = loader.scan_epoch(state, 0, body, steps=steps)
    return [whole(batch) for batch in np.asarray(batches)], state


def by_iterate(loader, state, steps):
    iterator = loader.iterate(state, steps=steps)
    return [whole(batch) for batch, _ in iterator], iterator.state


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("offset", BORDERS)
def test_data_in_its_own_order_is_read_across_the_borders_of_words(offset, workers):
    loader = DataLoader([disk(), BatchTransform(4)], workers=workers)
    expected = np.arange(offset, offset + 16).reshape(4, 4).tolist()
    for read in (by_next_batch, by_iterate, by_scan):
        found, state = read(loader, at(loader, offset), 4)
        assert found == expected
        assert read(loader, state, 1)[0] == [list(range(offset + 16, offset + 20))]
    step = 2**33 + 5
    assert whole(loader.batch_at(0, step)[0]) == list(range(4 * step, 4 * step + 4))
    assert loader.indices_at(0, step).tolist() == list(range(4 * step, 4 * step + 4))
    assert whole(loader.read_element(offset)) == offset
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffle_of_more_than_31_bits_is_one_order_however_it_is_read(workers):
    loader = DataLoader([disk(ordering="shuffle"), BatchTransform(64)], workers=workers)
    expected = [loader.indices_at(7, step).tolist() for step in range(8)]
    for read in (by_next_batch, by_iterate, by_scan):
        found, state = read(loader, loader.init_state(7), 5)
        assert found + read(loader, state, 3)[0] == expected
    drawn = sorted(index for step in expected for index in step)
    assert len(set(drawn)) == 512
    assert drawn[0] < N // 50 < drawn[-1] < N
    assert np.mean(drawn) == pytest.approx(N / 2, rel=0.1)
    assert loader.indices_at(8, 0).tolist() != expected[0]
    loader.close()


@pytest.mark.parametrize("n", [2**31, 2**31 + 7])
def test_the_end_of_a_long_epoch_is_like_that_of_a_short_one(n):
    wrap = DataLoader([disk(n), BatchTransform(4)], workers=0)
    found, state = by_iterate(wrap, at(wrap, n - 6), 2)
    assert found == [[n - 6, n - 5, n - 4, n - 3], [n - 2, n - 1, 0, 1]]
    assert (int(state.epoch), int(state.offset)) == (1, 2)
    pad = DataLoader([disk(n), BatchTransform(4, pad_last_batch=True)], workers=0)
    masks = [np.asarray(mask).tolist() for _, mask in pad.iterate(at(pad, n - 6))]
    assert masks == [[True] * 4, [True, True, False, False]]
    drop = DataLoader([disk(n), BatchTransform(4, drop_last=True)], workers=0)
    assert len(list(drop.iterate(at(drop, n - 6)))) == 1
    shuffled = DataLoader([disk(n, "shuffle"), BatchTransform(4)], workers=0)
    found, state = by_next_batch(shuffled, at(shuffled, n - 2), 2)
    assert (int(state.epoch), int(state.offset)) == (1, 6)
    assert found[0][2:] + found[1] == shuffled_from_the_start(shuffled, 6)


def shuffled_from_the_start(loader, count):
    rows, _ = loader.source._plan.rows_for(np.asarray(at(loader, 0, epoch=1).words), 2)
    return rows.index.reshape(-1)[:count].tolist()


def host_noise(x, rng):
    return {"id": x, "noise": rng.integers(2**31)}


def noise(x, key):
    return {"id": x, "noise": jax.random.bits(key, (), jnp.uint32)}


@pytest.mark.parametrize(
    "stages",
    [
        [HostRandomMapTransform(host_noise), BatchTransform(4)],
        [RandomMapTransform(noise), BatchTransform(4)],
        [BatchTransform(4), RandomMapTransform(noise)],
    ],
)
def test_randomness_belongs_to_all_bits_of_an_index(stages):
    narrow = DataLoader([disk(2**31 - 1), *stages], workers=0)
    wide = DataLoader([disk(), *stages], workers=0)
    same, _, _ = narrow.next_batch(at(narrow, 1000))
    first, _, _ = wide.next_batch(at(wide, 1000))
    np.testing.assert_array_equal(same["noise"], first["noise"])
    far, _, _ = wide.next_batch(at(wide, 1000 + 2**32))
    farther, _, _ = wide.next_batch(at(wide, 1000 + 2 * 2**32))
    noises = np.concatenate([x["noise"] for x in (first, far, farther)])
    assert len(set(noises.tolist())) == 12
    read, _ = next(wide.iterate(at(wide, 1000 + 2**32), steps=1))
    np.testing.assert_array_equal(read["noise"], far["noise"])
    scanned = wide.scan_epoch(at(wide, 1000 + 2**32), 0, lambda c, b, m: (c, b), steps=1)[2]
    np.testing.assert_array_equal(scanned["noise"][0], far["noise"])
    if not isinstance(stages[0], BatchTransform):
        assert int(wide.read_element(1002 + 2**32)["noise"]) == int(far["noise"][2])


def test_what_is_compiled_says_that_it_cannot_count_so_far():
    loader = DataLoader([disk(), BatchTransform(4)], workers=0)
    state = loader.init_state(0)
    words = "over 1000000000000 elements cannot be part of a compiled program, which counts to 2147"
    with pytest.raises(PipelineError, match=words):
        jax.jit(loader.next_batch)(state)
    with pytest.raises(PipelineError, match=words):
        jax.vmap(loader.next_batch)(jax.tree.map(lambda x: x[None], state))
    with pytest.raises(PipelineError, match=words):
        loader.scan_epoch(
            state, 0, lambda c, b, m: (c, 0), steps=2, feedback=lambda state, carry, out: state
        )


@pytest.mark.parametrize("order", [BlockShuffle(1024), Bootstrap()])
def test_orders_that_cannot_count_so_far_are_refused_when_the_loader_is_built(order):
    with pytest.raises(PipelineError, match=r'can count \(2147483647\); pass `ordering="shuf'):
        DataLoader([disk(ordering=order), BatchTransform(4)])


def test_lists_of_indices_reach_as_far_as_31_bits():
    source = disk(ordering=[5, 2**31 - 1])
    loader = DataLoader([source, BatchTransform(2)], workers=0)
    assert whole(loader.batch_at(0, 0)[0]) == [5, 2**31 - 1]
    with pytest.raises(PipelineError, match="has the index 2147483648, and lists of indices count"):
        disk(ordering=[5, 2**31])


@pytest.mark.parametrize(
    "combine",
    [
        lambda source: SliceSource(source, range(10)),
        lambda source: ConcatSource([source, source]),
        lambda source: ZipSource((source, source)).traits,
        lambda source: split(source, (0.5, 0.5)),
        lambda source: select(source, lambda x: True),
        lambda source: DataLoader([source, CacheTransform("host"), BatchTransform(2)]),
        lambda source: DataLoader([source, UnbatchTransform(), BatchTransform(2)]),
    ],
)
def test_combinations_and_caches_of_so_much_data_are_refused(combine):
    with pytest.raises(PipelineError, match=r"\d{13}.*2147483647"):
        combine(disk())


def test_more_than_can_be_counted_is_refused():
    with pytest.raises(PipelineError, match="there must be at least one, and at most"):
        DataLoader([disk(2**63), BatchTransform(2)])


class Tokens:
    """An endless iterator with a state of its own; elements as two words."""

    def __init__(self):
        self.i = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.i += 1
        return words_of(self.i - 1)

    def get_state(self):
        return {"i": self.i}

    def set_state(self, state):
        self.i = state["i"]


def in_stream(loader, offset):
    bookmark = jnp.asarray(packed(Bookmark(Run(0, None), offset, {"i": offset})))
    return PipelineState(at(loader, offset).words, loader.init_state(0).fingerprint, bookmark)


def by_jit(loader, state, steps):
    step = jax.jit(loader.next_batch)
    found = []
    for _ in range(steps):
        batch, state, _ = step(state)
        found.append(whole(batch))
    return found, state


def by_scan_in_jit(loader, state, steps):
    return jax.block_until_ready(jax.jit(lambda s: scanned(loader, s, steps))(state))


def scanned(loader, state, steps):
    state, _, batches = loader.scan_epoch(state, 0, lambda c, b, m: (c, b), steps=steps)
    return batches, state


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("offset", BORDERS)
def test_an_endless_stream_goes_on(offset, workers):
    loader = DataLoader([IterableSource(Tokens), BatchTransform(4)], workers=workers)
    expected = np.arange(offset, offset + 12).reshape(3, 4).tolist()
    for read in (by_next_batch, by_iterate, by_scan, by_jit):
        found, state = read(loader, in_stream(loader, offset), 3)
        assert found == expected, read
        assert read(loader, state, 1)[0] == [list(range(offset + 12, offset + 16))], read
    batches, _ = by_scan_in_jit(loader, in_stream(loader, offset), 3)
    assert whole(batches) == expected
    loader.close()


def test_an_endless_stream_gives_randomness_by_all_bits_in_programs_too():
    stages = [BatchTransform(4), MapTransform(lambda x: x), RandomMapTransform(noise)]
    loader = DataLoader([IterableSource(Tokens), *stages], workers=0)
    outside, _, _ = loader.next_batch(in_stream(loader, 2**32 - 2))
    inside, _, _ = jax.jit(loader.next_batch)(in_stream(loader, 2**32 - 2))
    near, _, _ = loader.next_batch(in_stream(loader, 0))
    np.testing.assert_array_equal(outside["noise"], inside["noise"])
    assert not set(outside["noise"].tolist()) & set(near["noise"].tolist())


def test_states_of_streams_without_end_are_those_of_earlier_versions():
    loader = DataLoader([IterableSource(Tokens), BatchTransform(4)], workers=0)
    assert loader.init_state(0).fingerprint.length == 2**31 - 1


def test_host_stages_see_whole_indices_of_elements():
    loader = DataLoader([disk(), HostMapTransform(lambda x: x), BatchTransform(2)], workers=0)
    assert whole(next(loader.iterate(at(loader, 2**35), steps=1))[0]) == [2**35, 2**35 + 1]


def test_the_offset_of_a_state_is_whole_beyond_32_bits() -> None:
    loader = DataLoader([disk(), BatchTransform(4)])
    for offset in (0, 2**32 - 4, 2**32, 3 * 10**11):
        assert int(at(loader, offset).offset) == offset
    stream = DataLoader([IterableSource(lambda: iter(range(4))), BatchTransform(4)])
    assert int(at(stream, 2**33 + 8).offset) == 2**33 + 8
