"""The statuses of an `http` response: what counts as done and as rejected, in the forms 201 and 2xx."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

DEFAULT_STATUSES: Mapping[str, tuple[Any, ...]] = {"done": ("2xx",), "rejected": (409, 422)}

STATUS_LISTS = ("done", "rejected")
"""The lists of statuses of a request; those of its connection hold where it has none."""

IN_PROGRESS = (409, 423, 425)
"""Statuses with which services also answer while an earlier request with the same key is being processed."""

StatusClass = Literal["done", "rejected", "other"]


def classify_status(status: int, arguments: Mapping[str, Any]) -> StatusClass:
    """Return whether this status is in ``done`` or ``rejected``; ``done`` takes precedence."""
    if status_matches(status, written_statuses(arguments, "done")):
        return "done"
    if status_matches(status, written_statuses(arguments, "rejected")):
        return "rejected"
    return "other"


def status_matches(status: int, patterns: Iterable[Any]) -> bool:
    """True when one of the patterns (``201``, ``2xx``) covers the status."""
    return any((interval := status_range(p)) is not None and interval[0] <= status <= interval[1] for p in patterns)


def written_statuses(arguments: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    """The patterns of ``done`` or ``rejected``, with the default."""
    value = arguments.get(name)
    if value is None:
        return DEFAULT_STATUSES[name]
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def status_range(pattern: Any) -> tuple[int, int] | None:
    """The first and the last status of a pattern; None if it is none."""
    text = str(pattern).strip().lower()
    if len(text) == 3 and text[0] in "12345" and text[1:] == "xx":
        return int(text[0]) * 100, int(text[0]) * 100 + 99
    if text.isascii() and text.isdecimal() and 100 <= int(text) <= 599:
        return int(text), int(text)
    return None
