"""Statistics of episodes are those of a plain loop, however the stream is batched."""

from __future__ import annotations

from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.rl.loops import loop_episodes, per_column
from tests.rl.played import played, written_steps

import cereal
from cereal import PipelineError, UsageError
from cereal.rl import GymnaxSource
from cereal.rl.episodes import EpisodeStatisticsTransform, episode_statistics, episode_summary
from cereal.testing import check_loader, check_resume, check_source

pytestmark = pytest.mark.optimized

STATISTICS = EpisodeStatisticsTransform()
T, N = 16, 3


def collected(*stages: Any, steps: int, key: int = 0) -> dict[str, np.ndarray]:
    """What the pipeline adds and its mask, with all steps on one axis."""
    loader = cereal.DataLoader(list(stages))
    lanes, found = len(loader.source.traits.lanes), []
    for batch, mask in loader.iterate(loader.init_state(key), steps=steps):
        kept = {name: batch[name] for name in ("episode_return", "episode_length", "done")}
        found.append({**kept, "mask": mask})
    stacked = jax.tree.map(lambda *x: np.stack(x), *found)
    return {name: x.reshape(-1, *x.shape[1 + lanes :]) for name, x in stacked.items()}


def expected_of(steps: Any, repeats: int = 1) -> tuple[np.ndarray, np.ndarray]:
    reward = np.concatenate([steps["reward"]] * repeats)
    done = np.concatenate([steps["done"]] * repeats)
    if reward.ndim == 1:
        return loop_episodes(reward, done)
    return per_column(loop_episodes, reward, done)


def check_equal(found: dict[str, np.ndarray], expected: tuple[np.ndarray, np.ndarray]) -> None:
    np.testing.assert_allclose(found["episode_return"], expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found["episode_length"], expected[1])
    assert found["episode_return"].dtype == np.float32
    assert found["episode_length"].dtype == np.int32


# Against loops


@pytest.mark.parametrize("shape", [(T,), (T, N)], ids=["one environment", "three"])
@pytest.mark.parametrize("place", ["elements", "before", "after", "between"])
def test_the_sums_are_the_loop_across_batches_and_epochs(shape: Any, place: str) -> None:
    steps, batch = written_steps(0, *shape), cereal.BatchTransform(4)
    source, pairs = played(steps, steps_per_epoch=8), cereal.BatchTransform(2)
    stages, count = {
        "elements": ([STATISTICS], 32),
        "before": ([STATISTICS, batch], 8),
        "after": ([batch, STATISTICS], 8),
        "between": ([batch, STATISTICS, pairs], 4),
    }[place]
    check_equal(collected(source, *stages, steps=count), expected_of(steps, 2))


def test_batches_of_four_twice_are_batches_of_eight_to_the_last_bit() -> None:
    source = played(written_steps(1, 2 * T, N, stop=0.05))
    four = collected(source, cereal.BatchTransform(4), STATISTICS, steps=8)
    eight = collected(source, cereal.BatchTransform(8), STATISTICS, steps=4)
    jax.tree.map(np.testing.assert_array_equal, eight, four)


@pytest.mark.parametrize("place", ["before", "after"])
def test_padding_does_not_count(place: str) -> None:
    steps, batch = written_steps(2, T, N), cereal.BatchTransform(4, pad_last_batch=True)
    stages = [STATISTICS, batch] if place == "before" else [batch, STATISTICS]
    found = collected(played(steps, steps_per_epoch=6), *stages, steps=4)
    assert found["mask"].tolist() == ([True] * 6 + [False] * 2) * 2
    real = {name: x[found["mask"]] for name, x in found.items()}
    check_equal(real, tuple(x[:12] for x in expected_of(steps)))  # type: ignore[arg-type]


def test_steps_that_are_filtered_out_do_not_count() -> None:
    steps = written_steps(3, T)
    keep = cereal.FilterTransform(lambda step: step["reward"] > 0)
    found = collected(played(steps), keep, cereal.BatchTransform(4), STATISTICS, steps=4)
    assert 0 < found["mask"].sum() < T
    check_equal(found, loop_episodes(steps["reward"], steps["done"], steps["reward"] > 0))


