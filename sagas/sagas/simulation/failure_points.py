"""The failure points of a saga: one simulated run for each step and fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sagas.definition.model import Definition, StepDefinition, is_nested
from sagas.errors import SagaError
from sagas.simulation.script import Environment, Script, SimulatedRun
from sagas.simulation.simulator import simulate

LOCKED = "locked"
"""The fault before the step that requests the locks: another saga holds them for longer than `locks.wait`."""

FAULTS = ("rejected", "failed", "unknown", "crash after effect", "compensation fails", "late", "cancel", "deadline")
COLUMNS = (LOCKED, *FAULTS)
"""All faults, in the order of the table."""

INSTANTANEOUS = ("require", "pass", "finish")
"""Actions that take no time and depend on nothing but the saga: only the condition of a `require` can fail."""

MAX_ITEMS = 10
"""Maximum items tested of one for_each: the first ones and the last one, as the others behave alike."""


@dataclass(frozen=True, slots=True)
class FailurePoint:
    """The result of one fault at one step. ``step`` is an entry id; ``parked`` has the possible decisions."""

    step: str
    fault: str
    state: str
    undone: list[str]
    residue: list[dict[str, Any]]
    parked: list[dict[str, Any]] = field(default_factory=list)
    reason: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "fault": self.fault,
            "state": self.state,
            "undone": self.undone,
            "residue": self.residue,
        }


def failure_points(
    definition: Definition, input: Any, script: Script | None = None, environment: Environment | None = None
) -> list[FailurePoint]:
    """The table of `saga simulate`, in the order of steps. Faults that cannot happen to a step are left out.

    ``script`` gives results and signals. Raises SagaError when the saga does not complete without a fault.
    """
    plain = script or Script()
    usual = simulate(definition, input, plain, environment)
    require_completed(definition, plain, usual)
    cells = []
    for planned in planned_faults(definition, plain, usual):
        run = simulate(planned.definition, input, planned.script, environment)
        cells.append(
            FailurePoint(planned.step, planned.fault, run.state, run.undone, run.residue, run.parked, run.reason)
        )
    return cells


def require_completed(definition: Definition, script: Script, usual: SimulatedRun) -> None:
    """Raise SagaError unless ``usual``, the run without a fault, has completed."""
    if usual.state != "COMPLETED":
        raise SagaError(
            f"without a failure {definition.saga} ends {usual.state} {script.with_input}{_reason_phrase(usual)}",
            help="give an input (and results) with which it completes: --input '{…}'",
        )


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """The run of one fault at one step: the definition and the script with which it is simulated."""

    step: str
    fault: str
    definition: Definition
    script: Script


def planned_faults(definition: Definition, plain: Script, usual: SimulatedRun) -> Iterator[PlannedFault]:
    """The faults that can happen, in the order of the table. ``usual``: the run without a fault."""
    if definition.locks is not None:
        first = definition.locks.from_ or definition.steps[0].id
        yield PlannedFault(first, LOCKED, definition, replace(plain, locked=True))
    for step, entry in _entries(definition, usual):
        for fault in FAULTS:
            planned = _planned_fault(definition, plain, step, entry, fault, usual)
            if planned is not None:
                yield planned


def _reason_phrase(run: SimulatedRun) -> str:
    if run.parked:
        return f": {run.parked[0]['step']}: {run.parked[0]['why']}"
    return f": {run.reason['step'] or run.reason['kind']}: {run.reason['message']}" if run.reason else ""


def _entries(definition: Definition, usual: SimulatedRun) -> Iterator[tuple[StepDefinition, str]]:
    """The entries that ran, in the order of the definition."""
    for step in definition.steps:
        ran = [row["id"] for row in usual.steps if row["step"] == step.id and row["state"] in ("DONE", "CONFIRMED")]
        if step.for_each is not None:
            ran = [id for id in ran if "#" in id]
        if len(ran) > MAX_ITEMS:
            ran = [*ran[: MAX_ITEMS - 1], ran[-1]]
        for id in ran:
            yield step, id


def _planned_fault(
    definition: Definition,
    plain: Script,
    step: StepDefinition,
    entry: str,
    fault: str,
    fault_free_run: SimulatedRun,
) -> PlannedFault | None:
    """The run with this fault; None when the fault cannot happen to the step."""
    script: Script | None = None
    match fault:
        case "cancel" if step.do.uses not in INSTANTANEOUS:
            script = replace(plain, cancel_at=entry)
        case "deadline" if step.do.uses not in INSTANTANEOUS and definition.deadline is not None:
            script = replace(plain, deadline_at=entry)
        case "compensation fails":
            script = _script_of_failing_compensation(definition, plain, step, entry, fault_free_run)
        case "rejected" if step.do.uses == "require":
            definition = with_failing_require(definition, step)
            script = plain
        case "rejected" | "failed" | "unknown" | "crash after effect" | "late" if fault in _possible_outcomes(step):
            script = plain.with_outcomes({entry: fault})
    return None if script is None else PlannedFault(entry, fault, definition, script)


def _possible_outcomes(step: StepDefinition) -> tuple[str, ...]:
    """The faults that may happen to a call of this step."""
    if step.do.uses in INSTANTANEOUS:
        return ()
    if step.do.uses == "wait":
        given = step.do.with_ or {}
        if "signal" not in given:
            return ()
        return ("rejected", "unknown") if given.get("timeout") is not None else ("rejected",)
    if is_nested(step):
        return ("rejected", "failed", "unknown")
    if step.kind == "read":
        return ("rejected", "failed", "unknown")
    return FAULTS


def with_failing_require(definition: Definition, step: StepDefinition) -> Definition:
    """Return the definition with a false condition in the given `require` step."""
    never = replace(step, do=replace(step.do, with_={**(step.do.with_ or {}), "that": False}))
    return replace(definition, steps=tuple(never if other.id == step.id else other for other in definition.steps))


def _script_of_failing_compensation(
    definition: Definition, plain: Script, step: StepDefinition, entry: str, usual: SimulatedRun
) -> Script | None:
    """A script that triggers the compensation of an entry and rejects it (the first alternate, if it has several)."""
    if step.compensate is None and not (is_nested(step) and step.kind == "compensatable"):
        return None
    trigger = _rejectable_step_behind(definition, step, usual)
    if trigger is not None:
        return plain.with_outcomes({trigger: "rejected", f"{entry}/undo": ["rejected"]})
    # No later step can be rejected: a cancel while this one is in flight lets it finish and then undoes it.
    never = is_nested(step) or step.do.uses in INSTANTANEOUS
    return None if never else replace(plain.with_outcomes({f"{entry}/undo": ["rejected"]}), cancel_at=entry)


def _rejectable_step_behind(definition: Definition, step: StepDefinition, usual: SimulatedRun) -> str | None:
    """An entry of a dependent step whose rejection causes a rollback."""
    behind, last = {step.id}, None
    for other in definition.steps:
        if behind & set(other.needs):
            behind.add(other.id)
        ran = [row["id"] for row in usual.steps if row["step"] == other.id and row["state"] in ("DONE", "CONFIRMED")]
        rejects = other.do.uses not in ("wait", *INSTANTANEOUS) and other.on_failure == "compensate"
        if other.id != step.id and other.id in behind and other.kind != "retriable" and rejects and ran:
            last = next((id for id in ran if other.for_each is None or "#" in id), last)
            if other.pivot:
                return last
    return last
