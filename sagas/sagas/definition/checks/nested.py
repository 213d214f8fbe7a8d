"""Nested sagas, checked once every definition of the project is known."""

from __future__ import annotations

from collections.abc import Mapping

from sagas.definition.diagnostics import Report, did_you_mean
from sagas.definition.draft import Draft, StepDraft
from sagas.definition.model import Definition


def check_nested(draft: Draft, sagas: Mapping[str, Definition], *, certain: bool, report: Report) -> None:
    """Every `uses: saga` names a saga, and one that can be undone where the parent may go backward.

    ``certain`` False: some file could not be read, so a name that is missing may well be in it.
    """
    for step in draft.steps:
        arguments = step.step.do.with_ or {}
        name = arguments.get("name")
        if step.step.do.uses != "saga" or not isinstance(name, str) or "${{" in name:
            continue
        place = step.parsed.at("with").value["name"]
        child = sagas.get(name)
        if child is None and certain:
            report.add("SAGA213", place, f"there is no saga `{name}`", did_you_mean(name, sagas) or None)
        elif child is not None and _must_be_undone(step):
            reason = why_not_undone(child)
            if reason:
                report.add("SAGA211", place, f"the nested saga `{name}` cannot be undone: {reason}")


def _must_be_undone(step: StepDraft) -> bool:
    return not (step.after_commit or step.step.pivot or step.reads or step.step.compensate)


def why_not_undone(definition: Definition) -> str | None:
    """Why a committed run of this saga cannot be undone (rule 15); None when it can."""
    if definition.recovery == "forward":
        return "it only goes forward"
    if definition.pivot is not None:
        return f"it has a point of no return, `{definition.pivot.id}`"
    for step in definition.steps:
        if step.confirm and (step.compensate is None or step.compensate.confirmed is None):
            return f"`{step.id}` is confirmed, and nothing undoes it after that (`compensate.confirmed`)"
    return None
