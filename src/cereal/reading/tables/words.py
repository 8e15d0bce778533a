"""Many texts as two arrays, which worker processes share instead of copying them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np


class Words:
    """A list of texts: their letters one after another, and where each of them ends.

    >>> from cereal.reading.tables.words import Words
    >>> words = Words.of(["a", "bcd"])
    >>> words[1], words.ends.tolist()
    ('bcd', [1, 4])
    """

    def __init__(self, letters: np.ndarray, ends: np.ndarray) -> None:
        self.letters, self.ends = letters, ends

    @staticmethod
    def of(texts: Iterable[str]) -> Words:
        encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
        ends = np.cumsum([len(each) for each in encoded], dtype=np.int64)
        return Words(np.array(bytearray(b"".join(encoded)), np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, at: int) -> str:
        begin = int(self.ends[at - 1]) if at else 0
        text = self.letters[begin : int(self.ends[at])].tobytes()
        return text.decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))
