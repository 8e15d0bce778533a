"""Rollouts of gymnasium environments, which Python runs and compiled programs call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ..base.capture import eager
from ..base.errors import PipelineError, in_one_line
from ..base.extras import needs
from ..base.numbers import as_optional_count
from ..base.pytree import pytree_dataclass
from ..functions.function import function_name
from ..host.callbacks import raising
from ..pipeline.source import Mask
from ..pipeline.traits import Traits
from .environment import Step
from .gymnasium import GymnasiumEnvironments, Parts
from .rollout import RolloutSource, RolloutState, Transition

_OWNER = "GymnasiumSource"
_SAME_STEP = (
    'gymnasium.make_vec("CartPole-v1", num_envs=8, vector_kwargs={"autoreset_mode": '
    "gymnasium.vector.AutoresetMode.SAME_STEP})"
)


@pytree_dataclass
class GymnasiumSource(RolloutSource):
    """Transitions of a policy in gymnasium environments, which run in Python, on the host.

        compiled:  observation ──policy──► action ─┐   ┌─► reward, next observation, done
        Python:                                    └───┴── envs.step

    `envs` is the id of an environment, or a function that makes one: then `num_envs` of them run in
    this process, and the loader closes them. Or `envs` is a `gymnasium.vector.VectorEnv`, which you
    close yourself; it must reset itself in the same step (`AutoresetMode.SAME_STEP`) or not at all
    (`DISABLED`). For the policy and its state see `cereal.rl.RolloutSource`. It works in `iterate`,
    `jit` and `scan_epoch`, but not in `vmap`, and without gradients through the environment.

    The environments are not part of the loader's state. So a state can be used only once, and an
    old or saved state is refused. `init_state` begins again; the same key begins the same episodes.
    `info` holds only `terminated` and `truncated`, never both True: the `info` of gymnasium has no
    fixed shape. 64-bit observations become 32-bit. Actions are elements of the action space: those
    of `Discrete(3, start=1)` begin with 1.

    >>> import cereal, jax, jax.numpy as jnp
    >>> def policy_step(observation, policy_state, new_episode, key):
    ...     return jax.random.categorical(key, observation @ policy_state["params"]), policy_state
    >>> policy_state = {"params": jnp.zeros((4, 2))}
    >>> source = cereal.rl.GymnasiumSource("CartPole-v1", policy_step, policy_state, num_envs=2)
    >>> with cereal.DataLoader([source, cereal.BatchTransform(16)]) as loader:
    ...     state = loader.set_policy_state(loader.init_state(jax.random.key(0)), policy_state)
    ...     batch, state, mask = loader.next_batch(state)
    >>> batch["state"].shape, sorted(batch["info"])
    ((16, 2, 4), ['terminated', 'truncated'])
    """

    def __init__(
        self,
        envs: Any,
        policy_step_fn: Callable[[Any, Any, Any, Any], tuple[Any, Any]],
        policy_state_template: Any,
        steps_per_epoch: int = 1024,
        num_envs: int | None = None,
        policy_state_axes: Any = None,
    ) -> None:
        environments = _environments(envs, num_envs)
        try:
            super().__init__(
                environments,
                policy_step_fn,
                policy_state_template,
                steps_per_epoch,
                environments.num_envs,
                policy_state_axes,
            )
        except BaseException:
            environments.close()
            raise

    def _describe(self) -> Traits:
        return super()._describe().but(callbacks=(self.env.value.identity,))

    def close(self) -> None:
        """Closes the environments that the source made; `init_state` makes them again."""
        self.env.value.close()

    def init_state(self, key: Any) -> RolloutState:
        """Resets all environments; states that were made before become invalid."""
        with raising(self.traits.callbacks):
            state = super().init_state(key)
            # Waits: Python must have reset them, or failed, before the state is returned.
            return jax.block_until_ready(state) if eager() else state

    def _step(self, state: RolloutState) -> tuple[Transition, Mask, RolloutState]:
        transition, mask, state = super()._step(state)
        return transition, mask & _went_on(state), state

    def _step_many(self, state: RolloutState, n: int) -> tuple[Transition, Mask, RolloutState]:
        transitions, mask, state = super()._step_many(state, n)
        return transitions, mask & _went_on(state), state

    def _reset_all(self, keys: Any) -> tuple[Any, Any]:
        # Gymnasium takes one seed and counts up from it, so the key of the first environment is
        # enough. The seed has 30 bits: some environments allow 31, and counting needs room.
        word = jax.random.key_data(keys).reshape(-1)[0]
        return self.env.value.begin_all(word >> 2)

    def _step_all(self, keys: Any, state: Any, action: Any) -> Step:
        del keys  # gymnasium draws its own numbers
        return self.env.value.step_all(state, action)


def _went_on(state: RolloutState) -> Any:
    """Whether no step failed; a failed step returns generation 0."""
    return state.environment[0] != jnp.uint32(0)


def _environments(envs: Any, num_envs: Any) -> GymnasiumEnvironments:
    gymnasium = needs("gymnasium", "rl", _OWNER)
    count = as_optional_count(num_envs, "num_envs", _OWNER)
    if isinstance(envs, gymnasium.vector.VectorEnv):
        if count not in (None, envs.num_envs):
            raise PipelineError(
                f"{_OWNER}: `envs` has {envs.num_envs} environments, and `num_envs` is {count}; "
                f"leave `num_envs` out."
            )
        parts = _parts(gymnasium, envs)
        return GymnasiumEnvironments(lambda: parts, _name(envs), ours=False)
    if isinstance(envs, gymnasium.Env) or not (isinstance(envs, str) or callable(envs)):
        raise PipelineError(
            f"{_OWNER}: `envs` must be a `gymnasium.vector.VectorEnv`, the id of an environment, "
            f"or a function that makes one, got {type(envs).__name__}; write "
            f'`{_OWNER}("CartPole-v1", ..., num_envs=8)`, or `lambda: MyEnv()` for the id.'
        )
    named = isinstance(envs, str)
    make_one, name = (partial(gymnasium.make, envs), envs) if named else (envs, function_name(envs))
    make = partial(_make, gymnasium, make_one, name, count or 1)
    return GymnasiumEnvironments(make, name, ours=True)


def _make(gymnasium: Any, make_one: Callable[[], Any], name: str, count: int) -> Parts:
    """`count` environments, run one after another by one vector environment."""
    made: list[Any] = []
    try:
        for _ in range(count):
            made.append(_made(gymnasium, make_one, name, made))
        # Gymnasium writes the mode into `metadata`, which all environments of a class share. So
        # the old contents are put back.
        shared, was = made[0].metadata, dict(made[0].metadata)
        envs = gymnasium.vector.SyncVectorEnv(
            [lambda env=env: env for env in made],
            copy=False,  # we copy its observations ourselves
            autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
        )
        envs.metadata = dict(shared)
        shared.clear()
        shared.update(was)
        return _parts(gymnasium, envs)
    except BaseException:
        for env in made:
            env.close()
        raise


def _made(gymnasium: Any, make_one: Callable[[], Any], name: str, others: list[Any]) -> Any:
    try:
        env = make_one()
    except Exception as error:
        raise PipelineError(f"{_OWNER}: {name} could not be made: {in_one_line(error)}") from error
    if not isinstance(env, gymnasium.Env):
        raise PipelineError(
            f"{_OWNER}: the function {name} must make one `gymnasium.Env`, made "
            f"{type(env).__name__}; a vector environment is passed itself, not as a function."
        )
    if any(env is other for other in others):
        raise PipelineError(
            f"{_OWNER}: the function {name} returned the same environment twice; it must make a "
            f"new one at every call."
        )
    return env


def _parts(gymnasium: Any, envs: Any) -> Parts:
    modes = gymnasium.vector.AutoresetMode
    # `metadata` only as a last resort: environments of one class share it, and each writes to it.
    told = getattr(envs.unwrapped, "autoreset_mode", envs.metadata.get("autoreset_mode"))
    mode = modes(told) if told is not None else None
    if mode not in (modes.SAME_STEP, modes.DISABLED):
        how = "does not tell when it resets" if mode is None else "resets in the step after an end"
        raise PipelineError(
            f"{_OWNER}: {_name(envs)} {how} (`AutoresetMode.NEXT_STEP`, gymnasium's default), and "
            f"such a step is no transition; write `{_SAME_STEP}`."
        )
    spaces = (envs.single_observation_space, envs.single_action_space)
    return Parts(envs, *spaces, resets_itself=mode is modes.SAME_STEP)


def _name(envs: Any) -> str:
    spec = getattr(envs, "spec", None)
    return type(envs.unwrapped).__name__ if spec is None else spec.id
