"""Adapters of Brax, Jumanji and Navix, on small environments written in their shapes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from cereal import BatchTransform, DataLoader, PipelineError
from cereal.rl import (
    BraxEnvironment,
    Environment,
    JumanjiEnvironment,
    NavixEnvironment,
    RolloutSource,
)

KEY = jax.random.key(0)


# Brax


@struct.dataclass
class BraxState:
    obs: Any
    reward: Any
    done: Any
    metrics: dict[str, Any]
    info: dict[str, Any]


class Cart:
    """Pushed along a line until it is over 2; writes into the state that it gets, as Brax does."""

    action_size = 1

    def reset(self, rng: Any) -> BraxState:
        zero = jnp.zeros(())
        return BraxState(zero, zero, zero, {"place": zero}, {"pushes": zero})

    def step(self, state: BraxState, action: Any) -> BraxState:
        place = state.obs + action[0]
        state.metrics.update(place=place)
        state.info["pushes"] += 1
        done = jnp.where(place > 2, 1.0, 0.0)
        return state.replace(obs=place, reward=-place, done=done)  # type: ignore[attr-defined]


class Wrapper:
    """A wrapper that passes on what it has not."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


class EpisodeWrapper(Wrapper):
    """Ends an episode after two steps."""

    def reset(self, rng: Any) -> BraxState:
        state = self.env.reset(rng)
        state.info.update(steps=jnp.zeros(()), truncation=jnp.zeros(()))
        return state

    def step(self, state: BraxState, action: Any) -> BraxState:
        state = self.env.step(state, action)
        steps = state.info["steps"] + 1
        over = jnp.where(steps >= 2, 1.0, 0.0)
        state.info.update(steps=steps, truncation=over * (1 - state.done))
        return state.replace(done=jnp.maximum(over, state.done))  # type: ignore[attr-defined]


AutoResetWrapper = type("AutoResetWrapper", (Wrapper,), {})
MyAutoReset = type("MyAutoReset", (AutoResetWrapper,), {})
DomainRandomizationVmapWrapper = type("DomainRandomizationVmapWrapper", (Wrapper,), {})


def test_a_step_of_brax_is_its_state_taken_apart() -> None:
    env = BraxEnvironment(Cart())
    assert isinstance(env, Environment)
    observation, state = env.reset(KEY)
    assert float(observation) == 0
    found = []
    for push in (2.0, 1.0):
        step = jax.jit(env.step)(KEY, state, jnp.asarray([push]))
        state = step.state
        assert step.done.dtype == jnp.bool_
        assert step.truncated is None
        assert step.resumed is None
        info = {name: float(value) for name, value in step.info.items() if name != "metrics"}
        metrics = float(step.info["metrics"]["place"])
        found.append((float(step.observation), float(step.reward), bool(step.done), info, metrics))
    assert found == [
        (2.0, -2.0, False, {"pushes": 1.0}, 2.0),
        (3.0, -3.0, True, {"pushes": 2.0}, 3.0),
    ]


def test_a_time_limit_of_brax_is_told_from_an_end() -> None:
    env = BraxEnvironment(EpisodeWrapper(Cart()))
    for pushes, ends in (
        ((0.0, 0.0), [(False, False), (True, True)]),
        ((0.0, 3.0), [(False, False), (True, False)]),
        ((3.0,), [(True, False)]),
    ):
        _, state = env.reset(KEY)
        found = []
        for push in pushes:
            step = env.step(KEY, state, jnp.asarray([push]))
            state = step.state
            assert step.truncated is not None
            assert step.truncated.dtype == jnp.bool_
            assert step.info.keys() == {"pushes", "steps", "metrics"}
            found.append((bool(step.done), bool(step.truncated)))
        assert found == ends


def test_a_state_of_brax_is_not_written_into() -> None:
    env = BraxEnvironment(EpisodeWrapper(Cart()))
    _, state = env.reset(KEY)
    before = jax.tree.map(float, state)
    one, two = (env.step(KEY, state, jnp.ones(1)) for _ in range(2))
    assert jax.tree.map(float, state) == before
    assert jax.tree.map(float, one) == jax.tree.map(float, two)


def test_actions_of_brax_are_a_vector_of_floats() -> None:
    spec = BraxEnvironment(EpisodeWrapper(Cart())).action_spec()
    assert spec == jax.ShapeDtypeStruct((1,), jnp.float32)


@pytest.mark.parametrize("wrap", [AutoResetWrapper, MyAutoReset])
def test_a_brax_environment_that_resets_itself_is_refused_at_any_depth(wrap: Any) -> None:
    for env in (wrap(Cart()), EpisodeWrapper(wrap(EpisodeWrapper(Cart())))):
        with pytest.raises(PipelineError, match=r"write `brax.envs.create\(name, auto_reset=False"):
            BraxEnvironment(env)


