"""Environments of gymnax's shape, beside loops over gymnax's own functions."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import spaces
from gymnax.wrappers import (
    FlattenObservationWrapper,
    LegacyStepAPIWrapper,
    LogWrapper,
    StickyActionWrapper,
)
from tests.slowly import slowly

import cereal
from cereal import PipelineError
from cereal.rl import Environment, GymnaxEnvironment, Step

LIMIT = 12


def cart_pole() -> tuple[Any, Any]:
    """One whose episodes are cut off after twelve steps; pushed one way, it falls before."""
    env, params = gymnax.make("CartPole-v1")
    return env, params.replace(max_steps_in_episode=LIMIT)  # type: ignore[attr-defined]


def actions() -> np.ndarray:
    """Pushes to the right until it falls, then to and fro until the limit."""
    return np.asarray([1] * 30 + [0, 1] * 30, np.int32)


def equal(one: Any, other: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@jax.jit
def stepped(env: GymnaxEnvironment, key: Any, state: Any, action: Any) -> Step:
    return env.step(key, state, action)  # parameters are arguments, as they are in gymnax


# gymnax 1.0


@pytest.mark.parametrize(
    "wrap",
    [
        slowly(lambda env: env),
        lambda env: LogWrapper(StickyActionWrapper(FlattenObservationWrapper(env), 0.5)),
    ],
    ids=["bare", "wrapped"],
)
def test_a_trajectory_is_that_of_gymnax_with_the_true_last_observations(
    wrap: Callable[[Any], Any],
) -> None:
    inner, params = cart_pole()
    theirs, ours = wrap(inner), GymnaxEnvironment(wrap(inner), params)
    keys = jax.random.split(jax.random.key(0), 60)
    observation, state = theirs.reset(jax.random.key(1), params)
    equal(ours.reset(jax.random.key(1)), (observation, state))
    ends = []
    for key, action in zip(keys, actions(), strict=False):
        step = stepped(ours, key, state, action)
        observation, state, reward, terminated, truncated, info = theirs.step(
            key, state, action, params
        )
        equal(step.observation, info["final_observation"])
        equal(step.resumed, (observation, state))
        equal(step.reward, reward)
        assert bool(step.done) == bool(terminated or truncated)
        assert bool(step.truncated) == bool(truncated and not terminated)
        left = {"final_observation", "terminated", "truncated"}
        assert step.info.keys() == info.keys() - left
        equal(step.info, {name: info[name] for name in step.info})
        ends.append((bool(terminated), bool(truncated)))
    assert (True, False) in ends
    assert (False, True) in ends


def test_five_values_with_the_last_observation_tell_as_much_as_six() -> None:
    inner, params = cart_pole()
    six = GymnaxEnvironment(inner, params)
    five = GymnaxEnvironment(LegacyStepAPIWrapper(inner), params)
    _, state = six.reset(jax.random.key(0))
    seen = []
    for key, action in zip(jax.random.split(jax.random.key(1), 60), actions(), strict=False):
        step = stepped(six, key, state, action)
        equal(stepped(five, key, state, action), step)
        assert step.resumed is not None
        state = step.resumed[1]
        seen.append((bool(step.done), bool(step.truncated)))
    assert {(False, False), (True, False), (True, True)} == set(seen)


def test_an_episode_that_ends_by_itself_at_the_limit_was_not_cut_off() -> None:
    class Both:
        def reset(self, key: Any, params: Any) -> Any:
            return jnp.zeros(()), jnp.zeros(())

        def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
            return state, state, 0.0, action > 0, True, {}

    env = GymnaxEnvironment(Both())
    for action, truncated in ((0, True), (1, False)):
        step = env.step(jax.random.key(0), jnp.zeros(()), jnp.int32(action))
        assert bool(step.done)
        assert bool(step.truncated) is truncated


# Five values

LENGTH = 4


class Line:
    """Walks from 0 or 1 to four; as in gymnax before 1.0, `step` resets around `step_env`."""

    default_params = None

    def step(self, key: Any, state: Any, action: Any, params: Any = None) -> Any:
        new, old = self.reset_env(key, params), self.step_env(key, state, action, params)
        observation, state = jax.tree.map(lambda a, b: jnp.where(old[3], a, b), new, old[:2])
        return observation, state, *old[2:]

    def reset(self, key: Any, params: Any = None) -> Any:
        return self.reset_env(key, params)

    def step_env(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        state = state + action
        return 10.0 * state, state, -1.0, state >= LENGTH, {"place": state}

    def reset_env(self, key: Any, params: Any) -> Any:
        state = jax.random.bernoulli(key).astype(jnp.int32)
        return 10.0 * state, state


class Shifted(Line):
    """Does more in `step` than `step_env` knows."""

    def step(self, key: Any, state: Any, action: Any, params: Any = None) -> Any:
        observation, *rest = super().step(key, state, action, params)
        return (observation + 1000.0, *rest)


class Proxy:
    """A wrapper that passes on what it has not."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, key: Any, state: Any, action: Any, params: Any = None) -> Any:
        observation, *rest = self._env.step(key, state, action, params)
        return (observation + 1000.0, *rest)


