"""The outputs of a Spark step whose undo is parked, as the view shows them, and those that it leaves when skipped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.builtins.spark import DISCARD, PUBLISH, REVERT, output_place
from sagas.definition.model import Operation
from sagas.machine import calls
from sagas.machine.compensations import current_alternate
from sagas.machine.state import Entry, SagaRun
from sagas.protocol.messages import DecisionMade
from sagas.protocol.parked_rows_view import ParkedOutputView
from sagas.protocol.saga_view import EntryOperation
from sagas.text.sql_names import sql_text


def output_fields(entry: Entry, operation: Operation) -> dict[str, Any]:
    """The fields of :class:`ParkedView` about outputs; none if the undo has not reported any."""
    details = _reported(entry, operation)
    if details is None:
        return {}
    outputs = tuple(map(ParkedOutputView.from_json, details["outputs"]))
    return {"outputs": outputs, "reverted": tuple(details["reverted"]) or None}


def outputs_left(run: SagaRun, entry: Entry, operation: Operation, of: EntryOperation) -> list[dict[str, Any]] | None:
    """System, key and command of each output that is not as the end of the saga says; None if it is not a Spark step.

    The key is the place of the output. Without a report of the undo they are all outputs of the step.
    """
    if operation.uses not in (PUBLISH, DISCARD, REVERT):
        return None
    if of == "undo" and (details := _reported(entry, operation)) is not None:
        return [
            {"system": output["system"], "key": output["place"], "command": output.get("by_hand") or output["why"]}
            for output in details["outputs"]
        ]
    command = f"-- its state, in the database of the connection {operation.connection}:\n{_ledger_query(run, entry)}"
    outputs = calls.arguments_without_override(run, entry, of, operation).get("outputs")
    places = [output_place(output) for output in outputs.values()] if isinstance(outputs, Mapping) else []
    return [{"system": system, "key": place, "command": command} for system, place in places]


def closed_outputs(run: SagaRun, event: DecisionMade) -> list[str]:
    """The outputs that a decision closes: `done` says that an operator has reverted them by hand."""
    entry = run.entry(event.step)
    parked = run.parked.get(event.step)
    if event.decision != "done" or entry is None or entry.undo is None or parked is None or parked.op != "undo":
        return []
    step = run.step(entry)
    details = None if step.compensate is None else _reported(entry, current_alternate(step, entry.undo))
    return [] if details is None else [output["output"] for output in details["outputs"]]


def _reported(entry: Entry, operation: Operation) -> Mapping[str, Any] | None:
    if operation.uses not in (DISCARD, REVERT) or entry.undo is None or entry.undo.error is None:
        return None
    details = entry.undo.error.get("details") or {}
    return details if "outputs" in details and "reverted" in details else None


def _ledger_query(run: SagaRun, entry: Entry) -> str:
    return (
        "SELECT output, place, state, published, manifest FROM saga_output"  # noqa: S608 - shown, not run
        f" WHERE saga_id = {sql_text(run.saga_id)} AND step = {sql_text(entry.id)} AND generation = {entry.generation};"
    )
