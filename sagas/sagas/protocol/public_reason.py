"""The part of a reason for those who may only read outcomes: no words of databases, participants and expressions."""

from __future__ import annotations

from sagas.protocol.saga_view import ReasonView

_TECHNICAL = ("failed", "unknown", "definition")
"""Kinds of failures whose words are those of a database, a participant or an expression, and quote values."""


def quotes_others(kind: str | None, quotes: bool | None) -> bool:
    """True for a failure whose message quotes more than the business's own words.

    ``quotes``: what the failure says of its own words, see :class:`sagas.protocol.outcomes.Failure`.
    """
    return kind in _TECHNICAL or bool(quotes)


def public_reason(reason: ReasonView) -> ReasonView:
    """The reason, with the message and the details of a rejection only: those are the business's own."""
    quotes = quotes_others(reason.kind, reason.quotes)
    message = f"{reason.step or 'the saga'}: {reason.kind}; `saga show` has the words" if quotes else reason.message
    details = dict(reason.details) if reason.kind == "rejected" and not quotes else {}
    if reason.quotes and type(status := reason.details.get("status")) is int:
        details = {"status": status}
    return ReasonView(kind=reason.kind, step=reason.step, type=reason.type, message=message, details=details)
