"""Finds many texts in a message at once. The work hardly depends on how many texts there are: an input may have a
hundred thousand sensitive values, and each message would be read again for each of them.

A text is found by its beginning, of at most :data:`QUOTED` characters: at each place of the message where a text can
begin, one lookup for each length that beginnings have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from sagas.text.printable import MASK

QUOTED = 40
"""Characters that messages quote of a long value."""

_CHARACTERS_PER_LOOKUP = 32
"""Characters of a message that are passed by in the time of a lookup."""


class TextSearch:
    """Finds ``texts``; with ``whole`` where they are not parts of longer words."""

    def __init__(self, texts: Iterable[str], *, whole: bool) -> None:
        self._whole = whole
        self._by_beginning: dict[str, list[str]] = {}
        lengths: dict[str, set[int]] = {}
        for text in filter(None, texts):
            beginning = text[:QUOTED]
            self._by_beginning.setdefault(beginning, []).append(text)
            lengths.setdefault(text[0], set()).add(len(beginning))
        for same in self._by_beginning.values():
            same.sort(key=len, reverse=True)
        self._lengths = {first: sorted(of_first, reverse=True) for first, of_first in lengths.items()}
        characters = re.escape("".join(sorted(lengths)))
        self._begin = re.compile(rf"(?<!\w)[{characters}]" if whole else f"[{characters}]") if lengths else None

    def masked(self, message: str, most: int, until: int | None = None) -> tuple[str, int]:
        """The message with `•••` in place of the texts, and how many lookups that took.

        Beyond ``most`` of them all of it is masked. ``until``: only what begins before this character is wanted, and a
        text that begins there and ends later is masked as a whole.
        """
        until = len(message) if until is None else min(until, len(message))
        lookups = 1 + until // _CHARACTERS_PER_LOOKUP
        parts: list[str] = []
        masked_to = 0
        for start, end, took in self._places(message, until):
            lookups += took
            if lookups > most:
                return MASK, lookups
            if end == start or end <= masked_to:
                continue
            if start >= masked_to:
                parts += (message[masked_to:start], MASK)
            masked_to = end
        return "".join((*parts, message[masked_to:until])), lookups

    def _places(self, message: str, until: int) -> Iterator[tuple[int, int, int]]:
        """Places at which a text may begin, each with the end of the longest text there and the lookups for it. The end
        is the beginning if there is none.
        """
        if self._begin is None:
            return
        for match in self._begin.finditer(message, 0, until):
            start, end, took = match.start(), match.start(), 0
            for length in self._lengths[message[start]]:
                candidates = self._by_beginning.get(message[start : start + length], ())
                took += 1 + len(candidates)
                end = next((stop for stop in self._ends(message, start, candidates)), start)
                if end > start:
                    break
            yield start, end, took

    def _ends(self, message: str, start: int, candidates: Iterable[str]) -> Iterator[int]:
        for text in candidates:
            end = start + len(text)
            if message.startswith(text, start) and not (self._whole and _is_in_word(message, end)):
                yield end


def _is_in_word(message: str, place: int) -> bool:
    return place < len(message) and (message[place] == "_" or message[place].isalnum())
