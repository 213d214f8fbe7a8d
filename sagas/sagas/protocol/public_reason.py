"""The part of a reason for those who may only read outcomes: no words of databases, participants and expressions."""

from __future__ import annotations

from sagas.protocol.saga_view import ReasonView

_TECHNICAL = ("failed", "unknown", "definition")
"""Kinds of failures whose words are those of a database, a participant or an expression, and quote values."""

_RESPONSE = "HttpStatus"
"""The type of a failure that quotes the body of a response, also of one that rejects."""


def quotes_others(kind: str | None, type: str | None) -> bool:
    """True for a failure whose message quotes more than the business's own words."""
    return kind in _TECHNICAL or type == _RESPONSE


def public_reason(reason: ReasonView) -> ReasonView:
    """The reason, with the message and the details of a rejection only: those are the business's own."""
    quotes = quotes_others(reason.kind, reason.type)
    status = reason.details.get("status") if reason.type == _RESPONSE else None
    message = f"{reason.step or 'the saga'}: {reason.kind}; `saga show` has the words" if quotes else reason.message
    details = {} if status is None else {"status": status}
    if reason.kind == "rejected" and not quotes:
        details = dict(reason.details)
    return ReasonView(kind=reason.kind, step=reason.step, type=reason.type, message=message, details=details)
