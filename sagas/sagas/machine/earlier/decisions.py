"""Decisions of earlier runs: a step that one of them has left out stays left out, and a `finish` ends what it ended.

A read may answer this run differently. Without the decisions of the run before, both of two exclusive branches would be
done: the one whose effects are in place, and the other one, whose condition is true now.

The state of an earlier run tells what it has left out, or the ledger, if it has the saga. Without either a guard does:
a guarded step without a row was left out if a step behind it has one. Where nobody knows, and a read has certainly
answered differently, an operator decides about the step.
"""

from __future__ import annotations

from sagas.definition.analysis.exposure import used_steps
from sagas.definition.model import StepDefinition, has_effect
from sagas.expressions import compile_expression
from sagas.machine.earlier import effects
from sagas.machine.earlier.effects import item_numbers
from sagas.machine.expressions import expression_fields
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.state import Entry, SagaRun


def why_left_out(run: SagaRun, step: StepDefinition) -> str | None:
    """Why the step stays left out; None if no earlier run is known to have left it out."""
    if step.do.uses == "finish" or effects.exist(run, step.id):
        return None
    if run.earlier.decisions.get(step.id) is False:
        return "an earlier run of the saga has left this step out, and its decision stands"
    if run.earlier.state_is_lost and _was_passed(run, step):
        return "an earlier run of the saga has left this step out: the guard has steps behind it, and not this one"
    return None


def kept_read(run: SagaRun, entry: Entry) -> Entry | None:
    """The entry of a read, or of a wait, as an earlier run has left it, if decisions of that run depend on its result.

    Later decisions then depend on that result as well. A read that has decided nothing yet is made again.
    """
    step, left = run.step(entry), effects.left_record(run, entry.step)
    if left is None or has_effect(step) or step.do.uses in ("require", "finish"):
        return None
    earlier = next((other for other in left.entries if other.id == entry.id and other.outcome == "done"), None)
    if earlier is None or not any(_was_decided_by(run, other, step.id) for other in run.plan.steps.values()):
        return None
    return earlier


def _was_decided_by(run: SagaRun, step: StepDefinition, read: str) -> bool:
    """True if an earlier run has decided about the step with the result of this read."""
    if step.id not in run.earlier.decisions and step.id not in run.earlier.records:
        return False
    if step.do.uses == "finish" or step.for_each is not None:
        return read in used_steps(step)
    return step.if_ is not None and read in _named_in(step.if_)


def was_asked(run: SagaRun, step: StepDefinition) -> bool:
    """True for a step that an operator lets run, whatever its condition says."""
    return step.id in run.earlier.asked


def why_doubtful(run: SagaRun, step: StepDefinition) -> str | None:
    """Why nobody knows whether an earlier run has done or left out this step; None if there is no sign of another
    decision, or an operator was asked.
    """
    if not run.earlier.state_is_lost or was_asked(run, step) or effects.exist(run, step.id):
        return None
    for other in run.plan.steps.values():
        if not _reads_of(run, step).intersection(_reads_of(run, other)):
            continue
        if (sign := _other_decision(run, other)) is not None:
            run.earlier.asked.append(step.id)
            return (
                f"an earlier run of the saga has {sign} now, because a read answers differently: nobody knows whether "
                f"that run has left out {step.id}: decide `skip` to leave it out, or `retry` to do it"
            )
    return None


def _other_decision(run: SagaRun, step: StepDefinition) -> str | None:
    """The decision of an earlier run about the step, in words, if this run would decide otherwise; else None."""
    try:
        would_run = expression_fields.should_run(run, step)
    except DefinitionError:
        return None
    if effects.exist(run, step.id) and not would_run:
        return f"done {step.id}, which would be left out"
    if would_run and step.if_ is not None and why_left_out(run, step) is not None:
        return f"left out {step.id}, which would be done"
    return None


def _reads_of(run: SagaRun, step: StepDefinition) -> set[str]:
    """The steps on which it depends whether, or how often, this one runs, and whose results may differ in each run
    because no guard has kept them.
    """
    named = set(used_steps(step)) if step.do.uses == "finish" or step.for_each is not None else set[str]()
    named |= set() if step.if_ is None else _named_in(step.if_)
    return {id for id in named if id in run.plan.steps and not run.plan.steps[id].do.guarded}


def _named_in(condition: str) -> set[str]:
    paths = [reference.path for reference in compile_expression(condition).references]
    return {path[1] for path in paths if path[0] == "steps" and len(path) > 1}


def _was_passed(run: SagaRun, step: StepDefinition) -> bool:
    """True for a guarded step of which no guard has a row, although one has a row of a step behind it."""
    if step.if_ is None or not step.do.guarded or not has_effect(step) or run.steps[step.id].generation:
        return False
    recorded = {id.partition("#")[0] for id in run.earlier.in_guards}
    return not item_numbers(run.earlier.in_guards, step.id) and bool(recorded & run.plan.descendants(step.id))
