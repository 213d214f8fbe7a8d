"""Reads what any client of Temporal may send: what cannot be read must not fail the workflow task forever."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from sagas.protocol.messages import CancelRequested, DecisionMade, SignalReceived
from sagas.text.json_values import MAX_DEPTH, encodable, json_problem
from sagas.workflow.limits import limit_summary

_JSON = (b"json/plain", b"binary/null")


BOUNDS_VALUES = "bounds-values"
"""The Temporal patch id of the check of values; only a run that got a value which is refused has its marker."""


ALLOWS_LEVELS = "allows-levels"
"""The Temporal patch id of the levels around the inputs of several sagas; only a run that needs them has its marker."""


NO_INPUT = RawValue(Payload())
"""The argument of a workflow that a client has started without one; it cannot be read."""


class UnreadableValue(Exception):
    """A value of another client that this worker cannot decode. Decoding it again would fail each time."""


def bounded_value(args: Sequence[RawValue], *, levels: int = 0, half_pairs: bool = False) -> Any:
    """The first argument of a start or a signal; None without arguments.

    Raises UnreadableValue, also for a value out of bounds; a run that has accepted such a value before keeps it in its
    replay. ``levels`` are allowed around the values that have bounds of their own. ``half_pairs``: see
    :func:`json_problem`.
    """
    value = first_value(args)
    problem = json_problem(value, half_pairs=half_pairs)
    if problem is not None and levels:
        around = json_problem(value, max_depth=MAX_DEPTH + levels, half_pairs=half_pairs)
        if around is None and workflow.patched(ALLOWS_LEVELS):
            return value
    if problem is not None and workflow.patched(BOUNDS_VALUES):
        raise UnreadableValue(problem)
    return value


def activity_result(returned: RawValue | None) -> Any:
    """What an activity has returned: a value that cannot be kept is replaced by the reason, as the effect is there."""
    try:
        return None if returned is None else bounded_value([returned], half_pairs=True)
    except UnreadableValue as error:
        return {"omitted": "unreadable", "reason": str(error)}


MAX_WORDS = 8 * 1024
"""Characters of the reason of a cancel and of the name of who sent it."""


def cancel_event(request: Mapping[str, Any]) -> CancelRequested:
    """The request of an update `cancel`, ``{"reason", "who"}``, in this workflow task."""
    who, reason = who_and_reason(request)
    return CancelRequested(at=workflow.time(), who=who, message=reason or "")


def who_and_reason(request: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Of a request to the whole saga. What is no string is left out: any client may send it, and it is carried out."""
    who, reason = (
        encodable(value[:MAX_WORDS]) if isinstance(value, str) else None
        for value in (request.get("who"), request.get("reason"))
    )
    return who, reason


def to_signal_event(name: str, data: Any) -> SignalReceived:
    """A signal from any client as an event; `saga signal` adds the sender and a rejection under ``_saga``."""
    if isinstance(data, dict) and isinstance(data.get("_saga"), dict):
        envelope = data["_saga"]
        return SignalReceived(
            name=name,
            at=workflow.time(),
            data=data.get("data"),
            who=envelope.get("by"),
            reject=envelope.get("reject"),
        )
    return SignalReceived(name=name, at=workflow.time(), data=data)


def to_decision_event(data: Mapping[str, Any]) -> DecisionMade:
    """The `resolve` update as an event. Raises KeyError, TypeError or AttributeError if it is malformed."""
    return DecisionMade(
        step=data["step"],
        decision=data["decision"],
        reason=data["reason"],
        who=data.get("who") or "unknown",
        at=workflow.time(),
        arguments=data.get("with"),
        definition=data.get("definition"),
        result=data.get("result"),
        evidence=data.get("evidence"),
    )


def first_value(args: Sequence[RawValue]) -> Any:
    """The first argument; None without arguments. Raises UnreadableValue."""
    return read_payload(args[0].payload) if args else None


def read_payload(payload: Payload) -> Any:
    """The value of a payload of JSON, the only encoding that sagas can store. Raises UnreadableValue."""
    encoding = payload.metadata.get("encoding", b"")
    if encoding not in _JSON:
        raise UnreadableValue(f"unknown payload encoding {encoding.decode(errors='backslashreplace')[:80]}")
    try:
        return workflow.payload_converter().from_payload(payload)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UnreadableValue(_why_not_converted(error)) from None


def _why_not_converted(error: BaseException) -> str:
    """The converter only tells that it has failed; why is in its first cause."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, RecursionError):
        return f"it is nested deeper than {MAX_DEPTH} levels"
    if isinstance(cause, UnicodeDecodeError):
        return "it is not UTF-8"
    return limit_summary(f"it is not JSON: {cause}" if isinstance(cause, json.JSONDecodeError) else str(cause))
