"""Reading several sources in turn. Each of them goes through its own epochs.

    epoch, slot  --table of turns-->  part, how many of its elements came before
                 --divided by its length-->  the part's epoch, place in that epoch
                 --its order-->  index in the part

Slots are counted through all epochs of the mixture. So when an epoch of the mixture ends, a part
goes on where it was. The count does not fit 32 bits, but its quotient and its remainder by the
part's length do. The numbers that this needs are computed once for each part, when the mixture is
built. A step costs the same for two parts and for a thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..base.errors import PipelineError
from ..base.pytree import pytree_dataclass, static_field
from ..device.explicit_axes import gathered
from ..device.transfer import sent
from .interleave import turn_table
from .lane_permutation import permute_lanes
from .ordering import times_before
from .threefry import MIX, key_for, threefry
from .words64 import add_below, fraction_words, times_ratio

# A slot plus the rest of a phase must fit 32 bits.
MOST_SLOTS_IN_EPOCH = 1 << 30
_FIELDS = (
    *("length", "turns", "shuffled"),
    *("epochs", "rest", "rest_high", "rest_low"),  # of the part, in an epoch of the mixture
    *("round_epochs", "round_rest", "round_high", "round_low"),  # ... in a round of the table
    *("first_epoch", "first_place"),  # when the phase begins
)


class Phase(NamedTuple):
    """The turns from position `start` on, which is counted in elements through all epochs."""

    start: int
    parts: tuple[int, ...]


class _Round(NamedTuple):
    """One round of a phase's table of turns: the numbers that `Mixing.walk` calculates with."""

    epoch: int  # where the phase begins
    place: int
    slots: int  # in a round
    first: int  # row of the table where its slots begin
    rounds: int  # in an epoch of the mixture
    rest: int  # slots of an epoch beyond whole rounds
    rest_high: int
    rest_low: int


@pytree_dataclass
class Mixing:
    """The walk over parts: pure index arithmetic, in NumPy or JAX."""

    slots: Any  # [slots, 2]: part, rank among the part's turns
    parts: Any  # [phases * parts, fields]
    rounds: tuple[_Round, ...] = static_field()
    length: int = static_field()
    count: int = static_field()
    shuffled: str = static_field()  # "all", "none" or "some" parts
    salt: int = static_field(default=0)

    def walk(self, key: Any, epoch: Any, slot: Any) -> tuple[Any, Any, Any]:
        """For these slots of these epochs: the part, its epoch, and the index in the part."""
        xp = np if isinstance(slot, np.ndarray) else jnp
        slots, parts = xp.asarray(self.slots), xp.asarray(self.parts)
        number, now, epoch, slot = self._phase(xp, epoch, slot.astype(xp.uint32))
        turns, at = slot // now.slots, slot % now.slots
        uneven = any(each.rest for each in self.rounds)
        beyond = None
        if uneven:  # incomplete rounds at the ends of earlier epochs add up to more rounds
            fraction = (now.rest_high, now.rest_low)
            beyond, left = times_ratio(epoch, now.rest, now.slots, fraction)
            over, at = add_below(at, left, now.slots)
            turns = turns + over
        part, rank = _columns(xp, slots, now.first + at)
        row = part if number is None else number * np.uint32(self.count) + part
        of = dict(zip(_FIELDS, _columns(xp, parts, row), strict=True))
        n, taken = of["length"], turns * of["turns"] + rank
        whole, place = times_ratio(epoch, of["rest"], n, (of["rest_high"], of["rest_low"]))
        own = epoch * of["epochs"] + whole + taken // n
        more = [taken % n]
        if uneven:
            fraction = (of["round_high"], of["round_low"])
            whole, left = times_ratio(beyond, of["round_rest"], n, fraction)
            own, more = own + beyond * of["round_epochs"] + whole, [*more, left]
        if number is not None:
            own, more = own + of["first_epoch"], [*more, of["first_place"]]
        for left in more:
            over, place = add_below(place, left, n)
            own = own + over
        return part, own, self._index(xp, key, own, part, place, of)

    def _phase(self, xp: Any, epoch: Any, slot: Any) -> tuple[Any, Any, Any, Any]:
        """The phase's number and round, and each lane's (epoch, slot) from the phase's start."""
        if len(self.rounds) == 1:
            words = (np.uint32(word) for word in self.rounds[0])
            return None, _Round(*words), epoch, slot  # type: ignore[arg-type]
        number = xp.zeros(slot.shape, xp.uint32)
        for each in self.rounds[1:]:
            begun = (epoch > np.uint32(each.epoch)) | (
                (epoch == np.uint32(each.epoch)) & (slot >= np.uint32(each.place))
            )
            number = number + begun.astype(xp.uint32)
        table = xp.asarray(np.array(self.rounds, np.uint64).astype(np.uint32))
        now = _Round(*_columns(xp, table, number))
        later = epoch > now.epoch
        zero, length = np.uint32(0), np.uint32(self.length)
        slot = xp.where(later, slot + (length - now.place), slot - now.place)
        return number, now, xp.where(later, epoch - now.epoch - np.uint32(1), zero), slot

    def _index(self, xp: Any, key: Any, own: Any, part: Any, place: Any, of: Any) -> Any:
        wide = np.int64 if xp is np else jnp.int32
        if self.shuffled == "none":
            return place.astype(wide)
        seeds = threefry(key_for(key, self.salt, MIX), (own, part))
        index = permute_lanes(place, seeds, of["length"])
        if self.shuffled == "all":
            return index
        return xp.where(of["shuffled"] > np.uint32(0), index, place.astype(wide))


