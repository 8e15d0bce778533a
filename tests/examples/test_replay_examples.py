"""The examples of replay run, learn, and write what they say."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.examples.running import example
from tests.examples.test_rl_examples import check, quick
from tests.examples.test_rl_examples import quick_to_compile as quick_to_compile
from tests.rl.replay.streams import numbered

import cereal


@pytest.fixture
def small() -> Any:
    """The example with a small network and buffer, and short rounds."""
    dqn = example("cartpole_dqn")
    dqn.ENVS, dqn.HIDDEN, dqn.BATCH, dqn.STEPS = 2, 8, 8, 30
    dqn.CAPACITY, dqn.PREFILL = 100, 20
    return dqn


def recorded(steps: int) -> dict[str, Any]:
    """Steps of two environments; episodes have 9 and 15 steps, and terminate in turn."""
    played = numbered(steps, 2, ends=lambda t, e: (t + 1) % np.where(e == 0, 9, 15) == 0)
    terminated = played["done"] & (played["state"][..., 0] % 2 == 0)
    return {
        "state": np.tile(played["state"], 2).astype(np.float32),
        "action": np.arange(steps * 2, dtype=np.int32).reshape(steps, 2),
        "reward": played["reward"],
        "next_state": np.tile(played["next_state"], 2).astype(np.float32),
        "done": played["done"],
        "info": {
            "discount": np.ones((steps, 2), np.float32),
            "terminated": terminated,
            "truncated": played["done"] & ~terminated,
        },
    }


def test_what_is_written_is_read_as_episodes(small: Any, tmp_path: Path) -> None:
    loader = small.make_loader()
    params = small.init_params(jax.random.key(0))
    state = loader.init_state(0, {"params": params, "epsilon": np.float32(0)})
    state = cereal.rl.fill_replay(state, recorded(40), truncate=True)
    small.write(tmp_path / "steps.npz", (None, jax.tree.map(lambda x: x[None], state)))
    episodes = example("cartpole_offline").read_episodes(tmp_path / "steps.npz")
    assert [len(each["rewards"]) for each in episodes] == [9, 9, 9, 9, 4, 15, 15, 10]
    ends = [(each["terminations"][-1], each["truncations"][-1]) for each in episodes]
    kinds = "".join("T" if terminated else "t" for terminated, _ in ends)
    assert kinds == "TtTttTtt"  # the recording stopped in the fifth and the last episode
    assert all(terminated != truncated for terminated, truncated in ends)
    for each in episodes:
        rows = each["observations"]
        assert len(rows) == len(each["actions"]) + 1
        np.testing.assert_array_equal(np.diff(rows[:, 0]), 1)  # time goes on, in one environment
        assert len(set(rows[:, 1])) == 1
    written = np.concatenate([each["actions"] for each in episodes])
    np.testing.assert_array_equal(written, recorded(40)["action"].T.reshape(-1))


@pytest.mark.slow
@quick
def test_a_short_training_writes_its_curve_and_its_transitions(small: Any, tmp_path: Path) -> None:
    small.CAPACITY = 200
    results = small.main(2, 3, tmp_path / "curve.png", tmp_path / "steps.npz")
    check(results, tmp_path / "curve.png", 2, 3)
    with np.load(tmp_path / "steps.npz") as file:
        steps = dict(file)
    assert steps["state"].shape == (3 * 30 * 2, 4)
    ends = steps["terminated"] | steps["truncated"]
    assert ends[[89, 179]].all()  # of each environment, the last step
    going_on = ~ends[:-1]
    np.testing.assert_array_equal(steps["state"][1:][going_on], steps["next_state"][:-1][going_on])
    assert not np.array_equal(steps["state"][90], steps["next_state"][89])
    assert len(example("cartpole_offline").read_episodes(tmp_path / "steps.npz")) == ends.sum()


@pytest.mark.slow
@quick
def test_nothing_is_learned_before_the_prefill_and_then_priorities_follow(small: Any) -> None:
    key = jax.random.key(0)
    small.PREFILL = 100
    first = small.init_params(jax.random.split(key, 3)[0])
    (params, state), _ = jax.jit(lambda key: small.train(key, 1))(key)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), params, first)
    assert cereal.rl.replay_report(state)[:3] == (60, 100, 60)
    small.PREFILL = 20
    (params, state), _ = jax.jit(lambda key: small.train(key, 2))(key)
    assert not np.array_equal(params[0]["weight"], first[0]["weight"])
    report = cereal.rl.replay_report(state)
    assert report[:3] == (100, 100, 120)
    assert report.refused == 0
    policy = cereal.rl.get_policy_state(state)
    assert float(policy["epsilon"]) == pytest.approx(small.epsilon_at(60))
    assert not np.array_equal(policy["params"][0]["weight"], first[0]["weight"])


@pytest.mark.slow
@quick
def test_the_errors_are_those_of_double_q_learning(small: Any) -> None:
    """The same numbers by a loop, one transition after another."""
    keys = jax.random.split(jax.random.key(1), 3)
    params, target = small.init_params(keys[0]), small.init_params(keys[1])
    loader = small.make_loader()
    state = loader.init_state(keys[2], {"params": params, "epsilon": np.float32(0.5)})
    step = jax.jit(loader.next_batch)
    for _ in range(20):
        state = step(state)[1]
    batch, _, mask = step(state)
    assert mask.all()
    errors = np.asarray(small.errors_of(params, target, batch))
    batch = jax.tree.map(np.asarray, batch)
    for n in range(small.BATCH):
        after = batch["bootstrap_state"][n]
        best = int(np.argmax(small.q_values(params, after)))
        wanted = batch["n_step_return"][n] + batch["bootstrap_discount"][n] * float(
            small.q_values(target, after)[best]
        )
        value = float(small.q_values(params, batch["state"][n])[batch["action"][n]])
        assert errors[n] == pytest.approx(value - wanted, rel=1e-3, abs=1e-4)


# The figures


@pytest.mark.slow  # trains five seeds, twice
def test_networks_balance_the_pole_online_and_then_from_the_file(tmp_path: Path) -> None:
    data = tmp_path / "steps.npz"
    for name in ("cartpole_dqn", "cartpole_offline"):
        module = example(name)
        rounds = 40 if name == "cartpole_dqn" else 20
        results = module.main(5, rounds, tmp_path / f"{name}.png", data)
        check(results, tmp_path / f"{name}.png", 5, rounds)
        assert np.sum(results["return"] >= 400) >= 4, name


@pytest.mark.slow  # trains, to have a file
@quick
def test_the_file_is_made_if_it_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dqn = example("cartpole_dqn")
    dqn.ENVS, dqn.HIDDEN, dqn.BATCH, dqn.STEPS, dqn.PREFILL = 2, 8, 8, 20, 20
    monkeypatch.setitem(sys.modules, "cartpole_dqn", dqn)
    offline = example("cartpole_offline")
    offline.BATCH, offline.STEPS = 16, 10
    data = tmp_path / "made.npz"
    results = offline.main(2, 2, tmp_path / "curve.png", data)
    check(results, tmp_path / "curve.png", 2, 2)
    assert capsys.readouterr().out.startswith(f"{data} is not there yet")
    with np.load(data) as file:
        assert file["reward"].shape == (40 * 20 * 2,)
