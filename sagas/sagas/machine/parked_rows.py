"""The rows of a parked automatic undo, as the view shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.builtins.automatic import RESTORE
from sagas.definition.model import Operation, StepDefinition
from sagas.machine.builtin_actions import NESTED, child_saga_id, has_nested_undo
from sagas.machine.state import Entry, SagaRun
from sagas.protocol.outcomes import Outcome
from sagas.protocol.parked_rows_view import ParkedRowView
from sagas.sql_text.restoring_script import restoring_script
from sagas.text.shortening import counted
from sagas.text.sql_names import sql_text


def row_fields(run: SagaRun, entry: Entry, operation: Operation) -> dict[str, Any]:
    """The fields of :class:`ParkedView` about rows; none if the operation restores none, or has not looked at any."""
    details = restore_details(entry, operation)
    if details is None:
        return {}
    rows = tuple(map(ParkedRowView.from_json, details["rows"]))
    blocking = details["changed_rows"] or details["open_rows"]
    statements = details["sql"]
    missing = details["open_rows"] - len({change["row"] for change in details["sql"]})
    notes = [f"the database refuses it now: {details['sql_refused']}"] if details["sql_refused"] else []
    if details.get("unread"):
        notes.append(f"the rows could not be read, these are their images; all of them: {images_query(run, entry)}")
    elif missing:
        more = "more " if statements else ""
        which = counted(missing, f"{more}row is", f"{more}rows are")
        notes.append(f"{which} restored by the retry; their images: {images_query(run, entry)}")
    return {
        "system": details.get("system") or operation.connection,
        "rows": rows,
        "rows_omitted": blocking - len(rows) or None,
        "sql": restoring_script(details["dialect"], statements) if statements else None,
        "sql_note": "; ".join(notes) or None,
    }


def row_names(details: Mapping[str, Any]) -> list[str]:
    """The rows that the details name, those first that keep the undo from going on."""
    return list(dict.fromkeys(item["row"] for item in (*details["rows"], *details["sql"])))


def images_query(run: SagaRun, entry: Entry) -> str:
    """SQL that reads the images of all rows that the step, or its nested saga, has changed."""
    saga_id, step = sql_text(run.saga_id), sql_text(entry.id)
    changes = f"saga_id = {saga_id} AND step = {step} AND generation = {entry.generation}"
    if has_nested_undo(run, entry):
        child = child_saga_id(run, entry)
        changes = f"(saga_id = {sql_text(child)} OR substr(saga_id, 1, {len(child) + 1}) = {sql_text(f'{child}/')})"
    return (
        "SELECT table_name, row_key, before_image, after_image FROM saga_image"  # noqa: S608 - shown, not run
        f" WHERE {changes} AND sequence <> 0 ORDER BY created_at, sequence;"
    )


def rows_left_to(step: StepDefinition, outcome: Outcome) -> list[str]:
    """The entries whose undos restore rows of the step, after its own undo."""
    restores = step.compensate is not None and any(
        operation.uses == RESTORE for operation in step.compensate.alternates
    )
    return list(outcome.result.get("left_to", ())) if restores and isinstance(outcome.result, Mapping) else []


def restore_details(entry: Entry, operation: Operation) -> Mapping[str, Any] | None:
    """The rows that the last attempt to restore them has reported; None if there is none, or it has looked at none."""
    if operation.uses not in (RESTORE, NESTED) or entry.undo is None or entry.undo.error is None:
        return None
    details = entry.undo.error.get("details") or {}
    return details if "open_rows" in details else None
