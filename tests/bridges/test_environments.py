"""Real environments of each library: what an adapter gives, beside the library's own functions."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal import BatchTransform, DataLoader, PipelineError
from cereal.rl import (
    BraxEnvironment,
    GymnaxEnvironment,
    JumanjiEnvironment,
    NavixEnvironment,
    RolloutSource,
)

# Brax warns of its backends, Jumanji and Craftax of dtypes that they cut to 32 bits.
pytestmark = [pytest.mark.bridges, pytest.mark.filterwarnings("ignore")]
with warnings.catch_warnings(action="ignore"):
    brax = import_module("brax.envs")
    training = import_module("brax.envs.wrappers.training")
    craftax = import_module("craftax.craftax_env")
    jumanji = import_module("jumanji")
    jumanji_wrappers = import_module("jumanji.wrappers")
    # Navix brings dozens of packages along; it is tested where it is installed.
    navix: Any = import_module("navix") if find_spec("navix") else None


class Told(NamedTuple):
    """What a library tells of one step."""

    observation: Any
    state: Any
    reward: Any
    done: bool
    truncated: bool | None


class Brax:
    """A pendulum that falls if it is pushed, or is stopped after nine steps."""

    def __init__(self) -> None:
        made = {"episode_length": 9, "auto_reset": False, "backend": "spring"}
        self.env = brax.create("inverted_pendulum", **made)
        self.ours = BraxEnvironment(self.env)
        self.resetting, self.stepping = jax.jit(self.env.reset), jax.jit(self.env.step)

    def actions(self) -> Any:
        return np.asarray([[1.0]] * 7 + [[0.0]] * 12, np.float32)

    def reset(self, key: Any) -> Any:
        state = self.resetting(key)
        return state.obs, state

    def step(self, key: Any, state: Any, action: Any) -> Told:
        new = self.stepping(state, action)
        return Told(new.obs, new, new.reward, new.done == 1, new.info["truncation"] == 1)


class Jumanji:
    """A snake that runs into a wall, and agents that forage for five steps at most."""

    def __init__(self, name: str, **options: Any) -> None:
        self.env = jumanji.make(name, **options)
        self.ours = JumanjiEnvironment(self.env)
        self.resetting, self.stepping = jax.jit(self.env.reset), jax.jit(self.env.step)

    def actions(self) -> Any:
        spec = self.env.action_spec
        return np.random.default_rng(0).integers(0, 4, (24, *spec.shape)).astype(spec.dtype)

    def reset(self, key: Any) -> Any:
        state, timestep = self.resetting(key)
        return timestep.observation, state

    def step(self, key: Any, state: Any, action: Any) -> Told:
        state, new = self.stepping(state, action)
        last = bool(new.step_type == 2)
        cut = last and bool(np.any(np.asarray(new.discount) > 0))
        return Told(new.observation, state, new.reward, last, cut)


class Navix:
    """An empty room: five moves to the goal, and seven at most."""

    def __init__(self) -> None:
        self.env = navix.make("Navix-Empty-5x5-v0", max_steps=7)
        self.ours = NavixEnvironment(self.env)
        self.resetting, self.stepping = jax.jit(self.env.reset), jax.jit(self.env.step)

    def actions(self) -> Any:
        there = [2, 2, 1, 2, 2]  # forward, forward, right, forward, forward
        return np.asarray([*there, *[0] * 10, *there], np.int32)

    def reset(self, key: Any) -> Any:
        timestep = self.resetting(key)
        return timestep.observation, timestep

    def step(self, key: Any, state: Any, action: Any) -> Told:
        new = self.stepping(state, action)
        kind = int(new.step_type)
        return Told(new.observation, new, new.reward, kind > 0, kind == 1)


@functools.cache
def world(auto_reset: bool) -> Any:
    return craftax.make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset)


class Craftax:
    """Eight steps of a world; the truth is told by the class that does not reset itself."""

    def __init__(self, auto_reset: bool) -> None:
        self.env = world(False)
        self.params = self.env.default_params.replace(max_timesteps=8)
        self.ours = GymnaxEnvironment(world(auto_reset), self.params)

    def actions(self) -> Any:
        return np.random.default_rng(0).integers(0, 17, 12).astype(np.int32)

    def reset(self, key: Any) -> Any:
        return self.env.reset(key, self.params)

    def step(self, key: Any, state: Any, action: Any) -> Told:
        observation, state, reward, done, _ = self.env.step(key, state, action, self.params)
        return Told(observation, state, reward, done, None)


MAKE = {
    "brax": Brax,
    "snake": lambda: Jumanji("Snake-v1", num_rows=4, num_cols=4),
    "foraging": lambda: Jumanji("LevelBasedForaging-v0", time_limit=5),
    "craftax": lambda: Craftax(auto_reset=False),
    "craftax that resets": lambda: Craftax(auto_reset=True),
    **({"navix": Navix} if navix else {}),
}
# What kinds of ends a test must have seen to be worth something: (done, truncated).
ENDS = {
    "brax": {(True, False), (True, True)},
    "snake": {(True, False)},
    "foraging": {(True, True)},
    "navix": {(True, False), (True, True)},
    "craftax": {(True, None)},
    "craftax that resets": {(True, None)},
}


@functools.cache
def library_of(name: str) -> Any:
    return MAKE[name]()


@pytest.fixture(autouse=True)
def quickly_compiled() -> Iterator[None]:
    """Worlds of many thousand operations run for a few steps; most of the time is compiling."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def arrays(tree: Any) -> list[np.ndarray]:
    keys = jax.dtypes.prng_key
    return [
        np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, keys) else leaf)
        for leaf in map(jnp.asarray, jax.tree.leaves(tree))
    ]


