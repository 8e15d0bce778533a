"""Rollouts: policies and environments as a stream of transitions; and recorded episodes.

    environment   RolloutSource, GymnaxSource, GymnasiumSource          ->  transitions
    episodes      EpisodeSource, MinariSource, RLDSSource               ->  transitions, windows
    transitions   BatchTransform(T)                                     ->  segments [T, N, ...]
    segments      RewardToGoTransform, NStepReturnTransform, GAETransform  ->  returns, advantages

The policy's parameters are in the loader's state: `loader.set_policy_state(state, policy_state)`.
"""

from .adapters import BraxEnvironment as BraxEnvironment
from .adapters import JumanjiEnvironment as JumanjiEnvironment
from .adapters import NavixEnvironment as NavixEnvironment
from .environment import Environment as Environment
from .environment import Step as Step
from .episodes import EpisodeStatisticsTransform as EpisodeStatisticsTransform
from .episodes import episode_statistics as episode_statistics
from .episodes import episode_summary as episode_summary
from .episodes import first_episodes as first_episodes
from .episodes import recent_episodes as recent_episodes
from .gymnasium_source import GymnasiumSource as GymnasiumSource
from .gymnax import GymnaxEnvironment as GymnaxEnvironment
from .gymnax_source import GymnaxSource as GymnaxSource
from .offline.episode_source import EpisodeSource as EpisodeSource
from .offline.minari_source import MinariSource as MinariSource
from .offline.rlds_source import RLDSSource as RLDSSource
from .policies import get_policy_state as get_policy_state
from .policies import set_loader_policy_state as set_loader_policy_state
from .policies import set_source_policy_state as set_source_policy_state
from .replay import BufferTransform as BufferTransform
from .replay import MixedBatchesSource as MixedBatchesSource
from .replay import ReplayReport as ReplayReport
from .replay import ReplayTransform as ReplayTransform
from .replay import fill_replay as fill_replay
from .replay import read_replay as read_replay
from .replay import replay_report as replay_report
from .replay import set_priorities as set_priorities
from .return_stages import GAETransform as GAETransform
from .return_stages import NStepReturnTransform as NStepReturnTransform
from .return_stages import RewardToGoTransform as RewardToGoTransform
from .returns import gae as gae
from .returns import n_step_returns as n_step_returns
from .returns import reward_to_go as reward_to_go
from .rollout import RolloutSource as RolloutSource
from .transition import RolloutState as RolloutState
from .transition import Transition as Transition

# Users see `cereal.rl.gae`, not the module in which it is defined.
for _name, _value in list(globals().items()):
    if not _name.startswith("_") and getattr(_value, "__module__", "").startswith("cereal."):
        _value.__module__ = "cereal.rl"