def _columns(xp: Any, table: Any, row: Any) -> list[Any]:
    """The fields of these rows of a table of words."""
    found = gathered(table, row.astype(np.int64 if xp is np else np.int32))
    return [found[..., field] for field in range(table.shape[-1])]


def make_mixing(
    lengths: Sequence[int],
    phases: Sequence[Phase],
    shuffled: Sequence[bool],
    epoch: int | str,
    owner: str,
) -> Mixing:
    """The walk over parts of these lengths; `epoch` as in `MixSource`."""
    tables = [turn_table(phase.parts) for phase in phases]
    ranks = [times_before(table) for table in tables]
    length = _epoch_length(lengths, phases, tables, epoch, owner)
    rows, rounds, first = [], [], 0
    before = [0] * len(lengths)
    for number, (phase, table) in enumerate(zip(phases, tables, strict=True)):
        slots = len(table)
        whole, rest = divmod(length, slots)
        start, place = divmod(phase.start, length)
        fraction = fraction_words(rest, slots)
        rounds.append(_Round(start, place, slots, first, whole, rest, *fraction))
        for j, n in enumerate(lengths):
            rows.append(_part_row(n, phase.parts[j], whole, shuffled[j], before[j]))
        if number + 1 < len(phases):
            lasts = phases[number + 1].start - phase.start
            before = [given + _turns_in(lasts, table, j) for j, given in enumerate(before)]
        first += slots
    kinds = {bool(flag) for flag, n in zip(shuffled, lengths, strict=True) if n > 1}
    pairs = np.stack([np.concatenate(tables), np.concatenate(ranks)], axis=-1).astype(np.uint32)
    return Mixing(
        jnp.asarray(sent(pairs)),
        jnp.asarray(sent(np.array(rows, np.uint64).astype(np.uint32))),
        tuple(rounds),
        length,
        len(lengths),
        "some" if len(kinds) > 1 else "all" if True in kinds else "none",
    )


def _part_row(n: int, turns: int, rounds: int, shuffled: bool, before: int) -> tuple[int, ...]:
    epochs, rest = divmod(rounds * turns, n)
    round_epochs, round_rest = divmod(turns, n)
    return (
        *(n, turns, int(shuffled)),
        *(epochs & 0xFFFF_FFFF, rest, *fraction_words(rest, n)),
        *(round_epochs, round_rest, *fraction_words(round_rest, n)),
        *((before // n) & 0xFFFF_FFFF, before % n),
    )


def _epoch_length(
    lengths: Sequence[int],
    phases: Sequence[Phase],
    tables: Sequence[np.ndarray],
    epoch: int | str,
    owner: str,
) -> int:
    length = epoch
    if isinstance(length, str):
        ends = [_end_of(j, n, phases, tables) for j, n in enumerate(lengths)]
        read = [end for end in ends if end is not None]
        length = min(read) if epoch == "first" else max(read)
    if not 1 <= length <= MOST_SLOTS_IN_EPOCH:
        raise PipelineError(
            f"{owner}: an epoch of the mixture would have {length} elements, and can have 1 to "
            f"{MOST_SLOTS_IN_EPOCH}; pass a number of elements, `epoch=1_000_000`."
        )
    return length


def _end_of(part: int, n: int, phases: Sequence[Phase], tables: Sequence[np.ndarray]) -> int | None:
    """How many elements the mixture has given when it has read this part once."""
    left = n
    for number, (phase, table) in enumerate(zip(phases, tables, strict=True)):
        turns = phase.parts[part]
        if turns == 0:
            continue
        rounds, turn = divmod(left - 1, turns)
        end = rounds * len(table) + int(np.flatnonzero(table == part)[turn]) + 1
        if number + 1 == len(phases) or phase.start + end <= phases[number + 1].start:
            return phase.start + end
        left -= _turns_in(phases[number + 1].start - phase.start, table, part)
    return None


def _turns_in(slots: int, table: np.ndarray, part: int) -> int:
    """How many of the first `slots` slots are turns of a part, if the table repeats."""
    rounds, rest = divmod(slots, len(table))
    return rounds * int((table == part).sum()) + int((table[:rest] == part).sum())
