"""Large inputs that the activity which checks them reads, and no workflow task.

Reading a megabyte takes a workflow task tens of milliseconds, during which all other runs of the worker wait. The
activity reads it in the budget for checks, so starts that are refused delay others little.
"""

from __future__ import annotations

from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from sagas.input_limits import MAX_INPUT_VALUES, MAX_TASK_BYTES
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES
from sagas.text.exact_json import encode_json
from sagas.text.json_values import has_more_values
from sagas.workflow.json_payloads import JSON_ENCODING, bounded_value

_AROUND = 1_024
"""Bytes around the text in the request."""


def unread_text(args: Sequence[RawValue]) -> str | None:
    """The text of an input that the activity has to read; None for one that is small, or that is refused at once."""
    if not args or args[0].payload.metadata.get("encoding") != JSON_ENCODING:
        return None
    data = args[0].payload.data
    if len(data) <= MAX_TASK_BYTES or has_more_values(data, MAX_INPUT_VALUES):
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if len(encode_json(text)) + _AROUND <= MAX_PAYLOAD_BYTES else None


def value_of_text(text: str) -> object:
    """The value of the text of an input. Raises UnreadableValue, as the workflow task would for a small one."""
    payload = Payload(metadata={"encoding": JSON_ENCODING}, data=text.encode())
    return bounded_value([RawValue(payload)])
