"""The interface of an environment: pure functions of one environment.

    reset(key)                 -> (observation, state)
    step(key, state, action)   -> Step(observation, state, reward, done, truncated, info)

An environment does not reset itself: if `done` is True, the rollout resets it, and the observation
of that `Step` is the last one of its episode. (One that does reset itself fills `resumed`.) The
rollout does the rest: it maps over many environments, makes keys and calls the policy.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable


class Step(NamedTuple):
    """The result of one step of one environment.

        observation   after the action; at the end of an episode, its last observation
        state         of the environment, after the action
        reward        a number
        done          whether the episode has ended, for any reason
        truncated     whether a time limit ended it; None if the environment does not report this
        info          a dict of arrays, or any pytree
        resumed       None; or, if the environment resets itself, the (observation, state) with
                      which it continues

    `step` of an environment returns it; see `Environment`.
    """

    observation: Any
    state: Any
    reward: Any
    done: Any
    truncated: Any = None
    info: Any = {}  # noqa: RUF012 (read only)
    resumed: Any = None


@runtime_checkable
class Environment(Protocol):
    """The methods that an environment must have; write a class with them for your own.

    They are pure functions. The object must be a pytree (`@cereal.pytree_dataclass`) or hashable.

    >>> import cereal, jax, jax.numpy as jnp
    >>> @cereal.pytree_dataclass
    ... class Corridor:
    ...     length: int = cereal.static_field(default=3)
    ...     def reset(self, key):
    ...         return jnp.float32(0), jnp.int32(0)
    ...     def step(self, key, state, action):
    ...         state = state + action
    ...         end = state >= self.length
    ...         return cereal.rl.Step(state.astype(jnp.float32), state, -1.0, end)
    ...     def action_spec(self):
    ...         return jax.ShapeDtypeStruct((), jnp.int32)
    >>> def walk(observation, policy_state, new_episode, key):
    ...     return jnp.int32(1), policy_state
    >>> source = cereal.rl.RolloutSource(Corridor(), walk, None, steps_per_epoch=4)
    >>> loader = cereal.DataLoader([source, cereal.BatchTransform(4)])
    >>> batch, state, mask = loader.next_batch(loader.init_state(0))
    >>> batch["state"].tolist(), batch["next_state"].tolist(), batch["done"].tolist()
    ([0.0, 1.0, 2.0, 0.0], [1.0, 2.0, 3.0, 1.0], [False, False, True, False])
    """

    def reset(self, key: Any) -> tuple[Any, Any]:
        """The first observation of an episode, and the state of the environment."""
        ...

    def step(self, key: Any, state: Any, action: Any) -> Step:
        """Takes one action."""
        ...

    def action_spec(self) -> Any:
        """A tree of `jax.ShapeDtypeStruct` of one action; None: actions are not checked."""
        ...
