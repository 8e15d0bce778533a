"""The examples of reinforcement learning run, learn, and draw what they say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL.Image import open as image_of
from tests.examples.running import example


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


@pytest.fixture
def quick_to_compile() -> Iterator[None]:
    """Short runs spend most of their time on compiling: five times as long with optimisations."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


quick = pytest.mark.usefixtures("quick_to_compile")


# A short training of each


@pytest.mark.slow
@quick
@pytest.mark.parametrize(("name", "updates"), [("cartpole_pg", 15), ("cartpole_ppo", 6)])
def test_a_short_training_balances_for_longer_than_chance(
    name: str, updates: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = example(name).main(2, updates, tmp_path / "curve.png")
    check(results, tmp_path / "curve.png", 2, updates)
    np.testing.assert_allclose(results["curve"][:, 0], 22, atol=4)  # by chance
    assert (results["return"] > 60).all()
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"seed  {n}: mean return {results['return'][n]:5.1f}" for n in range(2)]


@pytest.mark.slow
@quick
def test_a_short_training_of_the_recurrent_policy_draws_its_curve(tmp_path: Path) -> None:
    rnn = example("cartpole_pg_rnn")
    rnn.ENVS, rnn.HIDDEN = 4, 8
    results = rnn.main(2, 3, tmp_path / "curve.png")
    check(results, tmp_path / "curve.png", 2, 3)


# What they rely on


def steps_to_the_right(angle: float, spin: float) -> int:
    """How many pushes to the right a pole survives: the equations of CartPole, of a pole alone."""
    for step in range(1, 501):
        push = (10 + 0.05 * spin**2 * np.sin(angle)) / 1.1
        turned = 9.8 * np.sin(angle) - np.cos(angle) * push
        turned /= 0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1)
        angle, spin = angle + 0.02 * spin, spin + 0.02 * turned
        if abs(angle) > 12 * 2 * np.pi / 360:
            return step
    return 500


@pytest.mark.slow
@quick
def test_play_counts_whole_episodes() -> None:
    """Of a policy that always pushes to the right; an episode begins anywhere within 0.05."""
    pg = example("cartpole_pg")
    right = jnp.tile(jnp.array([-1.0, 1.0]), (pg.HIDDEN, 1))
    params = {"in": jnp.zeros((4, pg.HIDDEN)), "bias": jnp.ones(pg.HIDDEN), "out": right}
    starts = np.random.default_rng(0).uniform(-0.05, 0.05, (1000, 2))
    expected = np.mean([steps_to_the_right(angle, spin) for angle, spin in starts])
    assert float(pg.play(jax.random.key(0), params)) == pytest.approx(expected, abs=0.4)


@pytest.mark.slow
@quick
def test_training_replays_what_the_recurrent_policy_remembered() -> None:
    """Across segments and episodes; the loss is that of a loop over all steps."""
    rnn = example("cartpole_pg_rnn")
    rnn.STEPS = 40
    params = rnn.init_params(jax.random.key(0))
    params["out"] = 300 * params["out"]  # sure of what it does, so that logits matter
    loader = rnn.make_loader(4)
    state = loader.set_policy_state(loader.init_state(1), rnn.start(params, 4))
    network, hidden = jax.jit(rnn.network), np.zeros((4, rnn.HIDDEN))
    for _ in range(2):
        made, state, _ = loader.next_batch(state)
        batch = jax.tree.map(np.asarray, made)
        chosen = np.zeros((40, 4))
        for t in range(40):
            np.testing.assert_allclose(batch["extras"][t], hidden, rtol=1e-4, atol=1e-5)
            hidden, logits = network(params, hidden, batch["state"][t])
            chosen[t] = jax.nn.log_softmax(logits)[np.arange(4), batch["action"][t]]
            hidden = np.where(batch["done"][t][:, None], 0, hidden)
        advantage = batch["return"] - np.mean(batch["return"], axis=1, keepdims=True)
        loss = -np.mean(chosen * advantage) / np.std(advantage)
        assert float(rnn.loss_of(params, made)) == pytest.approx(loss, rel=1e-3)
        assert batch["done"].any()


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


# The figures


@pytest.mark.slow  # trains five seeds
@pytest.mark.parametrize(
    ("name", "updates", "least", "seeds"),
    [("cartpole_pg", 150, 475, 5), ("cartpole_pg_rnn", 120, 400, 4), ("cartpole_ppo", 50, 400, 4)],
)
def test_policies_balance_the_pole(
    name: str, updates: int, least: float, seeds: int, tmp_path: Path
) -> None:
    results = example(name).main(5, updates, tmp_path / "curve.png")
    check(results, tmp_path / "curve.png", 5, updates)
    assert np.sum(results["return"] >= least) >= seeds


@pytest.mark.slow  # compiles twice
@quick
def test_a_seed_learns_the_same_alone_and_among_others() -> None:
    pg = example("cartpole_pg")
    pg.ENVS, pg.STEPS = 2, 20
    keys = jax.random.split(jax.random.key(3), 3)
    together, _ = jax.vmap(lambda key: pg.train(key, 3))(keys)
    alone, _ = pg.train(keys[1], 3)
    for name, weights in alone.items():
        np.testing.assert_allclose(together[name][1], weights, rtol=1e-3, atol=1e-5)
    assert not np.allclose(together["in"][0], together["in"][1])
