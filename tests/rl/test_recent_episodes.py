"""The loader's state knows how the newest episodes went, also before a replay buffer."""

from __future__ import annotations

from collections import deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.rl.loops import loop_episodes
from tests.rl.played import played, written_steps
from tests.slowly import slowly

import cereal
from cereal import PipelineError, UsageError
from cereal.rl import EpisodeStatisticsTransform, recent_episodes
from cereal.testing import check_loader, check_resume

T, N = 24, 3


def in_numbers(found: dict[str, Any]) -> dict[str, float]:
    return {name: float(x) for name, x in found.items()}


def expected(steps: Any, recent: int, upto: int) -> dict[str, float]:
    """By a loop over the steps, and over the environments of each."""
    reward, done = steps["reward"].reshape(T, -1), steps["done"].reshape(T, -1)
    columns = [loop_episodes(reward[:, k], done[:, k]) for k in range(done.shape[1])]
    newest: deque[tuple[float, int]] = deque(maxlen=recent)
    for t in range(upto):
        for k, (total, length) in enumerate(columns):
            if done[t, k]:
                newest.append((total[t], length[t]))
    returns, lengths = np.array(list(newest)).reshape(-1, 2).T
    means = (returns.mean(), lengths.mean()) if len(newest) else (0.0, 0.0)
    return {"episodes": len(newest), "mean_return": means[0], "mean_length": means[1]}


@pytest.mark.parametrize("recent", [slowly(1), 4, slowly(100)])
@pytest.mark.parametrize("shape", [(T,), (T, N)], ids=["one environment", "three"])
def test_they_are_those_of_a_loop(shape: Any, recent: int) -> None:
    steps = written_steps(0, *shape)
    loader = cereal.DataLoader([played(steps), EpisodeStatisticsTransform(recent=recent)])
    state = loader.init_state(0)
    for t in range(T):
        assert in_numbers(recent_episodes(state)) == pytest.approx(expected(steps, recent, t))
        _, state, _ = loader.next_batch(state)


@pytest.mark.parametrize("recent", [slowly(4), 1000])  # the second looks for them by halves
def test_however_steps_are_batched_the_states_are_the_same(recent: int) -> None:
    source, stage = played(written_steps(1, T, N)), EpisodeStatisticsTransform(recent=recent)
    batch = cereal.BatchTransform(8)
    states = []
    for stages, count in (([stage], 8), ([stage, batch], 1), ([batch, stage], 1)):
        loader = cereal.DataLoader([source, *stages])
        batches = loader.iterate(loader.init_state(0), steps=count)
        list(batches)
        states.append(batches.look_at(lambda state: jax.tree.map(np.asarray, state)))
    for state in states[1:]:
        jax.tree.map(np.testing.assert_array_equal, states[0], state)


def test_steps_that_are_masked_do_not_count_and_nan_elsewhere_does_not_matter() -> None:
    steps = written_steps(2, T)
    steps["reward"] = np.where(steps["done"], np.float32(2), np.float32(np.nan))
    keep = cereal.FilterTransform(lambda step: step["done"])
    batch = cereal.BatchTransform(T)
    loader = cereal.DataLoader([played(steps), keep, batch, EpisodeStatisticsTransform()])
    state = loader.next_batch(loader.init_state(0))[1]
    ended = int(steps["done"].sum())
    assert ended > 3
    assert in_numbers(recent_episodes(state)) == {
        "episodes": ended,
        "mean_return": 2,
        "mean_length": 1,
    }


def test_of_several_rewards_it_is_their_mean() -> None:
    steps = written_steps(3, T, 2)
    steps["done"] = steps["done"][:, 0]
    loader = cereal.DataLoader([played(steps), EpisodeStatisticsTransform(recent=3)])
    batches = loader.iterate(loader.init_state(0))
    list(batches)
    found = in_numbers(batches.look_at(recent_episodes))
    each = []
    for k in range(2):
        one = {"reward": steps["reward"][:, k], "done": steps["done"]}
        each.append(expected(one, 3, T)["mean_return"])
    assert found["mean_return"] == pytest.approx(np.mean(each))


# Before a replay buffer


def replaying(*, add: bool = False, steps: int = T) -> cereal.DataLoader[Any]:
    stage = EpisodeStatisticsTransform(recent=5, add=add)
    kind: Any = {"sample": "prioritized", "num_envs": N}
    buffer = cereal.ReplayTransform(60, batch_size=4, collect=2, **kind)
    return cereal.DataLoader([played(written_steps(4, T, N), steps), stage, buffer])


