"""The words of a decision's preview that its commands do not tell: rows that stay, operations that ignore `--with`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sagas.definition.call_arguments import replaced_arguments
from sagas.definition.sensitivity import SensitiveMask
from sagas.machine import corrected_probes, corrections
from sagas.machine.builtin_actions import child_saga_id, has_nested_undo
from sagas.machine.decisions.rules import current_operation, decided_operation
from sagas.machine.expressions import arguments
from sagas.machine.parked_rows import images_query, restore_details, row_names
from sagas.machine.state import Entry, SagaRun
from sagas.protocol.messages import DecisionMade
from sagas.text.shell import saga_command
from sagas.text.shortening import and_more


@dataclass(frozen=True, slots=True)
class DecisionNotes:
    """``left_rows``: what happens to the rows of an automatic undo that is skipped. ``mask``: hides what people must
    not read of arguments. ``warnings``: what a correction leaves out.
    """

    left_rows: str
    mask: SensitiveMask
    warnings: tuple[str, ...] = ()


def decision_notes(run: SagaRun, decision: DecisionMade) -> DecisionNotes:
    """The words about an accepted decision before it is carried out."""
    entry, mask = run.entry(decision.step), SensitiveMask(run.plan.sensitive_values(run.input))
    if entry is None:
        return DecisionNotes("", mask)
    return DecisionNotes(_left_rows(run, entry), mask, _warnings(run, entry, decision))


def _left_rows(run: SagaRun, entry: Entry) -> str:
    child = child_saga_id(run, entry) if has_nested_undo(run, entry) else None
    operation = decided_operation(run, entry, "undo") if child is None else run.step(entry).do
    details = None if operation is None else restore_details(entry, operation)
    rows = "its rows" if child is None else f"the rows that the nested saga {child} has changed and not restored"
    names = [] if details is None else row_names(details)
    which = ""
    if details is not None and names:
        which = f": {', '.join(names)}{and_more(details['open_rows'] - len(names))}"
    elif child is not None:
        which = f" (`{saga_command('show', child)}`; their images: {images_query(run, entry).rstrip(';')})"
    return f"undo {entry.id}: {rows} stay as they are now{which}; the saga will end RESIDUE and list them"


def _warnings(run: SagaRun, entry: Entry, decision: DecisionMade) -> tuple[str, ...]:
    if decision.arguments is None or current_operation(run, entry) != "do":
        return ()
    step = run.step(entry)
    given = replaced_arguments(step.do.uses, decision.arguments, arguments.sent_arguments(entry, "do", step.do))
    warnings = corrections.note(step), corrected_probes.note(run, replace(entry, override=given))
    return tuple(warning for warning in warnings if warning is not None)
