"""What a rollout gives at every step, and what it carries from one to the next."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

import jax

from ..base.pytree import pytree_dataclass
from ..loaders.policy_slot import PolicySlot


class Transition(TypedDict):
    """What a rollout gives per step; each part has a leading axis N if there are N environments.

        state        what the policy saw
        action       what it did
        reward       what it got for it
        next_state   what came of it; where `done`, the last observation of the episode
        done         whether the episode has ended
        info         what the environment tells besides; `terminated` and `truncated`, if it does
        extras       what the policy returned besides, if it does: log-probabilities, say

    The next transition's `state` is this one's `next_state`, or where `done` the first observation
    of another episode.
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
    """Where a rollout is: the environments, what they show, and the policy.

        environment, observation, new_episode    of each environment
        policy                                   the slot that `set_policy_state` fills
        keys, steps                              what is random in the next step

    All of it is arrays, so a rollout goes on exactly after being stored.
    """

    environment: Any
    observation: Any
    new_episode: jax.Array
    policy: PolicySlot
    keys: jax.Array  # two words per environment
    steps: jax.Array  # made so far: two words
