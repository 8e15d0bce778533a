"""Replay: what came before is stored, and drawn again.

BufferTransform    elements, one for one: to mix a stream, or to keep a reservoir of it
ReplayTransform    batches of stored steps: uniform, prioritized, n-step, sequences, a queue
"""

from .buffer import BufferTransform as BufferTransform
from .fill_and_read import fill_replay as fill_replay
from .fill_and_read import read_replay as read_replay
from .mixed import MixedBatchesSource as MixedBatchesSource
from .priorities import set_priorities as set_priorities
from .replay import ReplayTransform as ReplayTransform
from .report import ReplayReport as ReplayReport
from .report import replay_report as replay_report
