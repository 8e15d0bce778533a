"""Sequences and n-step returns: never across the end of an episode or the newest step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rl.replay.streams import batches_of, numbered, replaying
from tests.slowly import slowly

import cereal

GAMMA = 0.9


def at(steps: Any, name: str, t: int, e: int) -> Any:
    """An entry of the written steps, which are played again and again."""
    part = steps[name][t % len(steps[name])]
    return part if part.ndim == steps[name].ndim - 1 and np.ndim(steps["done"]) == 1 else part[e]


def real_steps(steps: Any, t: int, e: int, most: int) -> int:
    """How many steps from t on belong to its episode, at most `most`."""
    for count in range(1, most + 1):
        if at(steps, "done", t + count - 1, e):
            return count
    return most


SAMPLES = st.sampled_from(["uniform", "prioritized"])


@pytest.mark.parametrize(
    ("envs", "collect", "length", "period", "sample", "capacity"),
    [(1, 2, 3, 1, "uniform", 12), (3, 1, 3, 2, "prioritized", 25)],
)
def test_sequences(
    envs: int, collect: int, length: int, period: int, sample: str, capacity: int
) -> None:
    check_sequences(envs, collect, length, period, sample, capacity)


@pytest.mark.slow
@settings(max_examples=100)
@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), SAMPLES, st.data()
)
def test_sequences_of_any_shape(
    envs: int, collect: int, length: int, period: int, sample: str, data: Any
) -> None:
    room = (length - 1 + max(collect, period)) * envs
    capacity = data.draw(st.integers(max(room, 8), 30))
    check_sequences(envs, collect, length, period, sample, capacity)


def check_sequences(
    envs: int, collect: int, length: int, period: int, sample: str, capacity: int
) -> None:
    """Compares all batches with a plain loop over the steps."""
    ends = lambda t, e: (t * 7 + e * 3) % 5 == 0  # noqa: E731
    steps = numbered(50, envs, ends)
    options: Any = {"sequence": length, "period": period, "sample": sample, "prefill": 8}
    loader = replaying(steps, capacity, envs=envs, collect=collect, **options)
    batches, masks = batches_of(loader, 14)
    drawn = set()
    for number in range(14):
        now = (number + 1) * collect
        oldest = max(0, now * envs - capacity)  # the number of an item
        starts = [t for t in range(now - length + 1) if t % period == 0]
        held = {(t, e) for t in starts for e in range(envs) if t * envs + e >= oldest}
        whole = {(t, e) for t, e in held if t * envs >= oldest}
        enough = min(now * envs, capacity) >= 8
        assert masks[number].any() or not (enough and whole)
        assert not masks[number].any() or (enough and held)
        for lane in range(8 if masks[number].any() else 0):
            window, mask = batches["state"][number, lane], masks[number, lane]
            t, e = window[0].tolist()
            assert (t, e) in held
            count = real_steps(steps, t, e, length)
            assert mask.tolist() == [True] * count + [False] * (length - count)
            wanted = [[(t + min(k, count - 1)) % 50, e] for k in range(length)]
            assert window.tolist() == wanted
            drawn.add((number, t, e))
    assert len(drawn) > 10


@pytest.mark.parametrize("sample", [slowly("uniform"), "prioritized"])
def test_every_whole_sequence_can_be_drawn_and_no_other(sample: str) -> None:
    loader = replaying(
        numbered(1000, 2), 20, envs=2, collect=3, sequence=4, period=2, batch_size=20, sample=sample
    )
    batches, _ = batches_of(loader, 60)
    for number in range(20, 60):
        now = 3 * (number + 1)
        starts = {t for t in range(now - 10, now - 3) if t % 2 == 0}
        found = set(batches["state"][number, :, 0, 0].tolist())
        assert found <= starts
    late = batches["state"][20:, :, 0, 0] - 3 * np.arange(21, 61)[:, None]
    assert set(late.reshape(-1).tolist()) == set(range(-10, -3))


@pytest.mark.parametrize(
    ("envs", "collect", "n", "sample"), [(1, 2, 3, "prioritized"), (3, 1, 2, "uniform")]
)
def test_n_step_returns(envs: int, collect: int, n: int, sample: str) -> None:
    check_n_steps(envs, collect, n, sample)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), SAMPLES)
def test_n_step_returns_of_any_shape(envs: int, collect: int, n: int, sample: str) -> None:
    check_n_steps(envs, collect, n, sample)


def check_n_steps(envs: int, collect: int, n: int, sample: str) -> None:
    """Compares all batches with a plain loop over the steps."""
    steps = numbered(50, envs, lambda t, e: (t * 7 + e * 3) % 4 == 0)
    options: Any = {"n_step": n, "gamma": GAMMA, "sample": sample, "prefill": 8}
    loader = replaying(steps, 30, envs=envs, collect=collect, **options)
    batches, masks = batches_of(loader, 12)
    for number in range(12):
        now = (number + 1) * collect
        held = min(now, 30 // envs)
        assert masks[number].all() == (min(now * envs, 30) >= 8 and held >= n)
        for lane in range(8 if masks[number].any() else 0):
            t, e = batches["state"][number, lane].tolist()
            assert now - held <= t <= now - n
            count = real_steps(steps, t, e, n)
            rewards = [at(steps, "reward", t + k, e) for k in range(count)]
            total = sum(GAMMA**k * reward for k, reward in enumerate(rewards))
            ended = bool(at(steps, "done", t + count - 1, e))
            assert batches["n_step_return"][number, lane] == pytest.approx(total, abs=1e-5)
            assert batches["bootstrap_state"][number, lane].tolist() == [t + count, e]
            discount = 0 if ended else GAMMA**count
            assert batches["bootstrap_discount"][number, lane] == pytest.approx(discount)


def test_a_truncated_episode_is_bootstrapped() -> None:
    steps = numbered(12, ends=(2, 5, 8, 11))
    steps["info"] = {"terminated": np.isin(np.arange(12), (2, 8))}
    loader = replaying(steps, 14, collect=12, n_step=3, gamma=GAMMA, batch_size=12)
    batch, _ = batches_of(loader, 1)
    for state, discount in zip(
        batch["state"][0, :, 0].tolist(), batch["bootstrap_discount"][0], strict=True
    ):
        last = state // 3 * 3 + 2
        wanted = 0 if last in (2, 8) else GAMMA ** (last - state + 1)
        assert discount == pytest.approx(wanted)


def test_sequences_of_a_stream_without_episodes() -> None:
    loader = cereal.DataLoader(
        [
            replaying({"x": np.arange(100)}, 10).source.source,
            cereal.ReplayTransform(30, batch_size=4, prefill=20, sequence=5, episode_end=None),
        ]
    )
    batch, mask = batches_of(loader, 40)
    assert mask[20:].all()
    assert (np.diff(batch["x"][20:], axis=-1) == 1).all()
