"""Can a probe ever answer? One that cannot leaves every doubt where it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from sagas.definition.checks.results import schema_of_type
from sagas.definition.diagnostics import Report
from sagas.definition.draft import Draft, StepDraft
from sagas.definition.model import Probe
from sagas.definition.probes import can_answer, cannot_be_asked
from sagas.definition.schema_paths import Missing, follow, kind_of
from sagas.probing import Absent, Done, Unknown

if TYPE_CHECKING:
    from sagas.actions import Action

_EXAMPLES = {
    "http": "done: response.status == 200, absent: response.status == 404",
    "sql": "done: size(response) > 0, absent: size(response) == 0",
}


def check_probes(draft: Draft, report: Report) -> None:
    """Warn about each probe whose answers all count as unknown."""
    for step in draft.steps:
        for operation in step.operations:
            if operation.role != "probe" or step.step.do.guarded or answers(draft, step):
                continue
            uses = operation.operation.uses
            if cannot_be_asked(uses):
                help = "Ask with `http`, `sql`, an action of your own, or one on a task queue."
                report.add(
                    "SAGA222", operation.place, f"`{uses}` cannot be asked whether `{step.id}` took effect", help
                )
                continue
            example = _EXAMPLES.get(uses)
            help = f"Say what its answer means, for example {example}." if example else None
            says = "its action returns neither Done nor Absent, and it" if uses in draft.actions else "it"
            message = f"the probe of `{step.id}` can never answer: {says} has neither `done` nor `absent`"
            report.add("SAGA222", operation.place, message, help)


def answers(draft: Draft, step: StepDraft) -> bool:
    """True when the step has a probe that may find out what became of an attempt."""
    probe = step.step.probe
    if probe is None:
        return False
    action = draft.actions.get(probe.operation.uses)
    return can_answer(probe) if action is None else _action_answers(action, probe)


def _action_answers(action: Action, probe: Probe) -> bool:
    if probe.done is not None or probe.absent is not None:
        return True
    try:
        returned = get_type_hints(action.function, include_extras=True).get("return", Any)
    except (NameError, TypeError):
        return True  # the annotation says nothing here
    return any(_may_say(one) for one in _members(returned))


def _members(annotation: Any) -> tuple[Any, ...]:
    union = get_origin(annotation) is Union or type(annotation).__name__ == "UnionType"
    return get_args(annotation) if union else (annotation,)


def _may_say(annotation: Any) -> bool:
    """Whether a value of this type may say done or absent: as Done or Absent, or as an object with `probe`."""
    if annotation in (Done, Absent):
        return True
    if annotation in (type(None), Unknown):
        return False
    schema = schema_of_type(annotation)
    if kind_of(schema) not in (None, "object"):
        return False
    return not isinstance(follow(schema, ("probe",)), Missing)