def test_whole_numbers_as_rewards_are_summed_as_floats() -> None:
    steps = written_steps(4, T)
    steps["reward"] = np.arange(T, dtype=np.int32)
    check_equal(collected(played(steps), STATISTICS, steps=T), expected_of(steps))


def test_one_done_may_end_several_rewards() -> None:
    steps = written_steps(5, T, N)
    done = steps["done"][:, 0]
    steps["done"] = done
    found = collected(played(steps), cereal.BatchTransform(4), STATISTICS, steps=4)
    assert found["episode_length"].shape == (T,)
    for k in range(N):
        total, length = loop_episodes(steps["reward"][:, k], done)
        column = {"episode_return": found["episode_return"][:, k]}
        check_equal({**column, "episode_length": found["episode_length"]}, (total, length))


def test_stored_steps_are_summed_by_a_function() -> None:
    steps, mask = written_steps(6, T, N), np.arange(T) % 5 != 0
    run = jax.jit(episode_statistics)
    for kept in (None, mask):
        expected = per_column(
            lambda r, d, kept=kept: loop_episodes(r, d, kept), steps["reward"], steps["done"]
        )
        found = run(steps["reward"], steps["done"], mask=kept)
        check_equal(dict(zip(("episode_return", "episode_length"), found, strict=True)), expected)


# Contracts


def test_the_stage_keeps_the_contract() -> None:
    source = played(written_steps(7, T, N), steps_per_epoch=8)
    check_source(STATISTICS(source))
    loader = cereal.DataLoader([source, cereal.BatchTransform(4), STATISTICS])
    check_loader(loader)
    check_resume(loader)
    assert "EpisodeStatisticsTransform" in repr(loader)


def test_many_steps_at_once_are_steps_one_by_one() -> None:
    source = STATISTICS(played(written_steps(8, T, N)))
    state = source.init_state(jax.random.key(0))
    together, _, after = source.next_many(state, 6)
    for k in range(6):
        element, _, state = source.next(state)
        one = jax.tree.map(lambda x, k=k: x[k], together)
        jax.tree.map(np.testing.assert_array_equal, one, element)
    jax.tree.map(np.testing.assert_array_equal, after, state)


# Over rollouts


