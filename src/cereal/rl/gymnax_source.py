"""Rollouts of gymnax environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base.errors import PipelineError
from ..base.pytree import pytree_dataclass
from .gymnax import GymnaxEnvironment
from .policies import wrapper_of
from .rollout import RolloutSource


@pytree_dataclass
class GymnaxSource(RolloutSource):
    """Transitions of a policy in environments of gymnax, or with its interface (Craftax).

        num_envs=1     an element is one step:               {"state": [4], "done": [], ...}
        num_envs=64    ... one step of all 64 environments:  {"state": [64, 4], ...}
        BatchTransform(128) makes segments [128, 64, ...]

    `env_params=None` uses the environment's `default_params`. For the other arguments see
    `cereal.rl.RolloutSource`.

    >>> import cereal, gymnax, jax, jax.numpy as jnp
    >>> env, env_params = gymnax.make("CartPole-v1")
    >>> def policy_step(observation, policy_state, new_episode, key):
    ...     return jax.random.categorical(key, observation @ policy_state["params"]), policy_state
    >>> policy_state = {"params": jnp.zeros((4, 2))}
    >>> source = cereal.GymnaxSource(env, env_params, policy_step, policy_state, num_envs=2)
    >>> loader = cereal.DataLoader([source, cereal.BatchTransform(16)])
    >>> state = loader.set_policy_state(loader.init_state(jax.random.key(0)), policy_state)
    >>> batch, state, mask = loader.next_batch(state)
    >>> sorted(batch), batch["state"].shape
    (['action', 'done', 'info', 'next_state', 'reward', 'state'], (16, 2, 4))
    """

    def __init__(
        self,
        env: Any,
        env_params: Any = None,
        policy_step_fn: Callable[[Any, Any, Any, Any], Any] | None = None,
        policy_state_template: Any = None,
        steps_per_epoch: int = 1024,
        num_envs: int = 1,
        policy_state_axes: Any = None,
        **options: Any,
    ) -> None:
        for name in options:
            if name in ("policy_fn", "policy_params"):
                raise PipelineError(
                    f"GymnaxSource has no `{name}=`: a policy is `policy_step_fn=`, and its "
                    f"parameters are in its state; {wrapper_of('GymnaxSource')}"
                )
            raise PipelineError(
                f"GymnaxSource got an unknown option `{name}=`; it takes `env`, `env_params`, "
                f"`policy_step_fn`, `policy_state_template`, `steps_per_epoch`, `num_envs` and "
                f"`policy_state_axes`."
            )
        if policy_step_fn is None:
            raise PipelineError(
                "GymnaxSource needs a policy: pass `policy_step_fn=policy_step`, a function "
                "`policy_step(observation, policy_state, new_episode, key) -> (action, "
                "policy_state)`."
            )
        super().__init__(
            GymnaxEnvironment(env, env_params),
            policy_step_fn,
            policy_state_template,
            steps_per_epoch,
            num_envs,
            policy_state_axes,
        )