def close(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(arrays(found), arrays(wanted), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MAKE)
def test_a_trajectory_is_the_librarys_through_ends_and_after_them(name: str) -> None:
    library = library_of(name)
    ours = library.ours
    reset = jax.jit(lambda env, key: env.reset(key))
    step = jax.jit(lambda env, *args: env.step(*args))
    observation, state = reset(ours, jax.random.key(0))
    wanted, theirs = library.reset(jax.random.key(0))
    close((observation, state), (wanted, theirs))
    seen, over = set(), True
    for number, action in enumerate(library.actions()):
        key = jax.random.key(100 + number)
        made = step(ours, key, state, action)
        told = library.step(key, theirs, action)
        close(made.observation, told.observation)
        close(made.state, told.state)
        close(made.reward, told.reward)
        assert made.done.dtype == jnp.bool_
        assert made.resumed is None
        truncated = None if made.truncated is None else bool(made.truncated)
        assert bool(made.done) == bool(told.done)
        assert truncated == (None if told.truncated is None else bool(told.truncated))
        state, theirs = made.state, told.state
        over = bool(made.done)
        if over:
            seen.add((True, truncated))
            again = jax.random.key(200 + number)
            (observation, state), (wanted, theirs) = reset(ours, again), library.reset(again)
            close((observation, state), (wanted, theirs))
    assert seen == ENDS[name]
    assert not over, "the test must go on after the last end"


@pytest.mark.parametrize(
    "name", [name for name in MAKE if name != "craftax"]
)  # the other is as slow
def test_four_environments_roll_out_in_a_loader(name: str) -> None:
    ours = library_of(name).ours
    spec = ours.action_spec()

    def act(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        if jnp.issubdtype(spec.dtype, jnp.integer):
            return jax.random.randint(key, spec.shape, 0, 3, spec.dtype), policy_state
        return jnp.ones(spec.shape, spec.dtype), policy_state

    source = RolloutSource(ours, act, None, steps_per_epoch=32, num_envs=4)
    loader = DataLoader([source, BatchTransform(16)])
    state = loader.set_policy_state(loader.init_state(jax.random.key(0)), None)
    assert ours.name in repr(loader)
    one, state, _ = loader.next_batch(state)
    two, _, _ = loader.next_batch(state)
    both = jax.tree.map(lambda a, b: np.concatenate([arrays(a)[0], arrays(b)[0]]), one, two)
    done = both["done"]
    assert done.shape == (32, 4)
    assert done.any()
    for before, after in zip(
        jax.tree.leaves(both["next_state"]), jax.tree.leaves(both["state"]), strict=True
    ):
        assert before.shape[:2] == (32, 4)
        np.testing.assert_array_equal(before[:-1][~done[:-1]], after[1:][~done[:-1]])
    if name in ("brax", "craftax that resets"):  # elsewhere a first may equal a last
        ends = np.argwhere(done[:-1])
        assert all((both["next_state"][t, n] != both["state"][t + 1, n]).any() for t, n in ends)
    told = ENDS[name] != {(True, None)}
    assert ({"terminated", "truncated"} <= both["info"].keys()) == told
    if told:
        np.testing.assert_array_equal(both["info"]["terminated"] | both["info"]["truncated"], done)


def test_craftax_that_resets_makes_the_steps_of_its_own_step() -> None:
    library = library_of("craftax that resets")
    env, params = library.ours.env, library.params
    _, state = library.reset(jax.random.key(0))
    key = jax.random.key(1)
    observation, *_ = env.step(key, state, 1, params)
    made = jax.jit(library.ours.step)(jax.random.split(key)[0], state, 1)
    close(made.observation, observation)


def test_an_older_environment_in_a_wrapper_begins_again_by_itself() -> None:
    class Passing:
        def __init__(self, env: Any) -> None:
            self._env = env

        def __getattr__(self, name: str) -> Any:
            return getattr(self._env, name)

    library = library_of("craftax that resets")
    env = GymnaxEnvironment(Passing(library.ours.env), library.params)
    _, state = library.reset(jax.random.key(0))
    state = state.replace(timestep=jnp.full_like(state.timestep, 7))
    made = env.step(jax.random.key(1), state, 0)
    assert bool(made.done)
    assert int(made.state.timestep) == 0


def test_wrappers_that_reset_or_map_are_refused() -> None:
    reset = "write `brax.envs.create\\(name, auto_reset=False\\)`"
    for env in (
        brax.create("fast"),
        training.EpisodeWrapper(brax.create("fast"), 3, 1),
        training.wrap(brax.get_environment("fast")),
    ):
        with pytest.raises(PipelineError, match=reset):
            BraxEnvironment(env)
    with pytest.raises(PipelineError, match=r"VmapWrapper is many environments.*`num_envs=`"):
        BraxEnvironment(brax.create("fast", auto_reset=False, batch_size=3))
    snake = jumanji.make("Snake-v1")
    with pytest.raises(PipelineError, match="AutoResetWrapper resets the environment by itself"):
        JumanjiEnvironment(jumanji_wrappers.AutoResetWrapper(snake, next_obs_in_extras=True))
    for wrapper in (jumanji_wrappers.VmapWrapper, jumanji_wrappers.VmapAutoResetWrapper):
        with pytest.raises(PipelineError, match=f"{wrapper.__name__} is many environments"):
            JumanjiEnvironment(wrapper(snake))


def test_the_wrong_adapter_names_the_right_one() -> None:
    for env, adapter in (
        (brax.get_environment("fast"), "Brax"),
        (brax.create("fast", auto_reset=False), "Brax"),
        (jumanji.make("Snake-v1"), "Jumanji"),
        (jumanji_wrappers.Wrapper(jumanji.make("Snake-v1")), "Jumanji"),
        *([(navix.make("Navix-Empty-5x5-v0"), "Navix")] if navix else []),
    ):
        with pytest.raises(PipelineError, match=f"write `cereal.rl.{adapter}Environment"):
            GymnaxEnvironment(env)


def test_actions_are_as_the_libraries_say() -> None:
    def spec(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    found = {name: library_of(name).ours.action_spec() for name in MAKE}
    expected = {
        "brax": spec((1,), jnp.float32),
        "snake": spec((), jnp.int32),
        "foraging": spec((2,), jnp.int32),
        "navix": spec((), jnp.int32),
        "craftax": spec((), jnp.int32),
        "craftax that resets": spec((), jnp.int32),
    }
    assert found == {name: expected[name] for name in MAKE}
