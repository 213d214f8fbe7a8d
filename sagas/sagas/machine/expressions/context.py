"""The names that an expression may use, and their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.builtins.callbacks import address_placeholder
from sagas.definition.model import Definition
from sagas.definition.times import format_timestamp
from sagas.expressions.values import OmittedValue
from sagas.input_limits import MAX_RESULT_VALUES
from sagas.machine.state import Entry, SagaRun, StepRecord
from sagas.machine.state_budget import STATE_BUDGET
from sagas.protocol.payloads import idempotency_key, input_digest
from sagas.protocol.result_room import RETURN_LESS
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES, is_omitted, measure


def expression_context(
    run: SagaRun, entry: Entry | None = None, *, key: str | None = None, with_own_result: bool = False
) -> dict[str, Any]:
    """The names an expression may use. ``with_own_result``: include the entry's own result, as in a compensation."""
    saga = saga_names(run.definition, run.saga_id, run.started_at)
    names: dict[str, Any] = {
        "input": run.input,
        "steps": run.step_values,
        "vars": run.variables,
        "saga": {**saga, "reason": run.reason},
    }
    if entry is None:
        return names
    forward_key = idempotency_key(run.saga_id, entry.id, entry.generation)
    names["step"] = step_names(forward_key, key)
    if run.plan.has_callbacks:
        run.input_digest = run.input_digest or input_digest(run.input)
        names["step"]["callback_url"] = address_placeholder(key or forward_key, run.input_digest)
    if entry.index is not None:
        items = run.record(entry).items or []
        unknown = OmittedValue(f"the item of {entry.id} is not known")
        names["item"] = items[entry.index] if entry.index < len(items) else unknown
        names["index"] = entry.index
    if with_own_result:
        own = readable_result(entry.id, entry.result)
        shown = {**run.step_values.get(entry.step, {}), "result": own, "state": entry.state}
        names["steps"] = {**run.step_values, entry.step: shown}
    return names


def saga_names(definition: Definition, saga_id: str, started_at: float | None) -> dict[str, Any]:
    """The value of ``saga`` in expressions, while there is no reason to roll back."""
    return {"id": saga_id, "name": definition.saga, "started_at": format_timestamp(started_at), "reason": None}


def step_names(forward_key: str, key: str | None = None) -> dict[str, Any]:
    """The value of ``step``. ``key``: that of the call, if it is not the forward one."""
    return {"key": key or forward_key, "forward_key": forward_key}


def publish_result(run: SagaRun, record: StepRecord) -> None:
    """Make a settled step visible to expressions. The cost does not depend on the number of steps."""
    step = run.plan.steps[record.id]
    if step.for_each is not None:
        ids = (entry.id for entry in record.entries)
        results = [readable_result(id, result) for id, result in zip(ids, record.results or [], strict=False)]
        run.step_values[record.id] = {"result": None, "results": results, "state": overall_state(record)}
        return
    entry = record.entries[0]
    good = entry.outcome == "done" and not entry.failure_ignored
    result = readable_result(entry.id, entry.result) if good else None
    run.step_values[record.id] = {"result": result, "results": None, "state": overall_state(record)}


def readable_result(id: str, result: Any) -> Any:
    """The result of an entry in expressions: one that was too large to be kept is not data, whatever reads it."""
    if not is_omitted(result):
        return result
    if "reason" in result:
        return OmittedValue(f"the result of {id} cannot be used: {result['reason']}")
    return OmittedValue(f"the result of {id} was not kept: {_passed_limit(result)}; {RETURN_LESS}")


def _passed_limit(placeholder: Mapping[str, Any]) -> str:
    """The limit that the result of this placeholder has passed: one of its own, or that of all results together."""
    size = measure(placeholder)
    if placeholder["omitted"] == "values":
        return f"it has {size}, and a result may have {MAX_RESULT_VALUES:,}"
    if placeholder["bytes"] > MAX_PAYLOAD_BYTES:
        return f"it has {size} as JSON, and a result may have {MAX_PAYLOAD_BYTES:,}"
    return f"it has {size} as JSON, and with it the results of the saga would pass {STATE_BUDGET:,} bytes compressed"


def overall_state(record: StepRecord) -> str:
    """The state of a step: that of its only entry, or of the first item that is not DONE."""
    for entry in record.entries:
        if entry.state not in ("DONE", "CONFIRMED") or record.items is None:
            return entry.state
    return "DONE" if record.settled else "RUNNING" if record.begun else "PENDING"