def with_step_of_its_own() -> Any:
    env, shifted = Line(), Shifted()
    env.step = shifted.step
    return env


def last_step(env: Any) -> Step:
    """The step from three to four."""
    return GymnaxEnvironment(env).step(jax.random.key(3), jnp.int32(LENGTH - 1), jnp.int32(1))


def test_where_step_only_resets_the_last_observation_comes_from_step_env() -> None:
    step = last_step(Line())
    assert float(step.observation) == 10.0 * LENGTH
    assert int(step.state) == int(step.info["place"]) == LENGTH
    assert bool(step.done)
    assert step.truncated is None
    assert step.resumed is None


@pytest.mark.parametrize("make", [Shifted, lambda: Proxy(Line()), with_step_of_its_own])
def test_a_step_that_does_more_is_not_passed_over(make: Callable[[], Any]) -> None:
    step = last_step(make())
    _, first = Line().reset(jax.random.key(3))
    assert float(step.observation) == 10.0 * int(first) + 1000.0
    assert bool(step.done)
    assert step.resumed is None


class Plain:
    """A class with two functions, without parameters, that does not reset itself."""

    def reset(self, key: Any) -> Any:
        return jnp.float32(0), jnp.int32(0)

    def step(self, key: Any, state: Any, action: Any) -> Any:
        state = state + action
        return state.astype(jnp.float32), state, 1.0, (state >= 2).astype(jnp.float32), {}


def test_a_class_without_parameters_will_do_and_done_becomes_a_bool() -> None:
    env = GymnaxEnvironment(Plain())
    assert isinstance(env, Environment)
    _, state = env.reset(jax.random.key(0))
    found = []
    for _ in range(2):
        step = env.step(jax.random.key(0), state, 1)
        state = step.state
        found.append((float(step.observation), step.done.dtype, bool(step.done)))
    assert found == [(1.0, jnp.bool_, False), (2.0, jnp.bool_, True)]
    assert env.action_spec() is None


def returning(reset: Any, step: Any) -> GymnaxEnvironment:
    class Odd:
        def reset(self, key: Any, params: Any) -> Any:
            return reset

        def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
            return step

    return GymnaxEnvironment(Odd())


def test_another_number_of_values_is_told_with_what_was_returned() -> None:
    zero = jnp.zeros(3)
    with pytest.raises(PipelineError, match=r"`Odd.step` must .* returned 4 values: \(float"):
        returning(zero, (zero, zero, 1.0, True)).step(jax.random.key(0), zero, 0)
    with pytest.raises(PipelineError, match=r"it returned no tuple: float32\[3\]"):
        returning(zero, zero).step(jax.random.key(0), zero, 0)
    with pytest.raises(PipelineError, match=r"`Odd.reset` must return \(observation, state\)"):
        returning(zero, zero).reset(jax.random.key(0))


# Parameters


def test_parameters_are_leaves_and_keep_their_weak_types() -> None:
    made, params = gymnax.make("CartPole-v1")
    env = GymnaxEnvironment(made)
    assert len(jax.tree.leaves(env)) == len(jax.tree.leaves(params)) > 5
    for ours, theirs in zip(jax.tree.leaves(env), jax.tree.leaves(params), strict=True):
        assert isinstance(ours, jax.Array)
        assert ours.weak_type
        np.testing.assert_array_equal(ours, jnp.asarray(theirs))


def test_a_rollout_can_be_mapped_over_parameters() -> None:
    made, params = gymnax.make("CartPole-v1")
    gravities = jnp.asarray([1.0, 9.8, 30.0])

    def pushed(gravity: Any) -> Any:
        env = GymnaxEnvironment(made, params.replace(gravity=gravity))
        _, state = env.reset(jax.random.key(0))
        return env.step(jax.random.key(1), state, 1).state.theta_dot

    def by_gymnax(gravity: float) -> Any:
        changed = params.replace(gravity=gravity)
        _, state = made.reset(jax.random.key(0), changed)
        return made.step(jax.random.key(1), state, 1, changed)[1].theta_dot

    expected = [by_gymnax(gravity) for gravity in (1.0, 9.8, 30.0)]
    np.testing.assert_allclose(jax.jit(jax.vmap(pushed))(gravities), expected, rtol=1e-5)
    assert len({float(speed) for speed in expected}) == 3


