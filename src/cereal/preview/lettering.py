"""Writes text on pictures, with the font that comes with Pillow."""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_left
from typing import Any

_LONGEST = 300  # letters of a text; the rest is cut off


class Lettering:
    """Writes lines of text; a line that is too long is cut and ends with three dots.

    If Pillow was built without FreeType, its font has one size and no special letters.
    """

    def __init__(self, fonts: Any) -> None:
        self._fonts, self._known = fonts, {}

    def _font(self, size: int) -> Any:
        if size not in self._known:
            try:
                self._known[size] = self._fonts.load_default(size)
            except ImportError:
                self._known[size] = self._fonts.load_default()
        return self._known[size]

    def height(self, size: int) -> int:
        """The distance from one line to the next."""
        return math.ceil(1.3 * size)

    def width(self, text: str, size: int) -> int:
        """The width of the whole line."""
        return math.ceil(self._font(size).getlength(self._plain(text, size)))

    def _plain(self, text: str, size: int) -> str:
        """The text as one line without accents, only with letters that the font has."""
        text = " ".join(text[:_LONGEST].split())
        letters = unicodedata.normalize("NFD", text)
        text = "".join(letter for letter in letters if not unicodedata.combining(letter))
        if isinstance(self._font(size), self._fonts.FreeTypeFont):
            return text
        return text.replace("…", "...").encode("latin-1", "replace").decode("latin-1")

    def fit(self, text: str, width: int, size: int) -> str:
        """The text, cut to this width."""
        font, plain = self._font(size), self._plain(text, size)
        if font.getlength(plain) <= width:
            return plain
        cut = [self._plain(f"{plain[:n].rstrip()}…", size) for n in range(len(plain))]
        fits = bisect_left(cut, True, key=lambda line: font.getlength(line) > width)
        return cut[max(0, fits - 1)]

    def write(
        self, pen: Any, text: str, at: tuple[int, int], width: int, size: int, colour: Any
    ) -> None:
        """Writes a line that begins at a point, cut to this width."""
        pen.text(at, self.fit(text, width, size), colour, self._font(size))

    def write_centred(
        self, pen: Any, text: str, at: tuple[int, int], width: int, size: int, colour: Any
    ) -> None:
        """Writes a line that is centred at a point."""
        line = self.fit(text, width, size)
        left = at[0] - self._font(size).getlength(line) / 2
        pen.text((round(left), at[1]), line, colour, self._font(size))
