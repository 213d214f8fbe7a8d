"""Hides given texts in messages, also as other notations write them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import lru_cache
from urllib.parse import quote, quote_plus

from sagas.text.exact_json import escaped, readable_json
from sagas.text.printable import MASK

QUOTED = 40
"""Characters that messages quote of a long value."""


def hide_texts(message: str, texts: Iterable[str]) -> str:
    """The message with `•••` in place of these texts, where they are no parts of longer words.

    They are also found as they are written in JSON, Python, SQL and URLs.
    """
    for text in texts:
        for form in _forms(text):
            if form in message:
                whole = rf"(?<!\w){re.escape(form)}(?!\w)" if len(text) < QUOTED else re.escape(form)
                message = re.sub(whole, MASK, message)
    return message


_of_attempt: ContextVar[Sequence[str]] = ContextVar("hidden_texts", default=())


@contextlib.contextmanager
def hiding(texts: Sequence[str]) -> Iterator[None]:
    """Hide these texts in all that the current task logs and reports, see :func:`sagas.settings.masking.mask`."""
    token = _of_attempt.set(texts)
    try:
        yield
    finally:
        _of_attempt.reset(token)


def texts_of_attempt() -> Sequence[str]:
    """The texts of :func:`hiding`."""
    return _of_attempt.get()


_PLAIN = re.compile(r"[\w.-]+", re.ASCII)
"""A text that every notation writes in the same way."""


@lru_cache(maxsize=1024)
def _forms(text: str) -> tuple[str, ...]:
    """The text as different notations write it, the longest first."""
    if _PLAIN.fullmatch(text):
        return (text,)
    utf8 = text.encode("utf-8", "surrogatepass")
    urls = {quote(utf8), quote(utf8, ""), quote(utf8, "/:"), quote_plus(utf8), quote_plus(utf8, "/")}
    sql = text.replace("'", "''")
    forms = {text, sql, *urls, *(url.lower() for url in urls), repr(text)[1:-1], ascii(text)[1:-1]}
    forms.add(text.replace("\\", "\\\\").replace("'", "\\'"))
    for written in (text, sql):
        forms |= {escaped(written), readable_json(written)[1:-1]}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))