def test_the_same_environment_means_the_same_program() -> None:
    made, params = gymnax.make("CartPole-v1")
    traced = []

    @jax.jit
    def reset(env: GymnaxEnvironment, key: Any) -> Any:
        traced.append(1)
        return env.reset(key)

    reset(GymnaxEnvironment(made, params), jax.random.key(0))
    reset(GymnaxEnvironment(made, params.replace(gravity=1.0)), jax.random.key(1))
    assert len(traced) == 1


@cereal.pytree_dataclass
class Slope:
    """An environment that is a pytree."""

    steepness: Any

    def reset(self, key: Any) -> Any:
        return jnp.float32(0), jnp.float32(0)

    def step(self, key: Any, state: Any, action: Any) -> Any:
        return state + self.steepness, state + self.steepness, 0.0, False, {}


def test_an_environment_that_is_a_pytree_can_be_mapped_over() -> None:
    def climb(slope: Slope) -> Any:
        return GymnaxEnvironment(slope).step(jax.random.key(0), jnp.float32(1), 0).observation

    assert jax.vmap(climb)(Slope(jnp.arange(3.0))).tolist() == [1.0, 2.0, 3.0]
    assert jax.tree.leaves(GymnaxEnvironment(Slope(2.5))) == [2.5]


def test_a_parameter_that_is_no_array_is_named() -> None:
    @struct.dataclass
    class Params:
        mode: Any = "hard"

    with pytest.raises(PipelineError, match=r"params\.mode is str \('hard'\).*static field"):
        GymnaxEnvironment(Line(), Params())
    with pytest.raises(PipelineError, match=r"`Plain.step` takes no parameters; write"):
        GymnaxEnvironment(Plain(), {"a": 1})


# Actions


def spec_of(space: Any) -> Any:
    class Spaced(Line):
        action_space = space

    return GymnaxEnvironment(Spaced()).action_spec()


def test_actions_are_told_by_the_space_if_they_are_one_array() -> None:
    def scalar(dtype: Any) -> Any:
        return jax.ShapeDtypeStruct((), dtype)

    assert spec_of(lambda self, params: spaces.Discrete(3)) == scalar(jnp.int32)
    assert spec_of(lambda self: spaces.Discrete(3)) == scalar(jnp.int32)
    assert spec_of(gymnasium.spaces.Discrete(3)) == scalar(jnp.int32)
    box = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    assert spec_of(lambda self, params: spaces.Box(0.0, 1.0, (2, 3))) == box
    assert spec_of(gymnasium.spaces.Box(0, 1, (2, 3))) == box
    assert spec_of(lambda self, params: spaces.Dict({"a": spaces.Discrete(3)})) is None
    assert spec_of(gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(3))) is None
    base = GymnaxEnvironment(gymnax.environments.environment.Environment())
    assert base.action_spec() is None


# What is something else


def shaped(**parts: Any) -> Any:
    return SimpleNamespace(reset=lambda key: None, step=lambda state, action: None, **parts)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (gymnax.make("CartPole-v1"), r"write `GymnaxEnvironment\(\*gymnax.make\(name\)\)`"),
        ("CartPole-v1", r"must be an environment, got 'CartPole-v1'; write `GymnaxEnvironment"),
        (Line, r"must be an environment, got <class .*Line'>"),
        (object(), r"must have `reset\(key, params\)` and .* got object"),
        (None, r"got NoneType"),
        (gymnasium.Env(), r"`Env.step` takes no key.* write `cereal.rl.GymnasiumSource"),
        (shaped(action_size=3), r"as Brax's does; write `cereal.rl.BraxEnvironment\(env\)`"),
        (shaped(action_spec=3), r"write `cereal.rl.JumanjiEnvironment\(env\)`"),
        (shaped(_step=3), r"write `cereal.rl.NavixEnvironment\(env\)`"),
        (shaped(), r"takes two arguments, not \(key, state, action, params\)"),
        (
            SimpleNamespace(reset=lambda key: None, step=lambda key, state, action: None),
            r"SimpleNamespace is neither a pytree nor hashable",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_such_environment_is_refused_with_what_to_write(env: Any, says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        GymnaxEnvironment(env)


def test_an_adapter_in_an_adapter_is_refused() -> None:
    env = GymnaxEnvironment(GymnaxEnvironment(Plain()))
    with pytest.raises(PipelineError, match="is an environment of cereal already; pass it as it"):
        env.step(jax.random.key(0), jnp.int32(0), 1)
