"""Tells the final answers of Temporal's server: the same request would be refused again."""

from __future__ import annotations

from temporalio.service import RPCError, RPCStatusCode

_FINAL_IF_TOO_LARGE = (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.OUT_OF_RANGE)


def refusal_reason(error: RPCError, input_bytes: int | None = None) -> str | None:
    """Why Temporal refuses this request, whenever it is sent; None if it may be accepted later.

    ``input_bytes``: the size of the saga's input, if the caller knows it, for the message.

    A server that is overloaded has the same status as a message that is too large for gRPC; only the text differs.
    """
    too_large = "larger than max" in error.message or "size exceeds" in error.message
    if error.status in _FINAL_IF_TOO_LARGE and too_large:
        of_input = "" if input_bytes is None else f" with an input of {input_bytes:,} bytes"
        return (
            f"the request is too large{of_input}: Temporal accepts 2 MiB for one value, and 4 MiB for input and"
            " definition; keep large data in a database or a file, and give the saga its key or path"
        )
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return " ".join(error.message.split()).rstrip(".")
    return None
