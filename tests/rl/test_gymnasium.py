"""GymnasiumSource, against loops over the same environments written by hand."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from tests.rl.counting import KEY, Counting, Maker, first_batch, loader_of, stride
from tests.rl.loops import loop_episodes, per_column
from tests.workers.reading import until

import cereal
from cereal.rl.episodes import EpisodeStatisticsTransform
from cereal.rl.gymnasium_source import GymnasiumSource

CARTPOLE = "CartPole-v1"


def lean(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
    """Pushes the pole to the side where it falls."""
    return (observation[2] < 0).astype(jnp.int32), policy_state


def set_action(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
    return policy_state["params"], policy_state


def random_action(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
    return jax.random.bits(key, (), jnp.uint32) % 4, policy_state


def by_hand(make: Callable[[], gymnasium.Env], seeds: list[int], actions: Any) -> dict[str, Any]:
    """The transitions of single environments with these seeds and actions `[T, N]`."""
    lanes = []
    for lane, seed in enumerate(seeds):
        env, steps = make(), []
        state, _ = env.reset(seed=seed)
        for action in actions[:, lane]:
            after, reward, terminated, truncated, _ = env.step(action)
            steps.append((state, reward, after, terminated or truncated, terminated, truncated))
            state = env.reset()[0] if terminated or truncated else after
        env.close()
        lanes.append([np.stack(part) for part in zip(*steps, strict=True)])
    names = ("state", "reward", "next_state", "done", "terminated", "truncated")
    parts = [np.stack(part, axis=1) for part in zip(*lanes, strict=True)]
    return dict(zip(names, parts, strict=True))


def check_by_hand(batch: Any, make: Callable[[], gymnasium.Env], seeds: list[int]) -> None:
    expected = by_hand(make, seeds, np.asarray(batch["action"]))
    assert expected["done"].sum() >= 3
    for name in ("state", "next_state", "done"):
        np.testing.assert_array_equal(batch[name], expected[name], err_msg=name)
    np.testing.assert_array_equal(batch["reward"], expected["reward"].astype(np.float32))
    ended = expected["terminated"]
    np.testing.assert_array_equal(batch["info"]["terminated"], ended)
    np.testing.assert_array_equal(batch["info"]["truncated"], expected["truncated"] & ~ended)
    assert batch["info"].keys() == {"terminated", "truncated"}


# What it gives


@pytest.mark.parametrize("mode", ["made", AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_transitions_are_those_of_a_loop_by_hand(mode: Any) -> None:
    maker = Maker(lambda: gymnasium.make(CARTPOLE))
    if mode == "made":
        source = GymnasiumSource(maker, lean, None, num_envs=3)
    else:
        envs = SyncVectorEnv([maker] * 3, autoreset_mode=mode, copy=False)
        source = GymnasiumSource(envs, lean, None)
    with loader_of(source, 30) as loader:
        state = loader.init_state(KEY)
        halves = []
        for _ in range(2):
            batch, state, mask = loader.next_batch(state)
            assert mask.shape == (30,)
            assert mask.all()
            halves.append(batch)
        batch = jax.tree.map(lambda *parts: jnp.concatenate(parts), *halves)
    seed = maker.seeds[0]
    assert maker.seeds == [seed, seed + 1, seed + 2]
    np.testing.assert_array_equal(batch["action"], batch["state"][..., 2] < 0)
    check_by_hand(batch, lambda: gymnasium.make(CARTPOLE), maker.seeds)
    assert batch["reward"].dtype == jnp.float32


def test_one_environment_has_no_axis_for_environments() -> None:
    maker = Maker(Counting)
    with loader_of(GymnasiumSource(maker, stride, None), 40) as loader:
        assert loader.element_spec()["state"].shape == (40, 2)
        batch = first_batch(loader)
        assert batch["action"].shape == batch["done"].shape == (40,)
        check_by_hand(jax.tree.map(lambda x: x[:, None], batch), Counting, maker.seeds)


def test_a_time_limit_is_told_from_an_end() -> None:
    maker = Maker(lambda: gymnasium.wrappers.TimeLimit(Counting(end=6), 3))
    with loader_of(GymnasiumSource(maker, set_action, {"params": jnp.int32(0)}), 3) as loader:
        state = loader.init_state(KEY)
        for step, ends in ((1, (False, True)), (2, (True, False)), (3, (True, False))):
            state = loader.set_policy_state(state, {"params": jnp.int32(step)})
            batch, state, _ = loader.next_batch(state)
            info = batch["info"]
            # With steps of 2 the end and the limit fall together: that is an end.
            assert (bool(info["terminated"].any()), bool(info["truncated"].any())) == ends
            assert not (info["terminated"] & info["truncated"]).any()
            np.testing.assert_array_equal(batch["done"], info["terminated"] | info["truncated"])


def test_continuous_actions_reach_the_environment() -> None:
    def swing(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        return jax.random.uniform(key, (1,), minval=-2, maxval=2), policy_state

    maker = Maker(lambda: gymnasium.make("Pendulum-v1", max_episode_steps=5))
    with loader_of(GymnasiumSource(maker, swing, None, num_envs=2), 12) as loader:
        batch = first_batch(loader)
        assert batch["action"].shape == (12, 2, 1)
        assert batch["action"].dtype == jnp.float32
        check_by_hand(
            batch, lambda: gymnasium.make("Pendulum-v1", max_episode_steps=5), maker.seeds
        )


class Everything(gymnasium.Env):
    """Shows every kind of space that is made of arrays, and takes every kind."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "wide": spaces.Box(-np.inf, np.inf, (2,), np.float64),
                "pair": spaces.Tuple((spaces.Discrete(9), spaces.MultiBinary(3))),
                "many": spaces.MultiDiscrete([5, 5]),
                "image": spaces.Box(0, 255, (2, 2, 1), np.uint8),
            }
        )
        self.action_space = spaces.Dict(
            {
                "which": spaces.Discrete(3, start=5),
                "how": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float64), spaces.MultiBinary(2))),
                "many": spaces.MultiDiscrete([2, 7]),
            }
        )
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return seen(0), {}

    def step(self, action: Any) -> Any:
        self.taken.append(action)
        self.steps += 1
        return seen(self.steps), 1.0, self.steps == 2, False, {}


