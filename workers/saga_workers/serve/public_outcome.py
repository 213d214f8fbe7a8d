"""The part of a saga that a token of `saga serve` may read: how it stands, and no data of it but its output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from saga_workers.serve.openapi import OUTCOME_FIELDS
from sagas.protocol.public_reason import public_reason
from sagas.protocol.saga_view import FINAL_STATES, PauseView, SagaView


def public_outcome(view: SagaView) -> Mapping[str, Any]:
    """The outcome: neither the input nor the results of steps, and no words of databases and participants.

    Of an end that no key of the project has signed only that: anybody can close a run under the id of a saga.
    """
    if view.is_unverified and view.state in FINAL_STATES:
        view = replace(view, state="TERMINATED", output=None)
    document = view.to_json()
    return {
        **{name: document.get(name) for name in OUTCOME_FIELDS},
        "reason": view.reason and public_reason(view.reason).to_json(),
        "paused": None if view.paused is None else _public_pause(view.paused),
    }


def _public_pause(pause: PauseView) -> Mapping[str, Any]:
    """The pause without its reason, which an operator wrote for operators, and without the steps that it holds."""
    return {"kind": pause.kind, "name": pause.name, "who": pause.who, "at": pause.at}


def public_notifications(view: SagaView) -> list[Mapping[str, Any]]:
    """The notifications; of the failure of the last attempt only its type, because it quotes the receiver."""
    return [
        {**notification.to_json(), "error": None if notification.error is None else {"type": notification.error.type}}
        for notification in view.notifications
    ]
