"""Many small images on one sheet, with a caption under each.

title
+---+ +---+ +---+
| 7 | | 2 | | X |     faded and crossed out: padding
+---+ +---+ +---+
  7     2    padding
a note about the range of values
"""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..base.atomic import write_atomically
from ..base.errors import PipelineError, UsageError
from ..base.extras import needs
from ..base.paths import as_path
from .lettering import Lettering

_MARGIN, _GAP = 14, 8
_TITLE, _CAPTION, _NOTE = 15, 12, 11  # sizes of letters
_INK, _GREY, _FRAME, _CROSS = (30, 30, 30), (125, 125, 125), (222, 222, 222), (105, 105, 105)
_LEAST, _MOST = 72, 160  # the longest side of an image is scaled into this range
_NARROWEST = 44  # the least width of a cell, so that a caption has room
_WIDEST_TITLE = 520
_SHAPE = 1.4  # the width of a sheet, divided by its height
_MOST_PIXELS = 10**8


@dataclasses.dataclass(frozen=True, repr=False)
class ContactSheet:
    """A picture of some elements, which `preview` returns; a notebook shows it.

    >>> import cereal
    >>> sheet = cereal.preview(cereal.DigitsDataset("test"), count=10)
    >>> sheet.title
    'DigitsDataset test, 10 of 297 elements'
    >>> sheet.png[1:4]
    b'PNG'
    """

    png: bytes
    title: str
    size: tuple[int, int]

    def save(self, path: str | PathLike[str]) -> Path:
        """Writes the PNG and returns its path; a file is never left half written."""
        target = checked_path(path)
        write_atomically(target, lambda file: file.write(self.png))
        return target

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return f"ContactSheet: {self.title}; {self.size[0]} x {self.size[1]} pixels"


def checked_path(path: str | PathLike[str]) -> Path:
    """The path; refuses one with a suffix other than `.png`."""
    target = as_path(path, "path", "a contact sheet")
    if target.suffix.lower() not in ("", ".png"):
        raise UsageError(
            f"a contact sheet is a PNG, and the path is {str(target)!r}; write "
            f"{str(target.with_suffix('.png'))!r}."
        )
    return target


def pillow() -> Any:
    """The modules of Pillow that a sheet needs, imported when they are first used."""
    names = ("Image", "ImageDraw", "ImageFont")
    return SimpleNamespace(**{name: needs(f"PIL.{name}", "images", "preview") for name in names})