def seen(step: int) -> dict[str, Any]:
    return {
        "wide": np.full(2, step + 0.5),
        "pair": (step, np.array([0, 1, step % 2], np.int8)),
        "many": np.array([step, 1]),
        "image": np.full((2, 2, 1), step, np.uint8),
    }


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_every_kind_of_space_goes_both_ways(mode: Any) -> None:
    def act(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        return {
            "which": observation["pair"][0] + 5,
            "how": (observation["wide"], observation["pair"][1][:2]),
            "many": observation["many"].at[0].min(1),
        }, policy_state

    made: list[Everything] = []

    def make() -> Everything:
        made.append(Everything())
        return made[-1]

    envs = SyncVectorEnv([make, make], autoreset_mode=mode)
    loader = loader_of(GymnasiumSource(envs, act, None), 3)
    batch = first_batch(loader)
    states, after = (seen(k) for k in (0, 1, 0)), (seen(k) for k in (1, 2, 1))
    for name, expected in (("state", states), ("next_state", after)):
        rows = jax.tree.map(lambda *rows: np.stack(rows)[:, None], *expected)
        both = jax.tree.map(lambda x: np.repeat(x, 2, axis=1), rows)
        jax.tree.map(np.testing.assert_array_equal, batch[name], both)
    dtypes = jax.tree.map(lambda x: str(x.dtype), batch["state"])
    assert dtypes == {
        "wide": "float32",
        "pair": ("int32", "int8"),
        "many": "int32",
        "image": "uint8",
    }
    for env in made:
        assert [int(action["which"]) for action in env.taken] == [5, 6, 5]
        for action in env.taken:
            assert action["which"].dtype == np.int64
            assert action["how"][0].dtype == np.float64
            assert action in env.action_space or (action["how"][0] > 1).any()


# Ways to run it


def test_every_way_to_run_it_gives_the_same() -> None:
    with loader_of(GymnasiumSource(Counting, random_action, None, 16, num_envs=2)) as loader:
        one_by_one = cereal.DataLoader(loader.source.source)  # type: ignore[arg-type]
        passed = jax.jit(lambda loader, state: loader.next_batch(state))
        begin = jax.jit(lambda loader, key: loader.init_state(key))

        def two(next_batch: Any, state: Any) -> Any:
            first, state, _ = next_batch(state)
            second, _, _ = next_batch(state)
            return jax.tree.map(lambda *parts: np.concatenate(parts), first, second)

        expected = two(loader.next_batch, loader.init_state(KEY))
        assert expected["done"].any()
        found = {
            "jit": two(lambda state: passed(loader, state), begin(loader, KEY)),
        }
        batches = [batch for batch, _ in loader.iterate(loader.init_state(KEY))]
        found["iterate"] = jax.tree.map(lambda *parts: np.concatenate(parts), *batches)
        steps = [step for step, _ in one_by_one.iterate(one_by_one.init_state(KEY))]
        found["one by one"] = jax.tree.map(lambda *parts: np.stack(parts), *steps)
        state, _, outputs = loader.scan_epoch(
            loader.init_state(KEY), None, lambda carry, batch, mask: (carry, batch)
        )
        found["scan"] = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), outputs)
        for way, batch in found.items():
            for (path, x), y in zip(
                jax.tree_util.tree_flatten_with_path(batch)[0],
                jax.tree.leaves(expected),
                strict=True,
            ):
                np.testing.assert_array_equal(x, y, err_msg=f"{way}{jax.tree_util.keystr(path)}")
        assert loader.next_batch(state)[2].all()  # on, in the second epoch


def test_a_key_is_the_same_episodes_again() -> None:
    maker = Maker(Counting)
    with loader_of(GymnasiumSource(maker, random_action, None, num_envs=2)) as loader:
        found = [first_batch(loader, key=key) for key in (5, jax.random.key(5), 6)]
        jax.tree.map(np.testing.assert_array_equal, found[0], found[1])
        assert not np.array_equal(found[0]["state"], found[2]["state"])
        assert len(set(maker.seeds)) == 4
        assert all(0 <= seed < 2**31 for seed in maker.seeds)


