"""Activity results that are not one value. Temporal's SDK cannot process them, so no worker can continue their run."""

from __future__ import annotations

from temporalio.api.failure.v1 import Failure

from sagas.text.shell import reset_command

_SDK_MESSAGE = "Not exactly one payload in activity result"
"""The SDK's message about an activity that is completed with no payload or with several. Any client of the namespace
that knows the task token or the ids of an activity can complete it so."""


def is_malformed_result(task_failure: Failure | None) -> bool:
    """True if this failure of a workflow task comes from such a result: the next attempts fail in the same way."""
    return task_failure is not None and _SDK_MESSAGE in task_failure.message


def malformed_result_text(workflow_id: str) -> str:
    """The message for operators: why no worker continues the run, and what to do."""
    return (
        "an activity was completed with no value or with several, which Temporal's SDK cannot process, so no worker "
        f"continues this run and no cancel reaches it; `{reset_command(workflow_id)}` has that step asked again: see "
        "to whoever answers it, then let the saga go on, or cancel it, if it is not past its point of no return"
    )