def test_many_brax_environments_in_one_are_refused() -> None:
    many = DomainRandomizationVmapWrapper(Cart())
    for env in (many, EpisodeWrapper(many), VmapWrapper(Cart())):
        with pytest.raises(PipelineError, match=r"without `batch_size`, and `num_envs=` in the"):
            BraxEnvironment(env)


# Jumanji


@struct.dataclass
class TimeStep:
    step_type: Any
    reward: Any
    discount: Any
    observation: Any
    extras: Any

    def last(self) -> Any:
        return self.step_type == 2


class Spec:
    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype


class Nested:
    def generate_value(self) -> Any:
        return {"move": jnp.zeros((), jnp.int32), "turn": jnp.zeros(2)}


class Board:
    """Two agents; the number of the move says how the episode goes on."""

    action_spec: Any = Spec((), jnp.int32)

    def __init__(self, extras: Any = None) -> None:
        self.extras = extras

    def reset(self, key: Any) -> Any:
        return jnp.int32(0), TimeStep(jnp.int8(0), jnp.zeros(2), jnp.ones(2), jnp.zeros(3), None)

    def step(self, state: Any, action: Any) -> Any:
        ends, discount = jnp.asarray([1, 2, 2, 2], jnp.int8), jnp.asarray([1.0, 0.0, 1.0, 0.5])
        both = jnp.stack([discount[action], jnp.where(action == 3, 0.0, discount[action])])
        reward, seen = jnp.asarray([1.0, 2.0]), jnp.full(3, state + 1)
        return state + 1, TimeStep(ends[action], reward, both, seen, self.extras)