def test_feedback_reaches_the_environments_within_a_scan() -> None:
    policy_state = {"params": jnp.int32(0)}
    source = GymnasiumSource(lambda: Counting(end=100), set_action, policy_state, 12, num_envs=2)
    with loader_of(source, 4) as loader:

        def body(step: Any, batch: Any, mask: Any) -> Any:
            return step + 1, batch

        state = loader.set_policy_state(loader.init_state(KEY), policy_state)
        state, count, batches = loader.scan_epoch(
            state,
            jnp.int32(0),
            body,
            feedback=lambda state, carry, _: loader.set_policy_state(state, {"params": carry}),
        )
    assert int(count) == 3
    expected = np.repeat([0, 1, 2], 4)
    np.testing.assert_array_equal(batches["action"].reshape(12, 2)[:, 0], expected)
    np.testing.assert_array_equal(batches["next_state"].reshape(12, 2, 2)[-1, :, 1], [12, 12])
    assert int(loader.get_policy_state(state)["params"]) == 3


def test_each_environment_has_a_memory_of_its_own() -> None:
    def remembers(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        count = jnp.where(new_episode, 1, policy_state["count"] + 1)
        action = jnp.where(observation[0] % 2 == 0, 1, 2)
        return action * policy_state["params"], {**policy_state, "count": count}, count

    policy_state = {"params": jnp.int32(1), "count": jnp.zeros(3, jnp.int32)}
    axes = {"params": None, "count": 0}
    source = GymnasiumSource(Counting, remembers, policy_state, num_envs=3, policy_state_axes=axes)
    with loader_of(source, 20) as loader:
        batch = first_batch(loader, policy_state)
    lengths = per_column(lambda r, d: loop_episodes(r, d)[1], batch["reward"], batch["done"])
    assert len({tuple(column) for column in lengths.T}) > 1
    np.testing.assert_array_equal(batch["extras"], lengths)


def test_statistics_of_episodes_are_those_of_a_loop() -> None:
    source = GymnasiumSource(Counting, stride, None, num_envs=2)
    with loader_of(source, 6, EpisodeStatisticsTransform()) as loader:
        batches = [b for b, _ in loader.iterate(loader.init_state(KEY), steps=3)]
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *batches)
    totals, lengths = per_column(loop_episodes, whole["reward"], whole["done"])
    np.testing.assert_allclose(whole["episode_return"], totals)
    np.testing.assert_array_equal(whole["episode_length"], lengths)


@pytest.mark.slow
def test_environments_in_other_processes_do_the_same() -> None:
    make = lambda: gymnasium.make(CARTPOLE)  # noqa: E731 (pickled by value)
    envs = AsyncVectorEnv([make] * 2, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)
    try:
        there = first_batch(loader_of(GymnasiumSource(envs, lean, None), 30))
    finally:
        envs.close()
        gone = weakref.ref(envs)
        del envs
    with loader_of(GymnasiumSource(CARTPOLE, lean, None, num_envs=2), 30) as loader:
        here = first_batch(loader)
    assert here["done"].sum() > 2
    jax.tree.map(np.testing.assert_array_equal, there, here)
    # A program was called with them, so they stay for a second after it (`host/lingering.py`).
    assert until(lambda: gc.collect() >= 0 and gone() is None)


# Small things


def test_the_mode_is_that_of_the_environment_though_classes_share_their_metadata() -> None:
    def made(mode: AutoresetMode) -> SyncVectorEnv:
        return SyncVectorEnv([lambda: gymnasium.make(CARTPOLE)], autoreset_mode=mode)

    good, bad = made(AutoresetMode.SAME_STEP), made(AutoresetMode.NEXT_STEP)
    told = good.metadata["autoreset_mode"]  # before gymnasium 1.4, what the second one wrote
    GymnasiumSource(good, lean, None)
    GymnasiumSource(CARTPOLE, lean, None)  # writes nothing for others to read
    assert good.metadata["autoreset_mode"] == told
    made(AutoresetMode.SAME_STEP)
    with pytest.raises(cereal.PipelineError, match="resets in the step after an end"):
        GymnasiumSource(bad, lean, None)


def test_a_drawing_names_the_environment() -> None:
    with loader_of(GymnasiumSource(CARTPOLE, lean, None, num_envs=2)) as loader:
        assert "GymnasiumSource(CartPole-v1, num_envs=2)" in repr(loader)
    envs = gymnasium.make_vec(
        CARTPOLE,
        num_envs=2,
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
        vectorization_mode="sync",
    )
    assert "GymnasiumSource(CartPole-v1, num_envs=2)" in repr(GymnasiumSource(envs, lean, None))


def test_wrappers_of_vector_environments_are_heard() -> None:
    inner = SyncVectorEnv([lambda: Counting()] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    envs = gymnasium.wrappers.vector.TransformReward(inner, lambda reward: reward * 10)
    batch = first_batch(loader_of(GymnasiumSource(envs, stride, None)))
    np.testing.assert_array_equal(batch["reward"], batch["action"] * 10)
