"""Checks compensations and confirms for being the call of their own step once more."""

from __future__ import annotations

from sagas.builtins.messaging import REQUEST
from sagas.builtins.registry import BUILTINS
from sagas.definition.diagnostics import Report
from sagas.definition.parser.draft import SagaDraft


def check_repeated_calls(draft: SagaDraft, report: Report) -> None:
    """Warn about a built-in action of a step that is to undo or confirm itself with the arguments of the step."""
    for step in draft.steps:
        do = step.step.do.uses
        if do not in BUILTINS or BUILTINS[do].executor == "engine" or do == REQUEST:
            continue  # the headers of a command say whether it does or undoes
        for operation in step.operations:
            called = operation.operation
            if operation.role in ("compensate", "confirmed", "confirm") and called.uses == do and called.with_ is None:
                message = f"the `{operation.role}` of `{step.id}` is the call of `{step.id}` once more"
                report.add("SAGA236", operation.position, message)