class WithBoard:
    """A wrapper as Jumanji's are."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


VmapWrapper = type("VmapWrapper", (WithBoard,), {})
VmapAutoResetWrapper = type("VmapAutoResetWrapper", (WithBoard,), {})
BoardAutoResetWrapper = type("BoardAutoResetWrapper", (WithBoard,), {})


@pytest.mark.parametrize(
    ("action", "done", "truncated"),
    [(0, False, False), (1, True, False), (2, True, True), (3, True, True)],
    ids=["goes on", "ends", "cut off", "cut off for one agent"],
)
def test_a_last_step_of_jumanji_with_a_discount_was_cut_off(
    action: int, done: bool, truncated: bool
) -> None:
    env = JumanjiEnvironment(Board({"score": jnp.float32(7)}))
    assert isinstance(env, Environment)
    observation, state = env.reset(KEY)
    assert observation.tolist() == [0, 0, 0]
    step = jax.jit(env.step)(KEY, state, jnp.int32(action))
    assert bool(step.done) is done
    assert step.truncated is not None
    assert bool(step.truncated) is truncated
    assert step.reward.tolist() == [1.0, 2.0]
    assert step.observation.tolist() == [1, 1, 1]
    assert step.info == {"score": 7}
    assert int(step.state) == 1
    assert step.resumed is None
    assert JumanjiEnvironment(Board(extras=None)).step(KEY, state, action).info == {}


def test_actions_of_jumanji_are_as_its_spec_says() -> None:
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    assert JumanjiEnvironment(Board()).action_spec() == scalar
    found = []
    for spec in (Spec((2,), jnp.int16), Nested(), lambda: Spec((), jnp.int32), object()):
        board = Board()
        board.action_spec = spec
        found.append(JumanjiEnvironment(WithBoard(board)).action_spec())
    nested = {"move": scalar, "turn": jax.ShapeDtypeStruct((2,), jnp.float32)}
    assert found == [jax.ShapeDtypeStruct((2,), jnp.int16), nested, scalar, None]


def test_wrappers_of_jumanji_that_reset_or_map_are_refused_at_any_depth() -> None:
    for wrap in (VmapWrapper, VmapAutoResetWrapper):
        with pytest.raises(PipelineError, match=r"is many environments.*`num_envs=` to the source"):
            JumanjiEnvironment(WithBoard(wrap(Board())))
    with pytest.raises(PipelineError, match=r"by itself.*; pass the environment inside it"):
        JumanjiEnvironment(WithBoard(BoardAutoResetWrapper(Board())))


# Navix


@struct.dataclass
class Timestep:
    t: Any
    observation: Any
    reward: Any
    step_type: Any
    info: Any


@struct.dataclass
class Space:
    shape: Any = struct.field(pytree_node=False)
    dtype: Any = struct.field(pytree_node=False)
    maximum: Any = None


class Grid(struct.PyTreeNode):
    """A move of 2 ends, and so does the third step; a step after the end begins again."""

    action_space: Any = struct.field(pytree_node=False)
    start: Any = None

    def reset(self, key: Any) -> Timestep:
        start = jnp.int32(10) if self.start is None else self.start
        return Timestep(jnp.int32(0), start, jnp.float32(0), jnp.int32(0), {"moves": 0})

    def step(self, timestep: Timestep, action: Any) -> Timestep:
        t, place = timestep.t + 1, timestep.observation + action
        kind = jnp.where(action == 2, 2, jnp.where(t >= 3, 1, 0))
        made = Timestep(t, place, -1.0 * action, kind, {"moves": t})
        first, over = self.reset(KEY), timestep.step_type > 0
        return jax.tree.map(lambda a, b: jnp.where(over, a, b), first, made)


def grid(start: Any = None) -> Grid:
    return Grid(Space((), jnp.int32, jnp.arange(3)), start)


def test_ends_of_navix_are_told_apart() -> None:
    env = NavixEnvironment(grid())
    assert isinstance(env, Environment)
    for moves, ends in (
        ((1, 1, 1), [(11, False, False), (12, False, False), (13, True, True)]),
        ((1, 2), [(11, False, False), (13, True, False)]),
    ):
        observation, state = env.reset(KEY)
        assert int(observation) == 10
        found = []
        for count, move in enumerate(moves):
            step = jax.jit(env.step)(KEY, state, jnp.int32(move))
            state = step.state
            assert float(step.reward) == -move
            assert int(step.info["moves"]) == count + 1
            assert step.resumed is None
            found.append((int(step.observation), bool(step.done), bool(step.truncated)))
        assert found == ends


def test_no_step_of_navix_is_spent_on_a_reset() -> None:
    env = NavixEnvironment(grid())
    _, state = env.reset(KEY)
    over = env.step(KEY, state, jnp.int32(2))
    assert int(grid().step(over.state, 1).observation) == 10
    assert int(env.step(KEY, over.state, jnp.int32(1)).observation) == 13


def test_two_navix_environments_can_be_in_one_program() -> None:
    one, two = NavixEnvironment(grid()), NavixEnvironment(grid())

    @jax.jit
    def first(env: Any) -> Any:
        return env.reset(KEY)[0]

    assert int(jax.jit(lambda: first(one) + first(two))()) == 20
    same = grid()
    structures = [jax.tree.structure(NavixEnvironment(same)) for _ in range(2)]
    assert structures[0] == structures[1]
    assert hash(structures[0]) == hash(structures[1])


def test_a_navix_environment_with_arrays_in_it_can_be_mapped_over() -> None:
    starts = jnp.arange(3)
    found = jax.vmap(lambda start: NavixEnvironment(grid(start)).reset(KEY)[0])(starts)
    assert found.tolist() == [0, 1, 2]
    assert jax.tree.leaves(NavixEnvironment(grid(5))) == [5]


def test_actions_of_navix_are_as_its_space_says() -> None:
    assert NavixEnvironment(grid()).action_spec() == jax.ShapeDtypeStruct((), jnp.int32)


# In a rollout


class Dice:
    """Keeps a key in its state, as most environments of Jumanji and Navix do."""

    action_spec: Any = Spec((), jnp.int32)

    def reset(self, key: Any) -> Any:
        seen = jnp.zeros((), jnp.int32)
        return (key, seen), TimeStep(jnp.int8(0), jnp.zeros(()), jnp.ones(()), seen, {})

    def step(self, state: Any, action: Any) -> Any:
        key, draw = jax.random.split(state[0])
        seen = jax.random.randint(draw, (), 1, 7)
        kind, reward = jnp.where(seen == 6, 2, 1).astype(jnp.int8), jnp.ones(())
        return (key, seen), TimeStep(kind, reward, jnp.where(seen == 6, 0.0, 1.0), seen, {})


@pytest.mark.parametrize("count", [1, 3])
def test_an_environment_may_keep_a_key_in_its_state(count: int) -> None:
    def act(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        return jnp.int32(0), policy_state

    source = RolloutSource(JumanjiEnvironment(Dice()), act, None, num_envs=count)
    loader = DataLoader([source, BatchTransform(64)])
    state = loader.set_policy_state(loader.init_state(KEY), None)
    batch, _, _ = loader.next_batch(state)
    seen, done = (batch[name].reshape(64, count) for name in ("next_state", "done"))
    assert set(np.unique(seen)) == {1, 2, 3, 4, 5, 6}
    np.testing.assert_array_equal(done, seen == 6)
    first = np.where(done, 0, seen)[:-1]
    np.testing.assert_array_equal(batch["state"].reshape(64, count)[1:], first)


# What is something else


@pytest.mark.parametrize(
    ("adapter", "says"),
    [
        (BraxEnvironment, r"no `action_size`; write `brax.envs.create\(name, auto_reset=False\)`"),
        (JumanjiEnvironment, r"no `action_spec`; write `jumanji.make\(name\)`"),
        (NavixEnvironment, r"no `action_space`; write `navix.make\(name\)`"),
    ],
)
def test_what_is_no_such_environment_is_refused(adapter: Any, says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        adapter(SimpleNamespace(reset=None, step=None))
    with pytest.raises(PipelineError, match="got str, which has no `reset`"):
        adapter("ant")