def contact_sheet(
    images: Sequence[np.ndarray | None],
    captions: Sequence[str],
    mask: Sequence[bool] | None = None,
    *,
    title: str = "",
    note: str = "",
    columns: int | None = None,
    scale: float | None = None,
) -> ContactSheet:
    """Draws images in rows, each with its caption below.

    Images are uint8 [H, W, 3], of any size; None draws an empty cell. By default small images are
    enlarged and large ones shrunk; `scale` is a fixed factor instead. If the mask of an image is
    False, it is faded and crossed out.
    """
    real = [True] * len(images) if mask is None else list(mask)
    if not len(images) == len(captions) == len(real) or not images:
        raise PipelineError(
            f"a contact sheet needs one caption and one mask per image, and at least one; got "
            f"{len(images)} images, {len(captions)} captions and {len(real)} of the mask."
        )
    letters = Lettering(pillow().ImageFont)
    lines = [c.split("\n") if r else ["padding"] for c, r in zip(captions, real, strict=True)]
    sides = [None if image is None else _sides(image, scale) for image in images]
    room = _Room.for_cells(sides, max(map(len, lines)), columns, letters)
    widest = max(letters.width(title, _TITLE), letters.width(note, _NOTE))
    inside = max(room.grid, min(_WIDEST_TITLE, widest))
    top = _MARGIN + (letters.height(_TITLE) + 6 if title else 0)
    bottom = top + room.height
    end = bottom + (letters.height(_NOTE) + 6 if note else 0)
    sheet = pillow().Image.new("RGB", (inside + 2 * _MARGIN, end + _MARGIN), "white")
    pen = pillow().ImageDraw.Draw(sheet)
    letters.write(pen, title, (_MARGIN, _MARGIN), inside, _TITLE, _INK)
    letters.write(pen, note, (_MARGIN, bottom + 6), inside, _NOTE, _GREY)
    left = _MARGIN + (inside - room.grid) // 2
    for place, image in enumerate(images):
        row, column = divmod(place, room.across)
        x, y = left + column * (room.wide + _GAP), top + row * (room.tall + _GAP)
        own = sides[place] or (room.wide, room.high)
        spot = (x + (room.wide - own[0]) // 2, y + (room.high - own[1]) // 2)
        _paste(sheet, pen, image, own, spot, real[place])
        colour = _INK if real[place] else _GREY
        for number, line in enumerate(lines[place]):
            under = (x + room.wide // 2, y + room.high + 3 + number * letters.height(_CAPTION))
            letters.write_centred(pen, line, under, room.wide + _GAP - 2, _CAPTION, colour)
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return ContactSheet(file.getvalue(), title, sheet.size)


@dataclasses.dataclass(frozen=True)
class _Room:
    """The grid: `wide` and `high` are for an image, `tall` includes its caption."""

    wide: int
    high: int
    tall: int
    across: int
    down: int

    @staticmethod
    def for_cells(
        sides: Sequence[tuple[int, int] | None],
        lines: int,
        columns: int | None,
        letters: Lettering,
    ) -> _Room:
        n = len(sides)
        wide = max([_NARROWEST, *(side[0] for side in sides if side)])
        high = max([side[1] for side in sides if side], default=wide)
        tall = high + 3 + lines * letters.height(_CAPTION)
        across = min(columns or _columns(n, wide, tall), n)
        room = _Room(wide, high, tall, across, -(-n // across))
        if room.grid * room.height > _MOST_PIXELS:
            raise PipelineError(
                f"a contact sheet of {room.grid:,} x {room.height:,} pixels is too large to look "
                f"at; pass a smaller `count=` or `scale=`."
            )
        return room

    @property
    def grid(self) -> int:
        """The width of all columns together."""
        return self.across * (self.wide + _GAP) - _GAP

    @property
    def height(self) -> int:
        """The height of all rows together."""
        return self.down * (self.tall + _GAP) - _GAP


def _sides(image: np.ndarray, scale: float | None) -> tuple[int, int]:
    """(width, height) on the sheet."""
    longest = max(image.shape[:2])
    if scale is None and longest < _LEAST:
        scale = -(-_LEAST // longest)  # a whole number, so that all pixels have one size
    scale = min(1.0, _MOST / longest) if scale is None else scale
    return max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale))


def _columns(n: int, wide: int, tall: int) -> int:
    """The number of columns: the sheet is shaped like a page, with full rows if possible."""

    def cost(across: int) -> float:
        down = -(-n // across)
        shape = across * (wide + _GAP) / (down * (tall + _GAP))
        empty = across * down - n
        return abs(math.log(shape / _SHAPE)) + (0.6 if empty else 0) + 2 * empty / n

    return min(range(1, n + 1), key=cost)


def _paste(
    sheet: Any,
    pen: Any,
    image: np.ndarray | None,
    sides: tuple[int, int],
    spot: tuple[int, int],
    real: bool,
) -> None:
    """Puts an image on the sheet, with a thin frame around it."""
    module = pillow().Image
    if image is None:
        picture = module.new("RGB", sides, _FRAME)
    else:
        picture = module.fromarray(np.ascontiguousarray(image))
        larger = sides[0] >= picture.width
        picture = picture.resize(sides, module.NEAREST if larger else module.LANCZOS)
    if not real:
        picture = module.blend(picture, module.new("RGB", sides, "white"), 0.65)
    sheet.paste(picture, spot)
    (x, y), (right, end) = spot, (spot[0] + sides[0], spot[1] + sides[1])
    pen.rectangle((x - 1, y - 1, right, end), outline=_FRAME)
    if not real:
        pen.line((x, y, right - 1, end - 1), _CROSS, 2)
        pen.line((x, end - 1, right - 1, y), _CROSS, 2)
