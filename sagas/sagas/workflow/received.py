"""Reads what any client of Temporal may send: what cannot be read must not fail the workflow task forever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from sagas.workflow.limits import limit_summary

_JSON = (b"json/plain", b"binary/null")


class UnreadableValue(Exception):
    """A value of another client that this worker cannot decode. Decoding it again would fail each time."""


def first_value(args: Sequence[RawValue]) -> Any:
    """The first argument of a start or a signal; None without arguments. Raises UnreadableValue."""
    return read_payload(args[0].payload) if args else None


def read_payload(payload: Payload) -> Any:
    """The value of a payload of JSON, the only encoding that sagas can store. Raises UnreadableValue."""
    encoding = payload.metadata.get("encoding", b"")
    if encoding not in _JSON:
        raise UnreadableValue(f"unknown payload encoding {encoding.decode(errors='backslashreplace')[:80]}")
    try:
        return workflow.payload_converter().from_payload(payload)
    except RecursionError:
        raise UnreadableValue("it is nested too deeply") from None
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UnreadableValue(limit_summary(str(error))) from None
