"""Rollouts: a policy and environments, as a stream of transitions.

    observation --policy--> action --environment--> reward, next observation, done
        ^                                                  |
        +---------------- next observation, or the first of a new episode

A step is one action in each of N environments. Its random numbers are a function of the key, the
number of the environment, and the number of steps made. So environment 3 of 8 sees the same as
environment 3 of 1,024, and n steps at once give the same as n single steps.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..base.capture import eager
from ..base.errors import PipelineError, StateError
from ..base.foreign_errors import maps_what_is_shared
from ..base.numbers import as_count
from ..base.pytree import pytree_dataclass, set_copy, set_fields, static_field
from ..base.spec import Spec, strong
from ..device.platforms import by_platform
from ..device.transfer import sent
from ..functions.compiled import TracedAgain
from ..functions.function import Function
from ..functions.opaque import Opaque, hold
from ..loaders.policy_slot import PolicySlot, empty_slot, get_policy_state, set_policy_state
from ..order.threefry import ROLLOUT, key_for, threefry
from ..order.words64 import plus
from ..pipeline.execute import many_steps
from ..pipeline.source import Mask
from ..pipeline.state import key_words
from ..pipeline.stream_stages import CompiledStream
from ..pipeline.traits import Traits
from .environment import Environment, Step
from .policies import Axes, as_axes, as_policy, as_template, over_environments
from .returns import aligned
from .shape_checks import (
    action_shape,
    environment_name,
    has_long_reset,
    key_shape,
    reset_shapes,
    step_shapes,
    uses_new_episode,
)
from .transition import RolloutState, Transition

_POLICY, _STEP, _RESET, _FIRST = range(4)  # the purposes of the keys of a step
_MOST_KEYS = 1 << 22  # the most keys that are drawn at once


@pytree_dataclass
class RolloutSource(CompiledStream[Transition]):
    """Transitions of a policy in N environments, which have the methods of `Environment`.

        RolloutSource(BraxEnvironment(env), policy_step, template, num_envs=64)
        -> BatchTransform(128)   segments of 128 steps in 64 environments: [128, 64, ...]

    `policy_step_fn(observation, policy_state, new_episode, key) -> (action, policy_state)` is a
    function of one environment. If it returns a third value, the transition holds it as `extras`.

    The policy state (parameters, and the memory of a recurrent policy) is part of the loader's
    state. Before the first step, put it there with `loader.set_policy_state`; it must have the
    structure, shapes and dtypes of `policy_state_template`. `policy_state_axes` is like `in_axes`
    of `jax.vmap`: None for parts that all environments share, 0 for parts of which each environment
    has its own. By default all parts are shared.

    Environments continue across batches and epochs. When an episode ends the next one begins, and
    the policy gets `new_episode=True`. With `num_envs=1` there is no axis for environments.
    `GymnaxSource` shows a complete program.
    """

    env: Opaque
    policy: Function
    _template: Spec = static_field()
    steps_per_epoch: int = static_field()
    num_envs: int = static_field()
    _axes: Axes = static_field()
    spec: Spec = static_field()
    _begins_again: bool = static_field()
    uses_new: bool = static_field()  # whether the policy looks at `new_episode`
    _long_reset: bool = static_field()  # whether a reset takes long to compute

    def __init__(
        self,
        env: Environment,
        policy_step_fn: Callable[[Any, Any, Any, Any], tuple[Any, Any]],
        policy_state_template: Any,
        steps_per_epoch: int = 1024,
        num_envs: int = 1,
        policy_state_axes: Any = None,
    ) -> None:
        owner = type(self).__name__
        steps = as_count(steps_per_epoch, "steps_per_epoch", owner)
        count = as_count(num_envs, "num_envs", owner)
        policy = as_policy(policy_step_fn, owner)
        template = as_template(policy_state_template, owner)
        set_fields(
            self,
            env=hold(_checked(env, owner), owner),
            policy=policy,
            _template=template,
            steps_per_epoch=steps,
            num_envs=count,
            _axes=as_axes(policy_state_axes, template, count, owner),
            spec=None,
            _begins_again=False,
            uses_new=True,
            _long_reset=False,
        )
        begins_again = self._one_environment(owner).resumed is not None
        long_reset = not begins_again and has_long_reset(self.env.value)
        set_fields(self, _begins_again=begins_again, _long_reset=long_reset)
        set_fields(self, spec=self._infer_spec(owner))

    # What it gives

    def element_spec(self) -> Any:
        return self.spec.tree

    def _describe(self) -> Traits:
        return Traits(random=None, envs=self._lanes)

    @property
    def _label(self) -> str:
        many = "" if self.num_envs == 1 else f", num_envs={self.num_envs}"
        return f"{type(self).__name__}({environment_name(self.env.value)}{many})"

    def _one_environment(self, owner: str) -> Step:
        """Checks that policy and environment fit together; returns the shapes of one step."""
        env = self.env.value
        observation, state = reset_shapes(env, owner)
        policy_state = self._axes.of_one(self._template)
        action = action_shape(self.policy, observation, policy_state, env, owner)
        set_fields(self, uses_new=uses_new_episode(self.policy, observation, policy_state))
        return step_shapes(env, observation, state, action, owner)

    def _infer_spec(self, owner: str) -> Spec:
        state = jax.eval_shape(self.init_state, key_shape())
        state = set_copy(state, policy=PolicySlot(self._template.tree, self._template, True))
        try:
            return Spec(jax.eval_shape(self._step, state)[0])
        except ValueError as error:
            if not maps_what_is_shared(error):
                raise
            raise PipelineError(
                f"{owner}: the policy gives each of the {self.num_envs} environments a policy "
                f"state of its own, but `policy_state_axes` shares all or a part of it: "
                f"{self._template}. Say which part is whose, as in `policy_state_axes="
                f'{{"params": None, "hidden": 0}}`, and give the parts of environments a first '
                f"axis of {self.num_envs}."
            ) from error

    # Policies

    set_policy_state = staticmethod(set_policy_state)
    get_policy_state = staticmethod(get_policy_state)

    # States and steps

    def init_state(self, key: Any) -> RolloutState:
        """A state at the beginning of the first episodes; no policy state is set in it."""
        words = sent(key_words(key))
        # Traced at every call, since `reset` may use a variable that has changed.
        return TracedAgain(self._begin)(words) if eager() else self._begin(words)

    def _begin(self, words: Any) -> RolloutState:
        root = key_for((words[0], words[1]), 0, ROLLOUT)
        number = jnp.arange(self.num_envs, dtype=jnp.uint32)
        keys = jnp.stack(threefry(root, (number, jnp.uint32(0))), axis=-1)
        keys = keys if self.num_envs > 1 else keys[0]
        steps = jnp.zeros(2, jnp.uint32)
        first = _as_keys(self._draw(keys, steps, 1, (_FIRST,))[0, ..., 0, :])
        observation, environment = _strong(self._reset_all(first))
        new = jnp.ones(self._lanes, jnp.bool_)
        slot = empty_slot(self._template)
        return RolloutState(environment, observation, new, slot, keys, steps)

    def next(self, state: RolloutState) -> tuple[Transition, Mask, RolloutState]:
        return super().next(_checked_state(state, self))

    def next_many(self, state: RolloutState, n: int) -> tuple[Transition, Mask, RolloutState]:
        return super().next_many(_checked_state(state, self), n)

    def _step(self, state: RolloutState) -> tuple[Transition, Mask, RolloutState]:
        state = _checked_state(state, self)
        words = self._draw(state.keys, state.steps, 1, self._purposes)[0]
        moving, transition = self._advance(self._moving(state), words)
        after = self._after(state, moving, transition["done"], 1)
        return transition, jnp.bool_(True), after

    def _step_many(self, state: RolloutState, n: int) -> tuple[Transition, Mask, RolloutState]:
        """Draws all keys at once, then steps the environments."""
        if n * self.num_envs > _MOST_KEYS:
            return many_steps(self, state, n)
        state = _checked_state(state, self)
        words = self._draw(state.keys, state.steps, n, self._purposes)
        moving, transitions = jax.lax.scan(self._advance, self._moving(state), words)
        after = self._after(state, moving, transitions["done"][-1], n)
        return transitions, jnp.ones(n, jnp.bool_), after

    def _advance(self, moving: _Moving, words: Any) -> tuple[_Moving, Transition]:
        """One step of all environments: the changed part of the state, and the transition."""
        keys = _as_keys(words)
        act = over_environments(self.policy, self._axes, self.num_envs)
        observation = moving.observation
        new = moving.new_episode if self.uses_new else jnp.zeros(self._lanes, jnp.bool_)
        told, policy_state = act(observation, moving.policy_state, new, keys[..., _POLICY])
        action, extras = told
        made = self._step_all(keys[..., _STEP], moving.environment, action)
        done = jnp.asarray(made.done).astype(jnp.bool_)
        if self._begins_again:
            after = made.resumed
        else:
            after = self._begun_again(done, keys[..., _RESET], (made.observation, made.state))
        transition = Transition(
            state=observation,
            action=action,
            reward=made.reward,
            next_state=made.observation,
            done=done,
            info=_info(made, done),
        )
        if extras:
            transition["extras"] = extras[0]
        seen, environment = _strong(after)
        new = done if self.uses_new else None
        return _Moving(environment, seen, new, _strong(policy_state)), _strong(transition)

    def _moving(self, state: RolloutState) -> _Moving:
        # On a GPU, carrying `new_episode` costs a copy of every part of the environments' state.
        new = state.new_episode if self.uses_new else None
        return _Moving(state.environment, state.observation, new, state.policy.get())

    def _after(self, state: RolloutState, moving: _Moving, done: Any, n: int) -> RolloutState:
        slot = PolicySlot(moving.policy_state, state.policy.spec, True)
        steps = jnp.stack(plus(state.steps[0], state.steps[1], jnp.uint32(n)))
        return RolloutState(moving.environment, moving.observation, done, slot, state.keys, steps)

    def _begun_again(self, done: Any, keys: Any, going: Any) -> Any:
        """Resets the environments whose episode has ended.

        To check first whether any episode has ended saves the reset in most steps. But on a GPU the
        check itself takes as long as half a step of CartPole.
        """

        def reset(going: Any) -> Any:
            return _strong(_where(done, self._reset_all(keys), going))

        def reset_if_any(going: Any) -> Any:
            return jax.lax.cond(done.any(), reset, lambda going: going, going)

        if self._long_reset:
            return reset_if_any(_strong(going))
        return by_platform(_strong(going), cpu=reset_if_any, default=reset)

    @property
    def _purposes(self) -> tuple[int, ...]:
        return (_POLICY, _STEP) if self._begins_again else (_POLICY, _STEP, _RESET)

    @property
    def _lanes(self) -> tuple[int, ...]:
        return () if self.num_envs == 1 else (self.num_envs,)

    def _reset_all(self, keys: Any) -> tuple[Any, Any]:
        reset = self.env.value.reset
        return reset(keys) if self.num_envs == 1 else jax.vmap(reset)(keys)

    def _step_all(self, keys: Any, state: Any, action: Any) -> Step:
        step = self.env.value.step
        return (step if self.num_envs == 1 else jax.vmap(step))(keys, state, action)

    def _draw(self, keys: Any, steps: Any, n: int, purposes: tuple[int, ...]) -> Any:
        """The words of keys [n, (environments,) purposes, 2] for the next n steps."""
        high, low = plus(steps[0], steps[1], jnp.arange(n, dtype=jnp.uint32))
        tagged = (high << 2)[:, None] | jnp.asarray([purposes], jnp.uint32)

        def of_one(key: Any) -> Any:
            return jnp.stack(threefry((key[0], key[1]), (low[:, None], tagged)), axis=-1)

        return of_one(keys) if self.num_envs == 1 else jax.vmap(of_one, out_axes=1)(keys)


class _Moving(NamedTuple):
    """The part of the state that a step changes."""

    environment: Any
    observation: Any
    new_episode: Any
    policy_state: Any


def _info(made: Step, done: Any) -> Any:
    if made.truncated is None:
        return made.info
    info = made.info if isinstance(made.info, dict) else {"info": made.info}
    truncated = jnp.asarray(made.truncated).astype(jnp.bool_)
    return {**info, "terminated": done & ~truncated, "truncated": truncated}


def _as_keys(words: Any) -> Any:
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def _where(done: Any, fresh: Any, going: Any) -> Any:
    def pick(a: Any, b: Any) -> Any:
        a, b = jnp.asarray(a), jnp.asarray(b)
        return jnp.where(aligned(done, b), a, b)

    return jax.tree.map(pick, fresh, going)


def _strong(tree: Any) -> Any:
    return jax.tree.map(strong, tree)


def _checked(env: Any, owner: str) -> Any:
    if inspect.isclass(env):
        raise PipelineError(
            f"{owner}: `env` is the class {env.__name__}, not an instance; write "
            f"`{env.__name__}()`."
        )
    if not isinstance(env, Environment) or not callable(env.action_spec):
        raise PipelineError(
            f"{owner}: `env` must have `reset(key)`, `step(key, state, action)` and "
            f"`action_spec()`, as `cereal.rl.Environment` says, got {type(env).__name__}; for "
            f"other libraries there are GymnaxSource, BraxEnvironment, JumanjiEnvironment and "
            f"NavixEnvironment."
        )
    return env


def _checked_state(state: Any, source: RolloutSource) -> RolloutState:
    if not isinstance(state, RolloutState):
        raise StateError(
            f"{source._label}: `state` must be what `init_state(key)` or the last step returned, "
            f"got {type(state).__name__}."
        )
    fix = "make a state with this source's `init_state(key)`."
    theirs, ours = state.new_episode.shape, source._lanes
    if theirs != ours:
        raise StateError(
            f"{source._label}: the state has environments of shape {theirs}, the source {ours}; "
            f"{fix} States of `jax.vmap` go into `jax.vmap(loader.next_batch)`."
        )
    if state.policy.spec != source._template:
        raise StateError(
            f"{source._label}: the state is for policies like {state.policy.spec}, this source for "
            f"{source._template}; {fix}"
        )
    return state
