"""Series as small line plots.

context            the first feature blue, others in other colours
what comes after   orange, joined to the context
nan, inf           a gap
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .contact_sheet import pillow
from .pixels import extremes, number

_WIDE, _HIGH = 144, 72
_FINE = 4  # plots are drawn larger by this factor and then shrunk, which makes lines smooth
_COLOURS = [(38, 102, 176), (46, 139, 87), (130, 80, 170), (110, 110, 110), (20, 150, 160)]
_AFTER = (225, 110, 20)
_MOST_FEATURES = len(_COLOURS)
_ROOM = 0.08  # the part of the height that stays free above and below


def line_plots(
    series: Sequence[Sequence[np.ndarray]], scale: float | None = None
) -> tuple[list[np.ndarray], str]:
    """The pixels of one plot for each element, and a note about their common range of values.

    An element has one or more series, [T] or [T, F], which follow each other in time.
    """
    parts = [[_as_columns(part) for part in element] for element in series]
    least, most, broken = extremes([part for element in parts for part in element])
    note = f"values {number(least)} to {number(most)}"
    if broken:
        note = f"{note}; not finite, left out: {broken:,}"
    features = max((part.shape[1] for element in parts for part in element), default=0)
    if features > _MOST_FEATURES:
        note = f"{note}; {_MOST_FEATURES} of {features} features"
    size = (round(_WIDE * (scale or 1)), round(_HIGH * (scale or 1)))
    return [_plot(element, least, most, size) for element in parts], note


def _as_columns(part: np.ndarray) -> np.ndarray:
    part = part.astype(np.float64)
    return part.reshape(len(part), -1) if part.ndim else part.reshape(1, 1)


def _plot(parts: list[np.ndarray], least: float, most: float, size: tuple[int, int]) -> np.ndarray:
    image = pillow().Image
    width, height = (max(1, side) * _FINE for side in size)
    canvas = image.new("RGB", (width, height), "white")
    pen = pillow().ImageDraw.Draw(canvas)
    length = sum(len(part) for part in parts)
    # Half of the difference: the difference of two floats may be more than a float can hold.
    span = most / 2 - least / 2
    before, start = np.empty((0, 0)), 0
    for turn, part in enumerate(parts):
        joined = np.concatenate([before[-1:], part]) if before.shape[1] == part.shape[1] else part
        start += len(part)
        x = (start - len(joined) + np.arange(len(joined)) + 0.5) / length
        y = (joined / 2 - least / 2) / span if span else np.where(np.isfinite(joined), 0.5, joined)
        for feature in range(min(part.shape[1], _MOST_FEATURES)):
            colour = _COLOURS[feature] if turn == 0 else _AFTER
            points = np.stack([x, 1 - _ROOM - (1 - 2 * _ROOM) * y[:, feature]], axis=1)
            _line(pen, points * (width, height), colour)
        before = part
    return np.asarray(canvas.resize(size, image.BOX))


def _line(pen: object, points: np.ndarray, colour: tuple[int, int, int]) -> None:
    """Draws a line through the points, with gaps at those that are not finite."""
    broken = np.flatnonzero(~np.isfinite(points).all(axis=1))
    for run in np.split(points, np.unique([*broken, *(broken + 1)]).astype(int)):
        if not len(run) or not np.isfinite(run).all():
            continue
        if len(run) > 1:
            pen.line(list(map(tuple, run)), colour, int(1.5 * _FINE), "curve")  # type: ignore[attr-defined]
        x, y = run[-1]
        r = _FINE * (1.8 if len(run) == 1 else 0.75)
        pen.ellipse((x - r, y - r, x + r, y + r), colour)  # type: ignore[attr-defined]
