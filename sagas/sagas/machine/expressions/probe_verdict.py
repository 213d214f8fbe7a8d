"""The verdict of a probe about the effect, from its response."""

from __future__ import annotations

from typing import Any

from sagas.definition.model import Probe
from sagas.expressions.values import OmittedValue
from sagas.machine.expressions.context import expression_context
from sagas.machine.expressions.evaluation import evaluate, evaluate_condition
from sagas.machine.state import Entry, SagaRun
from sagas.protocol.outcomes import Outcome
from sagas.protocol.size_limits import measure, tells_size


def probe_verdict(run: SagaRun, entry: Entry, probe: Probe, outcome: Outcome) -> tuple[str, Any]:
    """The verdict of a probe's response: ``done`` with the result, ``absent`` or ``unknown``."""
    response = _readable_response(outcome.result)
    if outcome.marker == "absent":
        return "absent", None
    if probe.done is None and probe.absent is None:
        said = response.get("probe") if isinstance(response, dict) else None
        if said in ("done", "absent"):
            return said, response.get("result")
        return "unknown", None
    names = {**expression_context(run, entry), "response": response}
    if probe.done is not None and evaluate_condition(run, entry.step, "probe.done", probe.done, names):
        result = None
        if probe.result is not None:
            result = evaluate(run, (entry.step, "probe.result"), probe.result, names)
        return "done", result
    if probe.absent is not None and evaluate_condition(run, entry.step, "probe.absent", probe.absent, names):
        return "absent", None
    return "unknown", None


def _readable_response(response: Any) -> Any:
    """The response to a probe; a body that was too large is neither there nor missing."""
    if isinstance(response, dict) and tells_size(response):
        why = f"the body of the response has {measure(response)} and was not kept"
        return {**response, "json": OmittedValue(why), "text": OmittedValue(why)}
    return response
