"""Effects that contradict the end of a saga: where each one is, its key, and the command that repairs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sagas.builtins.automatic import RESTORE
from sagas.builtins.spark import PUBLISH
from sagas.builtins.two_phase import COMMIT, ROLLBACK
from sagas.definition.sensitivity import without_values
from sagas.machine import calls, corrections, parked_outputs, parked_rows
from sagas.machine.builtin_actions import has_nested_undo
from sagas.machine.compensations import current_alternate
from sagas.machine.state import Entry, SagaRun
from sagas.protocol.payloads import idempotency_key
from sagas.protocol.saga_view import EntryOperation
from sagas.sql_text.restoring_script import restoring_command
from sagas.text.shell import saga_command

ResidueKind = Literal["effect_stays", "effect_missing", "effect_unclear"]


def add_residue(run: SagaRun, entry: Entry, kind: ResidueKind, op: EntryOperation) -> None:
    """Record a residue: the effect that stays or is missing, its system and key, and the command that repairs it."""
    step = run.step(entry)
    if kind == "effect_missing" and _may_have_happened(run, entry, op):
        kind = "effect_unclear"
    operation, effect = step.do, step.do
    of: EntryOperation = "do"  # a nested saga has no undo with arguments
    if op == "undo" and step.compensate is not None and entry.undo is not None:
        operation, of = current_alternate(step, entry.undo), "undo"
    elif op == "confirm" and step.confirm is not None and entry.confirm is not None:
        operation, effect, of = step.confirm, step.confirm, "confirm"
    # After an undo that is skipped the effect of the forward call stays, which the participant knows by its key.
    key = idempotency_key(run.saga_id, entry.id, entry.generation, "confirm" if op == "confirm" else "")
    if operation.uses == RESTORE:
        details = parked_rows.restore_details(entry, operation)
        rows = _rows_left(run, entry, operation.connection, details, key)
        run.residue += [{"step": entry.id, "kind": kind, **row} for row in rows]
        return
    outputs = parked_outputs.outputs_left(run, entry, operation, of)
    if outputs:
        if kind == "effect_unclear":
            outputs = [{**output, "command": saga_command("reconcile", run.saga_id)} for output in outputs]
        run.residue += [{"step": entry.id, "kind": kind, **output} for output in outputs]
        return
    sensitive = run.plan.sensitive_values(run.input)
    called = without_values(calls.arguments_without_override(run, entry, of, operation), sensitive)
    command = f"{operation.uses} {calls.compact_json(called)}"
    if corrections.is_open(run, entry, of):
        command += f"; the step was called with {calls.compact_json(without_values(entry.override, sensitive))} instead"
    if kind == "effect_stays" and op == "do":
        command = f"undo what {command} has done"  # nothing in the definition does
    if operation.uses in (ROLLBACK, COMMIT):
        # Its id is the database's, and the reconciliation names it with the statement that ends it.
        command = saga_command("reconcile", run.saga_id)
    run.residue.append({"step": entry.id, "kind": kind, "system": effect.system, "key": key, "command": command})
    if op == "undo" and has_nested_undo(run, entry):
        run.residue += [{"step": entry.id, "kind": kind, **row} for row in _nested_rows_left(run, entry, key)]


def _may_have_happened(run: SagaRun, entry: Entry, op: EntryOperation) -> bool:
    """True if an attempt of the skipped call may have had its effect. A failed publication may be visible in part: some
    catalogs commit table by table, outside of the guard's transaction.
    """
    if op != "confirm":
        return entry.outcome == "unknown"
    confirm, called = entry.confirm, run.step(entry).confirm
    if confirm is None or called is None:
        return False
    return confirm.outcome == "unknown" or (called.uses == PUBLISH and confirm.attempts != 0)


def _rows_left(
    run: SagaRun, entry: Entry, system: str | None, details: Mapping[str, Any] | None, key: str
) -> list[dict[str, Any]]:
    """System, key and command of each row that stays as the step has left it. ``details``: None if nothing is known.

    The rows may be in each other's way, so the command of the first one restores all of them.
    """
    rows: list[dict[str, Any]] = []
    if details and details.get("unread"):
        query = parked_rows.images_query(run, entry)
        rows += [{"system": system, "key": row["row"], "command": query} for row in details["rows"]]
    elif details and (named := details["sql"]):
        command = restoring_command(details["dialect"], named)
        for name in dict.fromkeys(item["row"] for item in named):
            rows.append({"system": system, "key": name, "command": command})
            command = f"-- restored by the SQL of {rows[0]['key']}"
    if details is None or details["open_rows"] > len(rows):
        rows.append({"system": system, "key": key, "command": parked_rows.images_query(run, entry)})
    return rows


def _nested_rows_left(run: SagaRun, entry: Entry, key: str) -> list[dict[str, Any]]:
    """The rows that stay as a nested saga has left them, by connection."""
    parts = ((entry.undo and entry.undo.error) or {}).get("details", {}).get("parts", ())
    return [row for part in parts for row in _rows_left(run, entry, part["system"], part, key)]
