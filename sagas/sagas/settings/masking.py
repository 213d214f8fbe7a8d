"""Credentials in text that is shown or stored: messages of drivers and servers quote URLs and properties.

Two nets: the secrets that this process has read, wherever they appear, and the forms in which credentials are written
(URLs, properties, headers), of any owner.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from sagas.text.masked_texts import mask_texts, texts_of_attempt
from sagas.text.printable import MASK

MIN_LENGTH = 6
"""A shorter secret is masked only where its form shows it: it would garble ordinary text."""

_NAMES = (
    r"pass(?:word|wd|phrase|code)?|pwd|secrets?|tokens?|credentials?|signature"
    r"|(?:api|access|private|secret|account|shared|definition)[_.-]?key|key[_.-]?pem"
)
_SECRET_NAME = re.compile(rf"(?:^|[^a-z]|(?<=[a-z]))(?:{_NAMES}|auth|authorization|jaas[._]config)$", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)([^\s/:@'\"]*):([^\s/?#'\"]*)@")
_ANY_USER_INFO = re.compile(r"(?<=://)([^\s/:@]*):([^@]+)@")
"""User and password of a URL as SQLAlchemy reads it: the password may contain a slash."""
# A match begins at the telling word and what follows it is bounded: the time is linear in texts of others.
_ASSIGNED = re.compile(
    rf"(?P<name>(?:{_NAMES})\w{{0,40}}(?P<quote>['\"]?))(?P<sign>\s*=\s*|(?<=['\"])\s*:\s*)"
    r"(?!\{\s*(?:env|file)\s*=)"  # it names where the secret is stored
    r"(?P<value>'[^']*'|\"[^\"]*\"|[^\s&,;'\"})\]]+)",
    re.IGNORECASE,
)
_HEADER = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9+/=._~-]{8,}")

_known: set[str] = set()
_pattern: re.Pattern[str] | None = None


def remember_secret(secret: str) -> None:
    """Mask this value from now on, also as it is written in a URL."""
    global _pattern
    forms = {secret, unquote(secret), *secret.splitlines()} if len(secret) >= MIN_LENGTH else set()
    if new := {form.strip() for form in forms if len(form.strip()) >= MIN_LENGTH} - _known:
        _known.update(new)
        longest_first = sorted(_known, key=len, reverse=True)
        _pattern = re.compile("|".join(rf"(?<!\w){re.escape(form)}(?!\w)" for form in longest_first))


def remember_url(url: str) -> None:
    """Remember the credentials in a URL: the password and the query parameters that are named like one."""
    for user, password in {*_USER_INFO.findall(url), *_ANY_USER_INFO.findall(url)}:
        if password != user:
            remember_secret(password)
    for match in _ASSIGNED.finditer(url.partition("?")[2]):
        remember_secret(match["value"])


def remember_settings(table: Mapping[str, Any]) -> None:
    """Remember what is written in the settings as it is: URLs, and values whose name says that they are secret."""
    rows = list(table.items())
    while rows:  # a table may be nested deeper than a function may call itself
        name, value = rows.pop()
        if isinstance(value, Mapping):
            rows += value.items()
        elif isinstance(value, str):
            remember_url(value)
            if is_secret_name(name):
                remember_secret(value)
            for match in _ASSIGNED.finditer(value):
                remember_secret(match["value"].strip("'\""))


def is_secret_name(name: str) -> bool:
    """Return whether a setting or property of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def mask(text: str) -> str:
    """The text without credentials, and without the sensitive values of the attempt that the current task makes."""
    text = mask_texts(text, texts_of_attempt())
    if _pattern is not None:
        text = _pattern.sub(MASK, text)
    if "@" in text:
        text = _USER_INFO.sub(rf"\1:{MASK}@", text)
    text = _ASSIGNED.sub(_mask_value, text)
    return _HEADER.sub(rf"\1 {MASK}", text)


def mask_known_secrets(value: Any) -> Any:
    """JSON data without the secrets that this process has read; what only looks like a credential stays."""
    if isinstance(value, str):
        return value if _pattern is None else _pattern.sub(MASK, value)
    if isinstance(value, Mapping):
        return {name: mask_known_secrets(item) for name, item in value.items()}
    return [mask_known_secrets(item) for item in value] if isinstance(value, list) else value


def without_credentials(url: str | None) -> str | None:
    """The URL without user and password."""
    return None if url is None else re.sub(r"(?<=://)[^/?#]*@", "", url)


def _mask_value(match: re.Match[str]) -> str:
    value = match["value"]
    shown = f"{value[0]}{MASK}{value[0]}" if value[0] in "'\"" else MASK
    return f"{match['name']}{match['sign']}{shown}"


def mask_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """A table of properties without its credentials."""
    return {
        name: mask_properties(value)
        if isinstance(value, Mapping)
        else MASK
        if is_secret_name(name)
        else mask(value)
        if isinstance(value, str)
        else value
        for name, value in properties.items()
    }
