"""The calls that a saga makes of one step, found by simulated runs: forward, undo and confirm, with keys and arguments.

The rest of the saga is simulated, so a real participant receives what a worker would send it for this step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sagas.definition.model import Definition, StepDefinition
from sagas.errors import UsageError
from sagas.protocol.messages import Call
from sagas.simulation.script import Environment, Script, SimulatedRun
from sagas.simulation.simulator import simulate_calls


@dataclass(frozen=True, slots=True)
class StepCalls:
    """The calls of ``step`` (of its first item, with a for_each) in the run ``saga_id``.

    ``results`` are those of the other steps, by step id; the others are samples. Every method raises UsageError if the
    saga would not make the call with this input, for example because an expression fails.
    """

    definition: Definition
    step: str
    input: Any
    saga_id: str
    results: Mapping[str, Any] = field(default_factory=dict)
    environment: Environment = field(default_factory=Environment)
    input_is_sample: bool = False

    def do(self) -> Call:
        """The forward call."""
        return self._find("do", self.definition, Script(results=self.results))

    def undo(self, result: Any) -> Call:
        """The compensation after the forward call was done with ``result``."""
        script = Script(results={**self.results, self.step: result}, cancel_at=self.step)
        return self._find("undo", self.definition, script)

    def undo_of_unknown(self) -> Call:
        """The compensation after the forward call has had no response, so that its result is null."""
        script = Script(results=self.results, outcomes={self.step: "unknown"})
        return self._find("undo", _without_retry_and_probe(self.definition, self.step), script)

    def confirm(self, result: Any) -> Call:
        """The confirm after the forward call was done with ``result``."""
        return self._find("confirm", self.definition, Script(results={**self.results, self.step: result}))

    def _find(self, op: str, definition: Definition, script: Script) -> Call:
        script = replace(script, input_is_sample=self.input_is_sample)
        run, calls = simulate_calls(definition, self.input, script, self.environment, saga_id=self.saga_id)
        call = next((call for call in calls if call.step == self.step and call.op == op), None)
        if call is None:
            raise UsageError(
                f"the saga makes no {op} call of {self.step} {script.with_input}{_reason(run, self.step)}",
                help="give another input with --input '{…}', or results of other steps with --results '{…}'",
            )
        return call


def _reason(run: SimulatedRun, step: str) -> str:
    for row in run.parked:
        if row["step"].partition("#")[0] == step:
            return f": {row['why']}"
    if run.reason is not None and run.reason["message"] and run.reason["kind"] != "cancelled":
        return f": {run.reason['message']}"
    return ""


def _without_retry_and_probe(definition: Definition, id: str) -> Definition:
    """The definition whose step stays unknown after one attempt, and is then compensated."""

    def changed(step: StepDefinition) -> StepDefinition:
        retry = replace(step.do.retry, max_attempts=1)
        return replace(step, do=replace(step.do, retry=retry), probe=None, on_failure="compensate")

    return replace(definition, steps=tuple(changed(step) if step.id == id else step for step in definition.steps))