def test_a_program_sees_what_was_played_of_each_seed() -> None:
    loader = replaying()

    @jax.jit
    @jax.vmap
    def epochs(key: Any) -> Any:
        def epoch(state: Any, _: Any) -> Any:
            state, _, _ = loader.scan_epoch(state, 0, lambda c, b, m: (c, None), steps=4)
            return state, recent_episodes(state)

        return jax.lax.scan(epoch, loader.init_state(key), None, length=3)

    state, found = epochs(jax.random.split(jax.random.key(0), 2))
    steps = written_steps(4, T, N)
    for k in range(3):
        for seed in range(2):
            one = in_numbers({name: x[seed, k] for name, x in found.items()})
            assert one == pytest.approx(expected(steps, 5, 8 * (k + 1)))
    last = recent_episodes(state)  # of states of `vmap`, one number each
    assert last["episodes"].tolist() == [5, 5]
    np.testing.assert_allclose(last["mean_return"], found["mean_return"][:, -1], rtol=1e-6)


def test_the_buffer_stores_the_sums_only_if_they_are_added() -> None:
    for add in (False, True):
        loader = replaying(add=add)
        batch = loader.next_batch(loader.init_state(0))[0]
        assert ("episode_return" in batch) is add


def test_a_loop_looks_at_the_state_without_a_copy_of_the_buffer() -> None:
    loader = replaying()
    batches: Any = loader.iterate(loader.init_state(0), steps=6)
    report: Any = None
    for _ in batches:
        before = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(batches._state)]
        seen = batches.look_at(lambda s: [x.unsafe_buffer_pointer() for x in jax.tree.leaves(s)])
        assert seen == before
        report = batches.look_at(cereal.rl.replay_report)
    assert report.written == 6 * 2 * N
    assert in_numbers(batches.look_at(recent_episodes)) == in_numbers(
        recent_episodes(batches.state)
    )


def test_arrays_that_were_kept_of_the_state_say_that_they_are_gone() -> None:
    loader = replaying()
    batches = loader.iterate(loader.init_state(0), steps=3)
    next(batches)
    kept = batches.look_at(lambda state: state)
    next(batches)
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        recent_episodes(kept)


def test_looking_from_inside_of_a_step_is_refused_and_indexed_pipelines_can_be_looked_at() -> None:
    loader = cereal.DataLoader([cereal.RangeSource(6), cereal.BatchTransform(2)])
    batches = loader.iterate(loader.init_state(0))
    next(batches)
    assert batches.look_at(lambda state, more: state.offset + more, 5) == 7
    with pytest.raises(UsageError, match="already making a batch"):
        batches.look_at(lambda _: batches.look_at(lambda state: state))
    assert len(list(batches)) == 2


def test_several_of_them_are_one() -> None:
    steps, batch = written_steps(4, T, N), cereal.BatchTransform(2)
    parts = [[played(steps), EpisodeStatisticsTransform(add=False), batch] for _ in range(2)]
    loader = cereal.DataLoader([cereal.rl.MixedBatchesSource(parts)])
    batches = loader.iterate(loader.init_state(0), steps=10)
    list(batches)
    one = expected(steps, 100, 20)
    both = {**one, "episodes": 2 * one["episodes"]}
    assert in_numbers(batches.look_at(recent_episodes)) == pytest.approx(both)


@pytest.mark.slow
def test_the_contract_is_kept() -> None:
    loader = replaying()
    check_resume(loader)
    check_loader(loader)


def test_they_are_saved() -> None:
    loader = replaying()
    batches = loader.iterate(loader.init_state(0), steps=4)
    list(batches)
    again = loader.iterate(loader.init_state(1), steps=4)
    again.set_state(batches.get_state())
    assert in_numbers(again.look_at(recent_episodes)) == in_numbers(recent_episodes(batches.state))


# Bad input


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(PipelineError, match="`recent` must be an integer of at least 1, got 0"):
        EpisodeStatisticsTransform(recent=0)
    with pytest.raises(PipelineError, match="`add` must be True or False, got 'no'"):
        EpisodeStatisticsTransform(add="no")  # type: ignore[arg-type]
    for state in (jnp.zeros(3), cereal.DataLoader([cereal.RangeSource(3)]).init_state(0)):
        with pytest.raises(UsageError, match=r"EpisodeStatisticsTransform\(\)` after the source"):
            recent_episodes(state)
