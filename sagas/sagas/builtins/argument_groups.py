"""Arguments of built-in actions that exclude or need each other, which their JSON Schemas do not say. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sagas.builtins.messaging import EMITTERS
from sagas.builtins.signal_names import is_reserved_signal
from sagas.builtins.url_templates import has_computed_host

EXCLUDED, MISSING, RESERVED = "SAGA113", "SAGA402", "SAGA107"

_EXCLUSIVE = {"http": (("path", "url"), ("json", "form", "body")), "wait": (("for", "until", "signal"),)}
_ONE_EVENT = ("topic", "key", "value", "headers", "hold")


@dataclass(frozen=True, slots=True)
class GroupMistake:
    """A mistake of a group of arguments: its diagnostic, and the argument at fault if it is a single one."""

    code: str
    message: str
    argument: str | None = None
    help: str | None = None


def group_mistakes(uses: str, given: Mapping[str, Any]) -> Iterator[GroupMistake]:
    """All mistakes in how arguments, as written or as computed, are combined."""
    for group in _EXCLUSIVE.get(uses, ()):
        present = [name for name in group if name in given]
        if len(present) > 1:
            yield GroupMistake(EXCLUDED, f"`{present[1]}` and `{present[0]}` of `{uses}` exclude each other")
    if uses == "http":
        yield from _of_http(given)
    elif uses == "wait":
        if not any(name in given for name in ("for", "until", "signal")):
            yield GroupMistake(MISSING, "`wait` needs one of the arguments `for`, `until` and `signal`")
        elif "signal" not in given:
            for name in ("timeout", "on_timeout"):
                if name in given:
                    yield GroupMistake(EXCLUDED, f"`{name}` of `wait` goes with `signal` only")
        elif isinstance(signal := given["signal"], str) and is_reserved_signal(signal):
            yield GroupMistake(RESERVED, f"the signal `{signal}` has a meaning of its own, so no `wait` can receive it")
    elif uses in EMITTERS:
        if "events" in given:
            for name in _ONE_EVENT:
                if name in given:
                    yield GroupMistake(EXCLUDED, f"`events` and `{name}` of `{uses}` exclude each other", name)
        elif "topic" not in given:
            yield GroupMistake(MISSING, f"`{uses}` needs the argument `topic` or `events`")
        elif "value" not in given:
            yield GroupMistake(MISSING, f"`{uses}` needs the argument `value`")


def _of_http(given: Mapping[str, Any]) -> Iterator[GroupMistake]:
    if "path" not in given and "url" not in given:
        yield GroupMistake(MISSING, "`http` needs the argument `path` or `url`")
    elif "path" in given and "connection" not in given:
        yield GroupMistake(MISSING, "`http` needs the argument `connection` for a `path`")
    elif "connection" not in given and has_computed_host(str(given.get("url"))):
        message = "`http` needs the argument `connection` for a `url` whose host comes from data"
        help = "write the host as text, or name a connection with `url` or `allowed_hosts` for it"
        yield GroupMistake(MISSING, message, help=help)
