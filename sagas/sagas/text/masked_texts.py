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

QUOTED = 40
"""Characters that messages quote of a long value."""

MAX_FORMS = 1_000
"""Texts that are searched for in several notations."""

MAX_COMPARISONS = 1_000_000
"""Comparisons with a text of up to 1,000 characters. They take a tenth of a second, also of a workflow task."""


def mask_texts(message: str, texts: Iterable[str]) -> str:
    """The message with `•••` in place of these texts, where they are not parts of longer words.

    The first :data:`MAX_FORMS` of them are also found as they are written in JSON, Python, SQL and URLs.
    """
    for number, text in enumerate(texts):
        for form in _forms(text) if number < MAX_FORMS else (text,):
            if form in message:
                whole = rf"(?<!\w){re.escape(form)}(?!\w)" if len(text) < QUOTED else re.escape(form)
                message = re.sub(whole, MASK, message)
    return message


class TextMask:
    """Masks texts in the strings of a document; beyond :data:`MAX_COMPARISONS` it masks all strings."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = tuple(texts)
        self._forms = len(self._texts) + sum(len(_forms(text)) - 1 for text in self._texts[:MAX_FORMS])
        self._left = MAX_COMPARISONS

    def text(self, text: str) -> str:
        self._left -= self._forms * (1 + len(text) // 1_000)
        return MASK if self._left < 0 else mask_texts(text, self._texts)

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


_of_attempt: ContextVar[Sequence[str]] = ContextVar("masked_texts", default=())


@contextlib.contextmanager
def masking(texts: Sequence[str]) -> Iterator[None]:
    """Mask these texts in all that the current task logs and reports, see :func:`sagas.settings.masking.mask`."""
    token = _of_attempt.set(texts)
    try:
        yield
    finally:
        _of_attempt.reset(token)


def texts_of_attempt() -> Sequence[str]:
    """The texts of :func:`masking`."""
    return _of_attempt.get()


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
