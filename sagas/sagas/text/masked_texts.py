"""Masks given texts in messages, also as other notations write them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from decimal import Decimal
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

from sagas.text.exact_json import escaped, readable_json, value_text
from sagas.text.printable import MASK
from sagas.text.text_search import QUOTED, TextSearch

MAX_FORMS = 1_000
"""Texts that are searched for in several notations."""

_LONGEST_SHORT = 12 * QUOTED
"""Characters of a short text in the longest notation, in which each character is 12: two escapes of 6 in JSON."""

MAX_LOOKUPS = 1_000_000
"""Lookups for one message, or for one document. They take a tenth of a second, also of a workflow task."""


def mask_texts(message: str, texts: Iterable[str]) -> str:
    """The message with `•••` in place of these texts, where they are not parts of longer words.

    The first :data:`MAX_FORMS` of them are also found as they are written in JSON, Python, SQL and URLs. A message for
    which that takes more than :data:`MAX_LOOKUPS` is masked as a whole.
    """
    given = tuple(texts)
    return _masked(message, given, MAX_LOOKUPS)[0] if given else message


def mask_beginning(message: str, texts: Iterable[str], most: int) -> str:
    """The beginning of the message, masked as by :func:`mask_texts`: at most ``most`` characters, and fewer if some are
    masked. The work does not depend on how much follows.
    """
    long, short = _searches(tuple(texts))
    is_cut = len(message) > most + _LONGEST_SHORT
    masked, taken = long.masked(message, MAX_LOOKUPS, most + _LONGEST_SHORT)
    if masked == MASK or not is_cut:
        return short.masked(masked, MAX_LOOKUPS - taken)[0][:most]
    # A short text that the cut has halved is in the last characters.
    return short.masked(masked, MAX_LOOKUPS - taken, max(0, len(masked) - _LONGEST_SHORT))[0][:most]


def _masked(message: str, texts: tuple[str, ...], most: int) -> tuple[str, int]:
    """The masked message, and how many lookups it took."""
    long, short = _searches(texts)
    message, taken = long.masked(message, most)
    message, more = short.masked(message, most - taken)
    return message, taken + more


@lru_cache(maxsize=8)
def _searches(texts: tuple[str, ...]) -> tuple[TextSearch, TextSearch]:
    """The searches for the long texts and for the short ones, which are found as whole words only."""
    forms: tuple[set[str], set[str]] = (set(), set())
    for number, text in enumerate(texts):
        forms[len(text) < QUOTED].update(_forms(text) if number < MAX_FORMS else (text,))
    return TextSearch(forms[0], whole=False), TextSearch(forms[1], whole=True)


class TextMask:
    """Masks texts in the strings of a document; beyond :data:`MAX_LOOKUPS` it masks all strings."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = tuple(texts)
        self._left = MAX_LOOKUPS

    def text(self, text: str) -> str:
        if not self._texts:
            return text
        if self._left < 0:
            return MASK
        masked, taken = _masked(text, self._texts, self._left)
        self._left -= taken
        return masked

    def value(self, value: Any) -> Any:
        """The JSON value; the names in its objects stay."""
        match value:
            case str():
                return self.text(value)
            case dict():
                return {name: self.value(item) for name, item in value.items()}
            case list() | tuple():
                return [self.value(item) for item in value]
        return value

    def shown(self, value: Any) -> Any:
        """The JSON value as people may read it: also without numbers and names that are such texts."""
        match value:
            case str():
                return self.text(value)
            case int() | float() | Decimal() if not isinstance(value, bool):
                return MASK if self.text(value_text(value)) == MASK else value
            case dict():
                return {self.text(str(name)): self.shown(item) for name, item in value.items()}
            case list() | tuple():
                return [self.shown(item) for item in value]
        return value


_of_attempt: ContextVar[list[str] | None] = ContextVar("masked_texts", default=None)


@contextlib.contextmanager
def masking(texts: Sequence[str]) -> Iterator[None]:
    """Mask these texts in all that the current task logs and reports, see :func:`sagas.settings.masking.mask`."""
    token = _of_attempt.set(list(texts))
    try:
        yield
    finally:
        _of_attempt.reset(token)


def mask_in_attempt(*texts: str) -> None:
    """Mask these texts, too, from now to the end of :func:`masking`; outside of it there is no attempt."""
    if (masked := _of_attempt.get()) is not None:
        masked[:0] = texts  # before others, of which there may be more than have several notations


def texts_of_attempt() -> tuple[str, ...]:
    """The texts of :func:`masking` and :func:`mask_in_attempt`."""
    return tuple(_of_attempt.get() or ())


_PLAIN = re.compile(r"[\w.-]+", re.ASCII)
"""A text that every notation writes in the same way."""

_HEX = re.compile("%[0-9A-F]{2}")


@lru_cache(maxsize=4 * MAX_FORMS)
def _forms(text: str) -> tuple[str, ...]:
    """The text as different notations write it, the longest first."""
    if _PLAIN.fullmatch(text):
        return (text,)
    utf8 = text.encode("utf-8", "surrogatepass")
    urls = {quote(utf8), quote(utf8, ""), quote(utf8, "/:"), quote_plus(utf8), quote_plus(utf8, "/")}
    sql = text.replace("'", "''")
    forms = {
        text,
        sql,
        *urls,
        *(_HEX.sub(lambda escape: escape[0].lower(), url) for url in urls),
        repr(text)[1:-1],
        ascii(text)[1:-1],
    }
    forms.add(text.replace("\\", "\\\\").replace("'", "\\'"))
    for written in (text, sql):
        forms |= {escaped(written), readable_json(written)[1:-1]}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))