def policy_step(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
    del new_episode
    return jax.random.categorical(key, observation @ policy_state["params"]), policy_state


@pytest.fixture(scope="module")
def acting() -> cereal.DataLoader[Any]:
    env, env_params = gymnax.make("CartPole-v1")
    policy_state = {"params": jnp.zeros((4, 2))}
    source = GymnaxSource(env, env_params, policy_step, policy_state, 64, N)
    return cereal.DataLoader([source, STATISTICS, cereal.BatchTransform(32)])


def test_cartpole_returns_as_much_as_it_is_long_for_every_seed(
    acting: cereal.DataLoader[Any],
) -> None:
    def body(carry: Any, batch: Any, mask: Any) -> Any:
        return carry, (batch, episode_summary(batch, mask))

    @jax.jit
    @jax.vmap
    def run(key: Any) -> Any:
        state = acting.set_policy_state(acting.init_state(key), {"params": jnp.zeros((4, 2))})
        return acting.scan_epoch(state, 0, body, steps=4)[2]

    found = jax.device_get(run(jax.random.split(jax.random.key(0), 2)))
    for seed in range(2):
        batches, summaries = jax.tree.map(lambda x, seed=seed: x[seed], found)
        rows = {name: batches[name].reshape(-1, N) for name in ("reward", "done")}
        totals, lengths = per_column(loop_episodes, rows["reward"], rows["done"])
        np.testing.assert_array_equal(batches["episode_return"].reshape(-1, N), totals)
        np.testing.assert_array_equal(batches["episode_length"].reshape(-1, N), lengths)
        assert rows["done"].sum() > 3
        for k in range(4):
            ended = batches["done"][k]
            assert summaries["episodes"][k] == ended.sum()
            mean = batches["episode_return"][k][ended].mean() if ended.any() else 0
            np.testing.assert_allclose(summaries["mean_return"][k], mean, rtol=1e-6)
            np.testing.assert_allclose(summaries["mean_length"][k], mean, rtol=1e-6)
    assert (found[0]["episode_length"][0] != found[0]["episode_length"][1]).any()


# Summaries


def test_a_summary_is_of_the_finished_episodes() -> None:
    done = jnp.array([[True, False], [False, True], [True, True]])
    returns, lengths = jnp.arange(6.0).reshape(3, 2), jnp.arange(6).reshape(3, 2)
    batch = {"done": done, "episode_return": returns, "episode_length": lengths}
    whole = episode_summary(batch)
    assert {name: float(x) for name, x in whole.items()} == {
        "episodes": 4,
        "mean_return": 3.0,  # of 0, 3, 4 and 5
        "mean_length": 3.0,
    }
    part = episode_summary(batch, jnp.array([True, True, False]))
    assert (int(part["episodes"]), float(part["mean_return"])) == (2, 1.5)


def test_a_summary_of_no_episode_is_zero_whatever_is_there() -> None:
    bad = {"done": jnp.zeros(3, bool), "episode_return": jnp.full(3, jnp.nan)}
    found = jax.jit(episode_summary)({**bad, "episode_length": jnp.ones(3, jnp.int32)})
    assert {name: float(x) for name, x in found.items()} == {
        "episodes": 0,
        "mean_return": 0,
        "mean_length": 0,
    }


# Bad input


def test_an_indexed_pipeline_is_refused_with_what_to_do() -> None:
    stored = cereal.ArraySampleSource(written_steps(0, T), ordering="sequential")
    for source in (stored, cereal.BatchTransform(4)(stored)):
        with pytest.raises(PipelineError, match=r"indexed pipeline.*episode_statistics\(reward"):
            cereal.DataLoader([source, STATISTICS])


def test_steps_that_do_not_fit_are_refused() -> None:
    steps = written_steps(0, T, N)
    with pytest.raises(PipelineError, match=r"keys 'reward' and 'done', got \['reward'\]"):
        STATISTICS(played({"reward": steps["reward"]}))
    with pytest.raises(PipelineError, match=r"keys 'reward' and 'done', got float32\[3\]"):
        STATISTICS(played(steps["reward"]))
    with pytest.raises(PipelineError, match="adds 'episode_return', but elements have that key"):
        STATISTICS(STATISTICS(played(steps)))
    with pytest.raises(PipelineError, match=r"`reward` is float32\[3\] and `done` bool\[2\]"):
        STATISTICS(played({"reward": steps["reward"], "done": steps["done"][:, :2]}))
    with pytest.raises(PipelineError, match="must be called with a source, got dict"):
        STATISTICS(steps)  # type: ignore[arg-type]


def test_calls_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match=r"needs a batch with 'episode_return'.*EpisodeStatistics"):
        episode_summary({"done": jnp.zeros(3)})
    batch = {"done": jnp.zeros(3), "episode_return": jnp.zeros(3), "episode_length": jnp.zeros(3)}
    with pytest.raises(UsageError, match=r"`mask` of shape \(2,\) does not belong to `done`"):
        episode_summary(batch, jnp.ones(2))
    with pytest.raises(UsageError, match=r"`done` of shape \(2,\) does not belong to `reward`"):
        episode_statistics(jnp.ones(3), jnp.zeros(2))
    with pytest.raises(UsageError, match=r"`mask` of shape \(2,\) does not belong to `done`"):
        episode_statistics(jnp.ones(3), jnp.zeros(3), mask=jnp.ones(2))


def test_the_first_episode_of_each_environment_is_told() -> None:
    done = np.random.default_rng(0).random((30, 7)) < 0.1
    first = np.asarray(cereal.rl.first_episodes(done))
    for env in range(7):
        ends = np.flatnonzero(done[:, env])
        last = ends[0] if len(ends) else 29
        assert first[:, env].tolist() == [step <= last for step in range(30)]
    with pytest.raises(cereal.UsageError, match="steps in a row"):
        cereal.rl.first_episodes(True)
