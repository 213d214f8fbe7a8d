"""Large inputs that the activity which checks them reads, and no workflow task.

Reading a megabyte takes a workflow task tens of milliseconds, during which all other runs of the worker wait. The
activity reads it from the history of the run, in the budget for checks, so starts that are refused delay others little:
those that have to wait for a check cost Temporal and the workers no transport.
"""

from __future__ import annotations

from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from sagas.input_limits import MAX_INPUT_VALUES, MAX_TASK_BYTES
from sagas.text.json_values import has_more_values
from sagas.workflow.json_payloads import JSON_ENCODING, bounded_value


def is_left_unread(args: Sequence[RawValue]) -> bool:
    """True if the activity has to read this input; False for one that is small, or that is refused at once."""
    if not args or args[0].payload.metadata.get("encoding") != JSON_ENCODING:
        return False
    data = args[0].payload.data
    return len(data) > MAX_TASK_BYTES and not has_more_values(data, MAX_INPUT_VALUES)


def value_of_input(payload: Payload) -> object:
    """The value of an input. Raises UnreadableValue, as the workflow task would for a small one."""
    return bounded_value([RawValue(payload)])
