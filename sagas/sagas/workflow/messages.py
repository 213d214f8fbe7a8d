"""What people and other programs send, as events of the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from sagas.machine.events import DecisionMade, SignalReceived


def first_value(args: Sequence[RawValue]) -> Any:
    """The one argument of a start or a signal; None when there is none."""
    values = [workflow.payload_converter().from_payload(arg.payload) for arg in args]
    return values[0] if values else None


def signal(name: str, data: Any) -> SignalReceived:
    """A signal of any client; `saga signal` adds under ``_saga`` who sent it, or that it refuses."""
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


def decision(data: Mapping[str, Any]) -> DecisionMade:
    """Raises KeyError, TypeError or AttributeError for what is not a decision."""
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
