"""A call in words for people: what is called, and with which arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sagas.text.exact_json import readable_json
from sagas.text.shortening import shorten_middle

_MAX_ARGUMENTS = 400
"""Characters of the arguments of a call."""

_BODIES = ("json", "form", "params")
"""Arguments of `http` and `sql` that have the values of the business."""


def call_words(action: str, arguments: Mapping[str, Any]) -> str:
    """`POST /refunds of bank, with amount: 30.00`; of another action its name, with its arguments."""
    match action:
        case "http":
            title = f"{arguments.get('method', 'GET')} {arguments.get('path', arguments.get('url', ''))}"
            title += _of(arguments)
            hidden = ("connection", "method", "path", "url")
        case "sql":
            title, hidden = f"sql{_of(arguments)}", ("connection",)
        case _:
            title, hidden = action, ()
    pairs = [f"{name}: {readable_json(value)}" for name, value in _values(arguments, hidden)]
    return shorten_middle(title + (f", with {', '.join(pairs)}" if pairs else ""), _MAX_ARGUMENTS)


def _of(arguments: Mapping[str, Any]) -> str:
    return f" of {arguments['connection']}" if "connection" in arguments else ""


def _values(arguments: Mapping[str, Any], hidden: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name, value in arguments.items():
        if hidden and name in _BODIES and isinstance(value, Mapping):
            yield from value.items()
        elif name not in hidden:
            yield name, value
