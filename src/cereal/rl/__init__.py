"""Rollouts: policies and environments as a stream of transitions."""

from .brax import BraxEnvironment as BraxEnvironment
from .environment import Environment as Environment
from .environment import Step as Step
from .gymnax import GymnaxSource as GymnaxSource
from .gymnax_shape import GymnaxEnvironment as GymnaxEnvironment
from .jumanji import JumanjiEnvironment as JumanjiEnvironment
from .navix import NavixEnvironment as NavixEnvironment
from .policy_state import get_policy_state as get_policy_state
from .policy_state import set_loader_policy_state as set_loader_policy_state
from .policy_state import set_source_policy_state as set_source_policy_state
from .returns import gae as gae
from .returns import n_step_returns as n_step_returns
from .returns import reward_to_go as reward_to_go
from .rollout import RolloutSource as RolloutSource
from .rollout import RolloutState as RolloutState
from .rollout import Transition as Transition
