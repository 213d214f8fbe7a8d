"""Checks whether probes can give a definite answer; one that cannot leaves every unknown attempt unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from sagas.actions.registry import Absent, Done, Unknown, schema_of_type
from sagas.builtins.messaging import DROP, EMITTERS, RELEASE
from sagas.builtins.registry import BUILTINS
from sagas.builtins.spark import SPARK
from sagas.definition.diagnostics import Report
from sagas.definition.input_schema import UndeclaredProperty, schema_at, single_type
from sagas.definition.model import Probe
from sagas.definition.parser.draft import SagaDraft, StepDraft
from sagas.definition.times import format_duration

if TYPE_CHECKING:
    from sagas.actions.registry import Action


_EXAMPLES = {
    "http": "done: response.status == 200, absent: response.status == 404",
    "sql": "done: size(response) > 0, absent: size(response) == 0",
}


def check_probes(draft: SagaDraft, report: Report) -> None:
    """Warn about each probe whose answers all count as unknown."""
    for step in draft.steps:
        for operation in step.operations:
            if operation.role != "probe" or step.step.do.guarded or answers(draft, step):
                continue
            uses = operation.operation.uses
            if cannot_be_asked(uses):
                help = "use `http`, `sql`, an action of your own, or one on a task queue"
                report.add(
                    "SAGA222", operation.position, f"`{uses}` cannot find out whether `{step.id}` took effect", help
                )
                continue
            example = _EXAMPLES.get(uses)
            help = f"map its response to a result, for example {example}" if example else None
            says = "its action returns neither Done nor Absent, and it" if uses in draft.project.actions else "it"
            message = f"the probe of `{step.id}` can never have a result: {says} has neither `done` nor `absent`"
            report.add("SAGA222", operation.position, message, help)


def check_settle(draft: SagaDraft, report: Report) -> None:
    """Warn where a probe is believed to find nothing while an attempt of the step could still be waiting."""
    for step in draft.steps:
        do, probe, settle = step.step.do, step.step.probe, step.step.settle
        if do.guarded or probe is None or probe.operation.seals or settle >= do.timeout:
            continue
        message = (
            f"the probe of `{step.id}` is believed to find nothing {format_duration(settle)} after an attempt that may "
            f"take {format_duration(do.timeout)}, and its effect may come later"
        )
        report.add("SAGA234", step.parsed.node_of("settle" if "settle" in step.parsed else "probe"), message)


def answers(draft: SagaDraft, step: StepDraft) -> bool:
    """True if the step has a probe that may give a definite answer."""
    probe = step.step.probe
    if probe is None:
        return False
    action = draft.project.actions.get(probe.operation.uses)
    return can_answer(probe) if action is None else _action_answers(action, probe)


def _action_answers(action: Action, probe: Probe) -> bool:
    if probe.done is not None or probe.absent is not None:
        return True
    try:
        returned = get_type_hints(action.function, include_extras=True).get("return", Any)
    except Exception:  # noqa: BLE001 - the annotation cannot be evaluated, which the signature reports
        return True
    return any(_may_say(member) for member in _members(returned))


def _members(annotation: Any) -> tuple[Any, ...]:
    union = get_origin(annotation) is Union or type(annotation).__name__ == "UnionType"
    return get_args(annotation) if union else (annotation,)


def _may_say(annotation: Any) -> bool:
    """True if a value of this type can mean done or absent: Done, Absent, or an object with `probe`."""
    if annotation in (Done, Absent):
        return True
    if annotation in (type(None), Unknown):
        return False
    schema = schema_of_type(annotation)
    if single_type(schema) not in (None, "object"):
        return False
    return not isinstance(schema_at(schema, ("probe",)), UndeclaredProperty)


# Which probes can give a definite answer, as far as the definition determines it
ANSWERS_BY_EXPRESSION = ("http", "sql", "reconcile")
"""Actions that never return Done or Absent: only `done` and `absent` can interpret their results."""


def cannot_be_asked(uses: str) -> bool:
    """True for a built-in action that cannot be a probe."""
    builtin = BUILTINS.get(uses)
    engine = builtin is not None and builtin.executor == "engine"
    return engine or uses in (SPARK, DROP, RELEASE, *EMITTERS)


def can_answer(probe: Probe) -> bool:
    """False if every answer of this probe counts as unknown."""
    uses = probe.operation.uses
    if cannot_be_asked(uses):
        return False
    return uses not in ANSWERS_BY_EXPRESSION or probe.done is not None or probe.absent is not None
