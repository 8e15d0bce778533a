"""What goes wrong with GymnasiumSource: environments that fail, and states that do not fit."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

import cereal
from cereal import PipelineError, StateError, UsageError
from cereal.rl.gymnasium_source import GymnasiumSource

BOX = spaces.Box(-1, 1, (2,), np.float32)
ANEW = r"begin again: `state = loader.init_state\(key\)`"


class Faulty(gymnasium.Env):
    """Does `fault` once it is armed and has made so many steps."""

    def __init__(self, fault: Any = None, at: int = 5, space: Any = BOX) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)
        self.fault, self.at, self.steps = fault, at, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if self.at < 0:
            return self.fault(), {}
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        seen = np.full(2, self.steps, np.float32)
        if self.steps == self.at and self.fault is not None:
            seen = self.fault()
        self.steps += 1
        return seen, 1.0, False, False, {}


class TrapError(Exception):
    pass


def trap() -> Any:
    raise TrapError("the floor gave way")


def walk(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
    return jnp.int32(1), policy_state


def act(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
    return policy_state, policy_state


def loader_of(envs: Any, policy: Any = walk, template: Any = None, **options: Any) -> Any:
    source = GymnasiumSource(envs, policy, template, 16, **options)
    return cereal.DataLoader([source, cereal.BatchTransform(4)])


def stepped_to(batch: Any) -> list[float]:
    return np.asarray(batch["next_state"]).reshape(-1, 2)[:, 0].tolist()


# Environments that fail


@pytest.mark.parametrize("way", ["next_batch", "iterate", "scan_epoch"])
def test_an_error_of_an_environment_is_raised_as_it_is(way: str) -> None:
    envs = [Faulty(trap)]
    loader = loader_of(lambda: envs[0])
    state = loader.init_state(0)
    batches = loader.iterate(state)
    if way == "iterate":
        assert stepped_to(next(batches)[0]) == [0, 1, 2, 3]
    elif way == "next_batch":
        _, state, _ = loader.next_batch(state)
    run = {
        "next_batch": lambda: loader.next_batch(state),
        "iterate": lambda: next(batches),
        "scan_epoch": lambda: loader.scan_epoch(state, None, lambda carry, *_: (carry, None)),
    }
    with pytest.raises(TrapError, match="the floor gave way") as caught:
        run[way]()
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-1] == "trap"
    note = "raised in step 5 of <lambda>, whose observations are float32[2]"
    assert note in caught.value.__notes__[0]
    # What is left is neither here nor there: only a new beginning helps.
    with pytest.raises(StateError, match=f"stopped: step 5 failed with TrapError.*{ANEW}"):
        loader.next_batch(batches.state if way == "iterate" else state)
    envs[0].fault = None
    batch, _, mask = loader.next_batch(loader.init_state(0))
    assert mask.all()
    assert stepped_to(batch) == [0, 1, 2, 3]


def test_an_error_of_a_reset_is_raised_by_init_state() -> None:
    env = Faulty(trap, at=-1)
    loader = loader_of(lambda: env)
    with pytest.raises(TrapError, match="the floor gave way") as caught:
        loader.init_state(0)
    assert "raised in `reset`" in caught.value.__notes__[0]
    env.at, env.fault = 5, None
    assert loader.next_batch(loader.init_state(0))[2].all()


@pytest.mark.parametrize("batched", [True, False])
def test_an_error_in_the_users_own_program_is_raised_and_the_environments_stop(
    capfd: Any, batched: bool
) -> None:
    loader = loader_of(lambda: Faulty(trap, at=0))
    loader = loader if batched else cereal.DataLoader(loader.source.source)
    program = jax.jit(lambda loader, state: loader.next_batch(state))
    state = loader.init_state(0)
    with pytest.raises(jax.errors.JaxRuntimeError, match="TrapError: the floor gave way") as caught:
        jax.block_until_ready(program(loader, state))
    assert "in trap" in str(caught.value)
    capfd.readouterr()  # JAX prints it too
    with pytest.raises(StateError, match=f"stopped: step 0 failed with TrapError.*{ANEW}"):
        loader.next_batch(state)


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (lambda: np.zeros(3, np.float32), ValueError, "Output array"),
        (lambda: np.zeros(2, complex), TypeError, "(?i)cast"),
        (lambda: None, ValueError, "Output array"),
    ],
)
def test_an_observation_that_is_not_of_its_space_is_refused(
    fault: Any, error: Any, message: str
) -> None:
    loader = loader_of(lambda: Faulty(fault))
    _, state, _ = loader.next_batch(loader.init_state(0))
    with pytest.raises(error, match=message) as caught:
        loader.next_batch(state)
    assert "whose observations are float32[2]" in caught.value.__notes__[0]


def test_nan_is_an_observation() -> None:
    loader = loader_of(lambda: Faulty(lambda: np.full(2, np.nan, np.float32), at=1))
    batch, _, mask = loader.next_batch(loader.init_state(0))
    assert mask.all()
    np.testing.assert_array_equal(stepped_to(batch), [0, np.nan, 2, 3])


def test_an_environment_that_computes_with_jax_says_where_it_belongs() -> None:
    loader = loader_of(lambda: Faulty(lambda: np.asarray(jnp.sin(jnp.ones(2)))))
    _, state, _ = loader.next_batch(loader.init_state(0))
    with pytest.raises(RuntimeError, match="no_execution") as caught:
        loader.next_batch(state)
    assert "write it as a `cereal.rl.Environment`" in caught.value.__notes__[1]


class Vector(VectorEnv):
    """Two environments in one, which ends both in every step; parts of it can be replaced."""

    def __init__(self, mode: Any = AutoresetMode.SAME_STEP) -> None:
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.num_envs, self.single_observation_space = 2, BOX
        self.single_action_space = spaces.Discrete(2)
        self.parts: dict[str, Any] = {}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.parts.get("first", np.zeros((2, 2), np.float32)), {}

    def step(self, actions: Any) -> Any:
        ends = self.parts.get("ends", np.ones(2, bool))
        rewards = self.parts.get("rewards", np.ones(2))
        return self.reset()[0], rewards, ends, np.zeros(2, bool), self.parts.get("info", {})


def test_a_vector_environment_must_keep_its_word() -> None:
    envs = Vector()
    loader = loader_of(envs)
    for parts, message in (
        ({}, r"environment 0 ended and there is no last observation in `info\[\"final_obs\"\]`"),
        ({"rewards": np.ones((2, 1))}, r"gave rewards of shape \(2, 1\).*\(2,\)"),
        ({"ends": np.array(True)}, r"gave terminations of shape \(\)"),
        ({"info": {"final_obs": np.ones((2, 3))}}, r"`final_obs` of Vector gave float64\[3\]"),
    ):
        envs.parts = parts
        state = loader.init_state(0)
        with pytest.raises(PipelineError, match=message):
            loader.next_batch(state)
    for first in (np.zeros((1, 2), np.float32), np.zeros((2, 2), complex)):
        envs.parts = {"first": first}
        with pytest.raises(PipelineError, match=r"`reset` of Vector gave .*promises float32\[2,2"):
            loader.init_state(0)
    last = np.array([[1, 2], [3, 4]])
    envs.parts = {"info": {"final_obs": last.astype(float)}}
    batch = loader.next_batch(loader.init_state(0))[0]
    np.testing.assert_array_equal(batch["next_state"], np.stack([last] * 4))
    np.testing.assert_array_equal(batch["state"], np.zeros((4, 2, 2)))


def test_an_action_outside_of_its_space_is_named() -> None:
    class Started(Faulty):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Discrete(3, start=1)

    loader = loader_of(Started, act, jnp.int32(0), num_envs=2)
    for action in (0, 4):
        state = loader.set_policy_state(loader.init_state(0), action)
        message = rf"gave the action \[{action}, {action}\], .*whose actions are 1 to 3"
        with pytest.raises(PipelineError, match=message):
            loader.next_batch(state)
    state = loader.set_policy_state(loader.init_state(0), 3)
    assert loader.next_batch(state)[2].all()


# States that do not fit


def test_a_state_that_was_used_is_refused_and_the_last_one_goes_on() -> None:
    loader = loader_of(lambda: Faulty(), num_envs=2)
    first = loader.init_state(0)
    _, second, _ = loader.next_batch(first)
    message = f"used already: it is of step 0, and <lambda> is at step 4.*{ANEW}"
    for _ in range(2):
        with pytest.raises(StateError, match=message):
            loader.next_batch(first)
    batch, _, mask = loader.next_batch(second)
    assert mask.all()
    assert stepped_to(batch)[::2] == [4, 5, 6, 7]


def test_two_iterators_on_one_source_are_refused() -> None:
    loader = loader_of(Faulty)
    state = loader.init_state(0)
    one, two = loader.iterate(state), loader.iterate(state)
    next(one)
    with pytest.raises(StateError, match="one iterator at a time"):
        next(two)
    assert stepped_to(next(one)[0]) == [4, 5, 6, 7]


def test_a_state_ends_when_another_begins() -> None:
    loader, other = loader_of(Faulty), loader_of(Faulty)
    old, new, strange = loader.init_state(0), loader.init_state(0), other.init_state(0)
    for state in (old, strange):
        with pytest.raises(StateError, match=f"not of the episodes that Faulty is playing.*{ANEW}"):
            loader.next_batch(state)
    assert loader.next_batch(new)[2].all()


def test_a_state_does_not_outlive_its_environments() -> None:
    loader = loader_of(Faulty)
    state = loader.init_state(0)
    loader.close()
    with pytest.raises(StateError, match=f"Faulty was closed.*{ANEW}"):
        loader.next_batch(state)


def test_a_policy_that_was_not_set_harms_no_environment() -> None:
    loader = loader_of(Faulty, act, jnp.int32(0))
    state = loader.init_state(0)
    with pytest.raises(UsageError, match="no policy state was set"):
        loader.next_batch(state)
    assert loader.next_batch(loader.set_policy_state(state, 1))[2].all()


def test_environments_are_not_mapped_over() -> None:
    loader = loader_of(Faulty)
    with pytest.raises(UsageError, match="environments that Python runs"):
        jax.vmap(loader.init_state)(jax.random.split(jax.random.key(0), 2))
    states = jax.tree.map(lambda x: jnp.stack([x, x]), loader.init_state(0))
    with pytest.raises(UsageError, match="environments that Python runs"):
        jax.vmap(loader.next_batch)(states)


def test_running_environments_are_not_pickled() -> None:
    with pytest.raises(UsageError, match="build the source where it is needed"):
        pickle.dumps(loader_of(Faulty))


# Sources that cannot be built


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, None])
def test_a_step_that_is_no_transition_is_refused(mode: Any) -> None:
    line = r'write `gymnasium.make_vec\(.*"autoreset_mode": gymnasium.vector.AutoresetMode.SAME'
    with pytest.raises(PipelineError, match=line):
        loader_of(Vector(mode))


def same() -> Any:
    return _ONE


_ONE = Faulty()


@pytest.mark.parametrize(
    ("envs", "num_envs", "message"),
    [
        (_ONE, None, r"function that makes one, got Faulty; write `GymnasiumSource\(\"CartPole"),
        (3, 2, "function that makes one, got int"),
        (lambda: Vector(), 2, "must make one `gymnasium.Env`, made Vector; a vector environment"),
        (same, 2, "the function same returned the same environment twice"),
        (Vector(), 3, "has 2 environments, and `num_envs` is 3; leave `num_envs` out"),
        (Faulty, 0, "`num_envs` must be an integer of at least 1, got 0"),
        ("NoSuchPole-v1", 2, "NoSuchPole-v1 could not be made: NameNotFound"),
        (trap, 2, "trap could not be made: TrapError: the floor gave way"),
    ],
)
def test_what_is_no_environment_is_refused(envs: Any, num_envs: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        loader_of(envs, num_envs=num_envs)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(BOX),
        spaces.Graph(BOX, None),
        spaces.OneOf([BOX, BOX]),
        spaces.Dict({"said": spaces.Tuple((BOX, spaces.Text(5)))}),
    ],
)
def test_spaces_that_are_no_arrays_are_refused(space: Any) -> None:
    place = r" at 'said' at 1" if isinstance(space, spaces.Dict) else ""
    name = "Text" if place else type(space).__name__
    message = rf"an observation{place} of <lambda> is {name}, which is no array of one shape"
    with pytest.raises(PipelineError, match=message):
        loader_of(lambda: Faulty(space=space))


def test_an_episode_is_not_padded_with_steps_that_are_thrown_away() -> None:
    source = GymnasiumSource(SyncVectorEnv([Faulty], autoreset_mode="SameStep"), walk, None, 6)
    with pytest.raises(cereal.PipelineError, match="leave `pad_last_batch` out"):
        cereal.DataLoader([source, cereal.BatchTransform(4, pad_last_batch=True)])
