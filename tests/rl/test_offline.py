"""Recorded episodes: every transition, n-step return and window is that of a plain loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from tests.rl.recorded import episode, recorded, transition, transitions, windows

from cereal import (
    BatchTransform,
    ConcatSource,
    DataLoader,
    HostMapTransform,
    MapTransform,
    PipelineError,
    UsageError,
    kfold,
    split,
)
from cereal.rl import EpisodeSource, n_step_returns
from cereal.rl.offline.joined import windows as table_of_windows
from cereal.testing import check_loader, check_resume, check_source

LENGTHS = (3, 1, 5, 4)
EPISODES = recorded(LENGTHS)
AT_ONCE = 32  # indices of one call of `take`: always as many, so that nothing is compiled again


def stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *each: np.stack(each), *trees)


def same(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(x), y, rtol=1e-5, atol=1e-5)


@jax.jit
def take(source: Any, indices: Any) -> Any:
    return source.take(indices)


def taken(source: Any) -> Any:
    """All elements of a source that has at most 32."""
    indices = np.minimum(np.arange(AT_ONCE), len(source) - 1)
    return jax.tree.map(lambda x: np.asarray(x)[: len(source)], take(source, indices))


def check_transitions(lengths: Any) -> None:
    episodes = recorded(lengths)
    source = EpisodeSource(episodes)
    assert len(source) == sum(lengths)
    same(taken(source), stacked(transitions(episodes)))


def check_n_steps(lengths: Any, n: int) -> None:
    episodes = recorded(lengths)
    source = EpisodeSource(episodes, n_step=n, gamma=0.9)
    same(taken(source), stacked(transitions(episodes, n, 0.9)))


def check_windows(lengths: Any, period: int, pad: bool, size: int = 4) -> None:
    episodes = recorded(lengths)
    source = EpisodeSource(episodes, window=size, period=period, pad=pad)
    wanted = windows(episodes, size, period, pad)
    assert len(source) == len(wanted)
    repeated = [inside + [inside[-1]] * (size - len(inside)) for inside in wanted]
    rows = [stacked([transition(episodes[e], t) for e, t in inside]) for inside in repeated]
    same(taken(source), stacked(rows))


def test_transitions_are_those_of_a_loop() -> None:
    check_transitions(LENGTHS)


@pytest.mark.parametrize("n", [1, 3])
def test_n_step_returns_are_those_of_a_loop(n: int) -> None:
    check_n_steps(LENGTHS, n)


@pytest.mark.parametrize(("period", "pad"), [(1, True), (2, True), (1, False)])
def test_windows_are_those_of_a_loop(period: int, pad: bool) -> None:
    check_windows(LENGTHS, period, pad)


LISTS = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@pytest.mark.slow
@settings(max_examples=30)
@given(LISTS, st.sampled_from([1, 2, 5]), st.integers(1, 5), st.booleans())
def test_episodes_may_have_any_lengths(lengths: Any, n: int, period: int, pad: bool) -> None:
    check_transitions(lengths)
    check_n_steps(lengths, n)
    check_windows([*lengths, 4], period, pad)


@given(LISTS, st.integers(1, 8), st.integers(1, 5), st.booleans())
def test_the_table_of_windows_is_that_of_a_loop(
    lengths: Any, size: int, period: int, pad: bool
) -> None:
    lengths = [*lengths, 8]  # so that there is a window
    wanted = windows([{"rewards": range(n)} for n in lengths], size, period, pad)
    first = np.cumsum([0, *lengths])
    rows = [[first[w[0][0]] + w[0][1], first[w[0][0]] + sum(w[0]), len(w)] for w in wanted]
    assert table_of_windows(np.array(lengths), size, period, pad, "").tolist() == rows


def test_n_step_returns_are_those_of_the_function_over_segments() -> None:
    joined = {
        name: np.concatenate([each[name] for each in EPISODES])
        for name in ("rewards", "terminations", "truncations")
    }
    done = joined["terminations"] | joined["truncations"]
    after = np.concatenate([each["observations"]["id"][1:] for each in EPISODES])
    wanted = n_step_returns(
        joined["rewards"], done, after, 3, gamma=0.9, terminated=joined["terminations"]
    )
    found = taken(EpisodeSource(EPISODES, n_step=3, gamma=0.9))
    made = (found["n_step_return"], found["bootstrap_state"]["id"], found["bootstrap_discount"])
    same(made, wanted)


def test_windows_have_n_step_returns_of_their_whole_episode() -> None:
    source = EpisodeSource(EPISODES, window=2, n_step=3, gamma=0.9)
    wanted = stacked(transitions(EPISODES, 3, 0.9))
    number = {int(x): at for at, x in enumerate(wanted["state"]["id"])}
    found = taken(source)
    at = np.vectorize(number.get)(found["state"]["id"])
    same(found, jax.tree.map(lambda x: x[at], wanted))


# By every road


OPTIONS: dict[str, Any] = {
    "padded": {"window": 3, "n_step": 2},
    "transitions": {},
    "n_step": {"n_step": 3},
    "whole": {"window": 3, "period": 2, "pad": False},
}


@pytest.mark.parametrize(
    "options",
    [pytest.param(options, id=name, marks=pytest.mark.slow) for name, options in OPTIONS.items()],
)
@pytest.mark.usefixtures("strict_jax")
def test_it_is_an_indexed_source(options: Any) -> None:
    source = EpisodeSource(EPISODES, **options)
    check_source(source)
    loader = DataLoader([source, BatchTransform(4, pad_last_batch=True)])
    check_loader(loader)
    check_resume(loader)


def test_an_epoch_has_every_transition_once_and_the_orders_differ() -> None:
    loader = DataLoader([EpisodeSource(EPISODES, index_key="at"), BatchTransform(13)])
    first, second = (loader.batch_at(0, step)[0] for step in (0, 1))
    wanted = stacked(transitions(EPISODES))
    for batch in (first, second):
        order = batch.pop("at")
        assert sorted(order.tolist()) == list(range(13))
        same(batch, jax.tree.map(lambda x, order=order: x[np.asarray(order)], wanted))
    assert first["state"]["id"].tolist() != second["state"]["id"].tolist()


def test_the_mask_of_windows_says_which_steps_are_real() -> None:
    source = EpisodeSource(EPISODES, window=3, ordering="sequential")
    batches = DataLoader([source, BatchTransform(5, pad_last_batch=True)]).iterate()
    masks = np.concatenate([np.asarray(mask) for _, mask in batches])
    assert masks.shape == (15, 3)
    counts = [len(inside) for inside in windows(EPISODES, 3, 1, True)]
    assert masks.sum(axis=1).tolist() == [*counts, 0, 0]
    whole = DataLoader([EpisodeSource(EPISODES, window=3, pad=False), BatchTransform(2)])
    assert whole.batch_at(0, 0)[1].shape == (2,)


def test_in_jit_scan_and_vmap() -> None:
    loader = DataLoader([EpisodeSource(EPISODES, n_step=2), BatchTransform(4, drop_last=True)])

    def update(carry: Any, batch: Any, mask: Any) -> Any:
        return carry + (batch["n_step_return"] * mask).sum(), None

    def epoch(key: Any) -> Any:
        return loader.scan_epoch(loader.init_state(key), jnp.float32(0), update)[1]

    keys = jax.random.split(jax.random.key(0), 3)
    wanted = [
        sum(
            float(batch["n_step_return"].sum()) for batch, _ in loader.iterate(loader.init_state(k))
        )
        for k in keys
    ]
    np.testing.assert_allclose(jax.jit(jax.vmap(epoch))(keys), wanted, rtol=1e-4)


def test_gamma_may_be_traced() -> None:
    def returns(gamma: Any) -> Any:
        source = EpisodeSource([episode(2)], n_step=2, gamma=gamma, ordering="sequential")
        return source.take(jnp.arange(2))["bootstrap_discount"]

    source = EpisodeSource([episode(4)], n_step=2, gamma=jnp.float32(0.5))
    assert source.take(jnp.arange(1))["bootstrap_discount"].tolist() == [0.25]
    assert jax.jit(returns)(jnp.float32(0.5)).tolist() == [0.0, 0.0]


def test_observations_are_stored_once() -> None:
    source = EpisodeSource(EPISODES)
    assert source._observations["x"].shape == (sum(LENGTHS) + len(LENGTHS), 2)
    assert source._observations["x"].dtype == jnp.float32


def test_infos_are_chosen() -> None:
    assert sorted(EpisodeSource(EPISODES, infos=False)[0]["info"]) == ["terminated", "truncated"]
    some = EpisodeSource(EPISODES, infos=["ok"])[0]["info"]
    assert sorted(some) == ["ok", "terminated", "truncated"]


def test_an_episode_may_be_an_object_and_the_list_an_iterator() -> None:
    class Record:
        def __init__(self, parts: Any) -> None:
            self.__dict__.update(parts)

    made = EpisodeSource((Record(each) for each in EPISODES), ordering="sequential")
    same(taken(made), stacked(transitions(EPISODES)))


def test_an_iterator_may_use_its_arrays_again() -> None:
    def played() -> Any:
        buffer = episode(3)
        for number in range(2):
            buffer["observations"]["x"][:, 0] = 10 * number + np.arange(4)
            yield buffer

    found = EpisodeSource(played())._observations["x"][:, 0]
    assert found.tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


def test_small_images_are_kept_as_words_and_lists_of_numbers_are_taken() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 16, 16), np.uint8)
    made = {
        "observations": pixels,
        "actions": np.arange(3),
        "rewards": [1.0, 2.0, 3.0],
        "terminations": [0, 0, 1],
        "truncations": [False, False, False],
    }
    loader = DataLoader([EpisodeSource([made], window=2, ordering="sequential"), BatchTransform(3)])
    batch, mask = loader.batch_at(0, 0)
    np.testing.assert_array_equal(batch["next_state"][:, 0], pixels[1:])
    np.testing.assert_array_equal(batch["state"][2], pixels[[2, 2]])
    assert mask.tolist() == [[True, True], [True, True], [True, False]]


def test_as_a_dataset_windows_with_padding_are_refused() -> None:
    whole = EpisodeSource(EPISODES, window=3, pad=False)
    assert whole[0]["reward"].shape == (3,)
    padded = EpisodeSource(EPISODES, window=3)
    assert padded[0]["reward"].shape == (3,)
    with pytest.raises(UsageError, match=r"element 1 has padding.*pass `pad=False`"):
        _ = padded[1]


def test_a_lazy_sequence_may_write_episodes_into_the_same_arrays() -> None:
    class Lazy(Sequence[Any]):
        def __init__(self) -> None:
            self.rewards = np.zeros(3, np.float32)

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: Any) -> Any:
            if index >= 2:
                raise IndexError
            self.rewards[:] = index
            return {**episode(3), "rewards": self.rewards}

    assert EpisodeSource(Lazy()).take(np.arange(6))["reward"].tolist() == [0, 0, 0, 1, 1, 1]


def test_overlapping_windows_cannot_be_split_at_random() -> None:
    words = r"windows that overlap.*`EpisodeSource\(episodes\[:90\]\)`.*with `period=3`"
    for source in (EpisodeSource(EPISODES, window=3), EpisodeSource(EPISODES, window=3, pad=False)):
        with pytest.raises(PipelineError, match=words):
            split(source, (0.5, 0.5))
    with pytest.raises(PipelineError, match=words):
        kfold(MapTransform(lambda x: x["reward"])(source), 2, 0)
    with pytest.raises(PipelineError, match=words):
        split(DataLoader([source, HostMapTransform(lambda x: x["reward"])]).source, (0.5, 0.5))
    parts = split(EpisodeSource(EPISODES, window=3, period=3), (0.5, 0.5))
    assert [len(part) for part in parts] == [3, 3]
    both = ConcatSource([EpisodeSource(EPISODES), EpisodeSource(recorded((3,)))])  # no data shared
    assert [len(part) for part in split(both, (0.5, 0.5))] == [8, 8]


def test_n_step_returns_that_reach_further_cannot_be_split_at_random() -> None:
    with pytest.raises(PipelineError, match=r"n-step returns, which .*split the list of episodes"):
        split(EpisodeSource(EPISODES, n_step=3), (0.5, 0.5))
    with pytest.raises(PipelineError, match=r"n-step returns, which .*split the list of episodes"):
        kfold(EpisodeSource(EPISODES, n_step=2), 2, 0)
    with pytest.raises(PipelineError, match=r"windows that overlap.*with `period=5`"):
        split(EpisodeSource(EPISODES, window=3, period=3, n_step=3), (0.5, 0.5))
    single = EpisodeSource(EPISODES, n_step=1)
    for apart in (single, EpisodeSource(EPISODES, window=1, period=2, n_step=2)):
        assert len(split(apart, (0.5, 0.5))) == 2


@pytest.mark.parametrize("options", [{}, {"window": 2}, {"window": 2, "n_step": 2}], ids=str)
def test_indices_of_two_axes_give_elements_of_two_axes(options: Any) -> None:
    source = EpisodeSource(EPISODES, index_key="index", **options)
    found = source.take(np.arange(6).reshape(2, 3))
    flat = source.take(np.arange(6))
    wanted = jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), flat)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
