"""Messages for a person whose request Temporal's server refuses for good."""

from __future__ import annotations

import pytest
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.temporal.refusals import refusal_reason


@pytest.mark.parametrize(("input_bytes", "size"), [(None, ""), (5_242_880, " with an input of 5,242,880 bytes")])
def test_a_request_that_is_too_large_says_how_large_and_what_to_do(input_bytes: int | None, size: str) -> None:
    words = "grpc: received message larger than max (5243903 vs. 4194304)"
    error = RPCError(words, RPCStatusCode.RESOURCE_EXHAUSTED, b"")
    assert refusal_reason(error, input_bytes) == (
        f"the request is too large{size}: Temporal accepts 2 MiB for one value, and 4 MiB for input and definition;"
        " keep large data in a database or a file, and give the saga its key or path"
    )
