"""Writing on pictures, with the letters that come with Pillow."""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_left
from typing import Any

_LONGEST = 300  # letters; the rest of a text is cut off


class Lettering:
    """Lines of text that fit: too long ones end in three dots.

    Where Pillow was built without FreeType, there is one size of plain letters.
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
        """From one line to the next."""
        return math.ceil(1.3 * size)

    def width(self, text: str, size: int) -> int:
        """Of the whole line, as it would be written."""
        return math.ceil(self._font(size).getlength(self._plain(text, size)))

    def _plain(self, text: str, size: int) -> str:
        """One line of letters that the font has, without accents."""
        text = " ".join(text[:_LONGEST].split())
        letters = unicodedata.normalize("NFD", text)
        text = "".join(letter for letter in letters if not unicodedata.combining(letter))
        if isinstance(self._font(size), self._fonts.FreeTypeFont):
            return text
        return text.replace("…", "...").encode("latin-1", "replace").decode("latin-1")

    def fit(self, text: str, width: int, size: int) -> str:
        """As much of the text as there is room for."""
        font, plain = self._font(size), self._plain(text, size)
        if font.getlength(plain) <= width:
            return plain
        cut = [self._plain(f"{plain[:n].rstrip()}…", size) for n in range(len(plain))]
        fits = bisect_left(cut, True, key=lambda line: font.getlength(line) > width)
        return cut[max(0, fits - 1)]

    def write(
        self, pen: Any, text: str, at: tuple[int, int], width: int, size: int, colour: Any
    ) -> None:
        """Writes a line from a point on, as far as the width allows."""
        pen.text(at, self.fit(text, width, size), colour, self._font(size))

    def write_centred(
        self, pen: Any, text: str, at: tuple[int, int], width: int, size: int, colour: Any
    ) -> None:
        """Writes a line around a point."""
        line = self.fit(text, width, size)
        left = at[0] - self._font(size).getlength(line) / 2
        pen.text((round(left), at[1]), line, colour, self._font(size))
