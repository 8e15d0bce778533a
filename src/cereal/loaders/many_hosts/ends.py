"""The end of data whose length nobody knows: all processes end an epoch at the same step.

    process 0   0 1 2 3 4 5 6 7 8 9        |    the first that has no more elements for a step
    process 1   0 1 2 3 4 5                |    ends the epoch for all

Otherwise those that have more would wait for the others for ever. Every step asks all processes.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from ...base.capture import callers_level
from ...base.errors import EpochWarning
from ...device.exchange import exchange
from ...device.placement import is_spread


class Ends(NamedTuple):
    """By process: where its iterator ended (None: not yet), and how many elements it surely has."""

    by_process: dict[int, tuple[int | None, int]]

    def first(self, epoch: int) -> int:
        """The end that counts for all, the first one. Warns if the others have more elements."""
        ends = {process: end for process, (end, _) in self.by_process.items() if end is not None}
        first = min(ends.values())
        if max(has for _, has in self.by_process.values()) > first:
            said = ", ".join(
                f"process {process} {'has more' if end is None else f'gave {end}'}"
                for process, (end, has) in sorted(self.by_process.items())
                if end is not None or has > first
            )
            warnings.warn(
                f"the iterators of the processes do not give equally many elements in epoch "
                f"{epoch}: {said}. The epoch ends for all with the first; what the others have "
                f"more is left out. All processes should iterate over the same elements.",
                EpochWarning,
                stacklevel=callers_level(),
            )
        return first


_NONE = (1 << 62) - 1


def agreed_end(end: int | None, over: bool, has: int, placement: Any) -> Ends | None:
    """Where the iterators end, if an epoch is `over` in one of the processes. `end` is where that
    of this process ends, if it is known; it `has` so many elements at least."""
    if not is_spread(placement) or placement.is_local:
        return Ends({0: (end, has)}) if over else None
    numbers = [_NONE if end is None else end, has if end is None else end]
    words = [word for number in numbers for word in (number >> 32, number & 0xFFFF_FFFF)]
    found = exchange(np.array([*words, over], np.uint32), placement.mesh)
    if not any(x[4] for x in found.values()):
        return None
    whole = {p: [(int(x[k]) << 32) | int(x[k + 1]) for k in (0, 2)] for p, x in found.items()}
    return Ends({p: (None if end == _NONE else end, has) for p, (end, has) in whole.items()})
