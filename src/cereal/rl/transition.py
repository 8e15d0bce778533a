"""The transition that a rollout gives at each step, and the state that it carries."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

import jax

from ..base.pytree import pytree_dataclass
from ..loaders.policy_slot import PolicySlot


class Transition(TypedDict):
    """One step of a rollout; with N > 1 environments, each part has a leading axis N.

        state        the observation that the policy saw
        action       the action that it chose
        reward       the reward for that action
        next_state   the observation after it; where `done`, the last one of the episode
        done         whether the episode has ended
        info         from the environment; with `terminated` and `truncated`, if it reports them
        extras       the policy's third value, if it returns one: log-probabilities, for example

    The next transition begins with this `next_state`; where `done`, with the first observation of
    a new episode.
    """

    state: Any
    action: Any
    reward: Any
    next_state: Any
    done: jax.Array
    info: Any
    extras: NotRequired[Any]


@pytree_dataclass
class RolloutState:
    """The state of a rollout: the environments, their observations, and the policy state.

        environment, observation, new_episode    of each environment
        policy                                   the slot that `set_policy_state` fills
        keys, steps                              from which the next random numbers follow

    All of it is arrays: a rollout that was saved and restored continues exactly.
    """

    environment: Any
    observation: Any
    new_episode: jax.Array
    policy: PolicySlot
    keys: jax.Array  # two words per environment
    steps: jax.Array  # the number of steps made so far, as two words
