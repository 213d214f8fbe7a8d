"""Reads signals and updates, which any client of Temporal may send: one that is malformed fails no workflow task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from sagas.input_limits import MAX_CANCEL_WORDS
from sagas.protocol.messages import CancelRequested, DecisionMade, SignalReceived
from sagas.protocol.operator_names import recorded_name
from sagas.protocol.size_limits import MAX_MESSAGE_CHARACTERS
from sagas.text.json_values import encodable
from sagas.text.shortening import shorten_middle
from sagas.workflow.client_fields import optional_text, text
from sagas.workflow.failures import refused_error
from sagas.workflow.json_payloads import NO_INPUT, UnreadableValue, bounded_value


def cancel_event(request: Mapping[str, Any]) -> CancelRequested:
    """The event of a request to cancel, ``{"reason", "who"}``, at the time of the current workflow task."""
    who, reason = who_and_reason(request)
    return CancelRequested(at=workflow.time(), who=who, message=reason or "")


def who_and_reason(request: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The operator and the reason in a request; None for what is not a string, because any client may send it."""
    who, reason = (
        encodable(value[:MAX_CANCEL_WORDS]) if isinstance(value, str) else None
        for value in (request.get("who"), request.get("reason"))
    )
    return recorded_name(who) if who else who, reason


def to_signal_event(name: str, data: Any) -> SignalReceived:
    """A signal from any client as an event; `saga signal` adds the sender and a rejection under ``_saga``.

    A long rejection is cut. Raises UnreadableValue if it or the sender is not a string.
    """
    if isinstance(data, dict) and isinstance(data.get("_saga"), dict):
        envelope = data["_saga"]
        try:
            who, reject = optional_text(envelope.get("by")), optional_text(envelope.get("reject"))
        except TypeError:
            raise UnreadableValue("`by` and `reject` must be strings") from None
        reject = None if reject is None else shorten_middle(reject, MAX_MESSAGE_CHARACTERS)
        return SignalReceived(name=name, at=workflow.time(), data=data.get("data"), who=who, reject=reject)
    return SignalReceived(name=name, at=workflow.time(), data=data)


def to_decision_event(data: Mapping[str, Any], *, proven: bool = False) -> DecisionMade:
    """The `resolve` update as an event; ``proven``: it is signed. Raises KeyError, TypeError or AttributeError if it is
    malformed.
    """
    return DecisionMade(
        step=text(data["step"]),
        decision=text(data["decision"]),  # pyright: ignore[reportArgumentType]
        reason=text(data["reason"]),
        who=recorded_name(optional_text(data.get("who")) or "unknown", proven=proven),
        at=workflow.time(),
        arguments=data.get("with"),
        definition=data.get("definition"),
        result=data.get("result"),
        evidence=data.get("evidence"),
    )


def is_signed_decision(event: DecisionMade) -> bool:
    """True for what only an operator of the project may decide: new arguments and another definition."""
    return event.arguments is not None or event.definition is not None


def request_fields(sent: RawValue) -> dict[str, Any]:
    """The fields of an update's request; empty without one. Raises UnreadableValue, also if it is not an object."""
    request = None if sent is NO_INPUT else bounded_value([sent], half_pairs=True)
    if request is None:
        return {}
    if not isinstance(request, dict):
        raise UnreadableValue("it is not an object")
    return request


def check_request(sent: RawValue) -> dict[str, Any]:
    """The :func:`request_fields` for a validator: raises SagaApplicationError, which refuses the update."""
    try:
        return request_fields(sent)
    except UnreadableValue as error:
        raise refused_error(f"the request cannot be read: {error}") from None
