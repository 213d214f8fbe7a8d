"""Can a notification be sent at all, and does its moment ever come?"""

from __future__ import annotations

from sagas.builtins import BUILTINS
from sagas.builtins_messaging import DROP, RELEASE, events_of, is_held
from sagas.definition.checks.arguments import check_operation
from sagas.definition.diagnostics import Report
from sagas.definition.draft import Draft, OperationDraft

_NO_NEWS = ("kafka.request", RELEASE, DROP)
"""Actions that ask for something, or settle something, instead of telling."""


def check_notifications(draft: Draft, report: Report) -> None:
    """Report notifications that nobody could ever get; their expressions are checked with all others."""
    for operation in draft.notify:
        uses = operation.operation.uses
        if uses not in draft.actions and _tells_nobody(uses):
            report.add("SAGA140", operation.place, f"`{uses}` cannot tell anybody anything")
            continue
        check_operation(draft, operation, operation, report)
        _check_held(operation, report)
        _check_moments(draft, operation, report)


def _tells_nobody(uses: str) -> bool:
    builtin = BUILTINS.get(uses)
    return uses in _NO_NEWS or (builtin is not None and builtin.where in ("engine", "spark"))


def _check_moments(draft: Draft, operation: OperationDraft, report: Report) -> None:
    definition, when = draft.definition, operation.parsed.get("when") or ()
    place = operation.parsed.place("when")
    if "overdue" in when and definition.warn_after is None:
        report.add("SAGA141", place, "this saga has no `warn_after`, so it is never overdue")
    if "compensated" in when and definition.recovery == "forward":
        report.add("SAGA141", place, "a saga with `recovery: forward` is never compensated")


def _check_held(operation: OperationDraft, report: Report) -> None:
    if any(map(is_held, events_of(operation.operation.uses, operation.operation.with_ or {}))):
        report.add("SAGA140", operation.place, "a held event waits for a commit point, and none comes after this")
