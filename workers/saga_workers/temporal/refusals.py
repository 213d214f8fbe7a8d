"""Which answers of Temporal's server are final: the same request would be refused again."""

from __future__ import annotations

from temporalio.service import RPCError, RPCStatusCode


def refusal_reason(error: RPCError) -> str | None:
    """Why Temporal refuses this request, whenever it is sent; None if it may be accepted later.

    A server that is overloaded has the same status as a message that is too large for gRPC; only the text differs.
    """
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return _one_line(error.message)
    too_large = "larger than max" in error.message or "size exceeds" in error.message
    if error.status in (RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.OUT_OF_RANGE) and too_large:
        return f"the request is too large ({_one_line(error.message)})"
    return None


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")
