"""The examples of reinforcement learning run, learn, and draw what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL.Image import open as image_of

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("cartpole_pg", "cartpole_pg_rnn", "cartpole_ppo")


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(results: dict[str, np.ndarray], picture: Path, seeds: int, updates: int) -> None:
    """Numbers that can be, and a picture that is not of one colour."""
    assert results["return"].shape == (seeds,)
    assert results["curve"].shape == (seeds, updates)
    for numbers in results.values():
        assert (numbers >= 8).all()  # a pole takes as many steps to fall
        assert (numbers <= 500).all()
    assert np.unique(results["return"]).size > 1 or (results["return"] == 500).all()
    with image_of(picture) as image:
        assert image.format == "PNG"
        grey = np.asarray(image.convert("L"))
    assert grey.min() < grey.max()


def by_hand(key: Any, act: Any) -> float:
    """The return of one episode, in a loop of Python over gymnax."""
    env, env_params = gymnax.make("CartPole-v1")
    key, reset = jax.random.split(key)
    observation, state = env.reset(reset, env_params)
    for step in range(1, 501):
        key, move = jax.random.split(key)
        action = act(observation, step == 1)
        observation, state, _, terminated, _, _ = env.step(move, state, action, env_params)
        if terminated:
            return step
    return 500


# A short training of each


@pytest.mark.parametrize(("name", "updates"), [("cartpole_pg", 25), ("cartpole_ppo", 8)])
def test_a_short_training_balances_for_longer_than_chance(
    name: str, updates: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = example(name).main(2, updates, tmp_path / "curve.png")
    check(results, tmp_path / "curve.png", 2, updates)
    np.testing.assert_allclose(results["curve"][:, 0], 22, atol=4)  # by chance
    assert (results["return"] > 60).all()
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"seed  {n}: mean return {results['return'][n]:5.1f}" for n in range(2)]


def test_a_short_training_of_the_recurrent_policy_draws_its_curve(tmp_path: Path) -> None:
    rnn = example("cartpole_pg_rnn")
    rnn.ENVS, rnn.HIDDEN = 4, 8
    results = rnn.main(2, 3, tmp_path / "curve.png")
    check(results, tmp_path / "curve.png", 2, 3)


def test_a_seed_learns_the_same_alone_and_among_others() -> None:
    pg = example("cartpole_pg")
    pg.ENVS, pg.STEPS = 2, 20
    keys = jax.random.split(jax.random.key(3), 3)
    together, _ = jax.vmap(lambda key: pg.train(key, 3))(keys)
    alone, _ = pg.train(keys[1], 3)
    for name, weights in alone.items():
        np.testing.assert_allclose(together[name][1], weights, rtol=1e-3, atol=1e-5)
    assert not np.allclose(together["in"][0], together["in"][1])


# What they rely on


def test_play_counts_whole_episodes() -> None:
    """Policies that push to one side, or to the side to which the pole leans."""
    pg = example("cartpole_pg")
    one_side = {"in": jnp.zeros((4, 32)), "bias": jnp.ones(32), "out": jnp.ones((32, 2))}
    one_side["out"] = one_side["out"].at[:, 0].set(-1)
    steps = [by_hand(jax.random.key(n), lambda *_: 1) for n in range(40)]
    assert float(pg.play(jax.random.key(0), one_side)) == pytest.approx(np.mean(steps), abs=0.7)


def test_training_replays_what_the_recurrent_policy_remembered() -> None:
    """The logits of the replay are those that were acted on, across segments and episodes."""
    rnn = example("cartpole_pg_rnn")
    rnn.STEPS = 40
    params = rnn.init_params(jax.random.key(0))
    params["out"] = 300 * params["out"]  # falls soon, and where it pushes can be told
    loader = rnn.make_loader(4)
    state = loader.set_policy_state(loader.init_state(1), rnn.start(params, 4))
    for _ in range(2):
        hidden = np.asarray(loader.get_policy_state(state)["hidden"])
        batch, state, _ = loader.next_batch(state)
        remembered, done = np.asarray(batch["extras"]), np.asarray(batch["done"])
        for t in range(40):
            np.testing.assert_allclose(remembered[t], hidden, rtol=1e-4, atol=1e-5)
            hidden, _ = rnn.network(params, hidden, batch["state"][t])
            hidden = np.where(done[t][:, None], 0, hidden)
        assert done.any()
        np.testing.assert_allclose(
            loader.get_policy_state(state)["hidden"] * ~done[-1][:, None],
            hidden,
            rtol=1e-4,
            atol=1e-5,
        )


def test_the_recurrent_policy_never_sees_velocities() -> None:
    rnn = example("cartpole_pg_rnn")
    params, hidden = rnn.init_params(jax.random.key(0)), jnp.zeros(rnn.HIDDEN)
    params["out"] = 100 * params["out"]

    def logits(*observation: float) -> jax.Array:
        return rnn.network(params, hidden, jnp.array(observation))[1]

    still = logits(0.3, 0.0, 0.1, 0.0)
    np.testing.assert_array_equal(logits(0.3, 2.0, 0.1, -3.0), still)
    assert not np.allclose(logits(0.4, 0.0, 0.1, 0.0), still)
    assert not np.allclose(logits(0.3, 0.0, 0.2, 0.0), still)


def test_examples_are_short() -> None:
    for name in NAMES:
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 150, name


# The figures


@pytest.mark.slow  # trains five seeds
@pytest.mark.parametrize(
    ("name", "updates", "least", "seeds"),
    [("cartpole_pg", 150, 475, 5), ("cartpole_pg_rnn", 150, 400, 4), ("cartpole_ppo", 50, 400, 4)],
)
def test_policies_balance_the_pole(
    name: str, updates: int, least: float, seeds: int, tmp_path: Path
) -> None:
    results = example(name).main(5, updates, tmp_path / "curve.png")
    check(results, tmp_path / "curve.png", 5, updates)
    assert np.sum(results["return"] >= least) >= seeds
