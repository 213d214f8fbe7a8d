"""The part of a saga that a token of `saga serve` may read: how it stands, and no data of it but its output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saga_workers.serve.openapi import OUTCOME_FIELDS
from sagas.protocol.saga_view import ReasonView, SagaView

_TECHNICAL = ("failed", "unknown", "definition")
"""Kinds of reasons whose words are those of a database, a participant or an expression, and quote values."""

_RESPONSE = "HttpStatus"
"""The type of a failure that quotes the body of a response, also of one that rejects."""


def public_outcome(view: SagaView) -> Mapping[str, Any]:
    """The outcome: neither the input nor the results of steps, and no words of databases and participants."""
    document = {name: view.to_json().get(name) for name in OUTCOME_FIELDS}
    return {**document, "reason": None if view.reason is None else _public_reason(view.reason)}


def public_notifications(view: SagaView) -> list[Mapping[str, Any]]:
    """The notifications; of the failure of the last attempt only its type, because it quotes the receiver."""
    return [
        {**notification.to_json(), "error": None if notification.error is None else {"type": notification.error.type}}
        for notification in view.notifications
    ]


def _public_reason(reason: ReasonView) -> Mapping[str, Any]:
    """The reason, with the message and the details of a rejection only: those are the business's own."""
    quotes = reason.kind in _TECHNICAL or reason.type == _RESPONSE
    status = reason.details.get("status") if reason.type == _RESPONSE else None
    message = f"{reason.step or 'the saga'}: {reason.kind}; `saga show` has the words" if quotes else reason.message
    details = {} if status is None else {"status": status}
    if reason.kind == "rejected" and not quotes:
        details = dict(reason.details)
    return {**reason.to_json(), "message": message, "details": details}
