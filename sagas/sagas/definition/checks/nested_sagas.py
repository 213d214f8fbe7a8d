"""Checks the nested sagas of a definition, when every definition of the project is known."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sagas.definition.analysis.possible_names import UNKNOWN, PossibleNames, distinct_names, names_of_template
from sagas.definition.checks.scopes import ExpressionScope
from sagas.definition.diagnostics import Report, suggestion_help
from sagas.definition.literal_values import input_mistakes
from sagas.definition.model import Definition, StepDefinition
from sagas.definition.parser.draft import SagaDraft, StepDraft
from sagas.definition.parser.yaml_nodes import YamlNode
from sagas.expressions import ExpressionError


@dataclass(frozen=True, slots=True)
class _NestedSaga:
    """A saga that a step may start. ``perhaps_never``: its name is one of a list, and the step has an `if`, which may
    leave the step out for this name.
    """

    step: StepDraft
    name: str
    position: YamlNode
    perhaps_never: bool


def check_nested(
    draft: SagaDraft, sagas: Mapping[str, Definition], has_errors: Callable[[str], bool], report: Report
) -> None:
    """Check that every `uses: saga` names a saga that takes its input, and can be undone if the parent may roll back.

    ``has_errors``: whether a saga that is not one of ``sagas`` may be defined in a file with errors.
    """
    for nested in _nested_sagas(draft):
        step, name, position = nested.step, nested.name, nested.position
        child = sagas.get(name)
        if child is None and not has_errors(name) and not nested.perhaps_never:
            report.add("SAGA213", position, f"there is no saga `{name}`", suggestion_help(name, sagas) or None)
        elif child is not None and _must_be_undone(step):
            reason = undo_obstacle(child)
            if reason:
                report.add("SAGA211", position, f"the nested saga `{name}` cannot be undone: {reason}")
        if child is not None:
            written = step.parsed.node_of("with").value.get("input")
            for place, message in input_mistakes(child, written):
                report.add("SAGA215", place or position, f"`{step.id}` starts `{name}`: {message}")


def check_nested_definitions(draft: SagaDraft, sagas: Container[str], valid: Container[str], report: Report) -> None:
    """Check that every saga named in a `uses: saga` is one of the ``valid`` ones among ``sagas``: it could be started,
    and would have to be undone at that step.
    """
    for nested in _nested_sagas(draft):
        if nested.name not in valid and (nested.name in sagas or not nested.perhaps_never):
            message = f"there is no valid definition of the nested saga `{nested.name}`"
            report.add("SAGA217", nested.position, message)


def _nested_sagas(draft: SagaDraft) -> Iterator[_NestedSaga]:
    """The sagas that the steps with `uses: saga` may start, as far as their names are literals or from a list."""
    for step in draft.steps:
        written = (step.step.do.with_ or {}).get("name")
        if step.step.do.uses != "saga" or not isinstance(written, str):
            continue
        scope, is_computed = ExpressionScope(draft, "do", step), "${{" in written
        try:
            names = names_of_template(written, lambda path, scope=scope: _values_in_schema(scope, path)).names
        except ExpressionError:
            continue  # reported where expressions are checked
        for name in names:
            position = step.parsed.node_of("with").value["name"]
            yield _NestedSaga(step, name, position, is_computed and "if" in step.parsed)


def _values_in_schema(scope: ExpressionScope, path: Sequence[str]) -> PossibleNames:
    if path[0] not in ("input", "item"):
        return distinct_names([scope.draft.definition.saga]) if tuple(path) == ("saga", "name") else UNKNOWN
    schema = scope.schema_of(tuple(path))
    if not isinstance(schema, Mapping):
        return UNKNOWN
    if "const" in schema:
        return distinct_names([schema["const"]])
    values = schema.get("enum")
    return distinct_names(values) if isinstance(values, list) else UNKNOWN


def _must_be_undone(step: StepDraft) -> bool:
    return not (step.after_commit or step.step.pivot or step.step.compensate)


def undo_obstacle(definition: Definition) -> str | None:
    """Why a committed run of this saga cannot be undone (rule 15); None if it can."""
    if definition.recovery == "forward":
        return "it has `recovery: forward`"
    if definition.pivot is not None:
        return f"it has a point of no return, `{definition.pivot.id}`"
    for step in definition.steps:
        if keeps_confirmed(step):
            return f"`{step.id}` is confirmed, and nothing undoes it after that (no `compensate.confirmed`)"
    return None


def keeps_confirmed(step: StepDefinition) -> bool:
    """True for a step that stays as it is once it is confirmed."""
    return step.confirm is not None and (step.compensate is None or step.compensate.confirmed is None)
