"""Checks that the actions of a project can perform the calls of sagas that were started with an earlier version."""

from __future__ import annotations

from saga_workers.deploy.missing_settings import missing_setting
from sagas.builtins.registry import BUILTINS
from sagas.definition.action_arguments import argument_problem
from sagas.definition.input_validation import validate_input
from sagas.definition.literal_values import certain_input_problems
from sagas.definition.model import ENGINE_ACTIONS
from sagas.expressions.template_syntax import OPENING
from sagas.machine.builtin_actions import NESTED
from sagas.machine.remaining_calls import RemainingCall
from sagas.project import Project
from sagas.text.exact_json import encode_json

_OF_THE_ENGINE = ("sql.", "outbox.", "kafka.", "spark.", "saga.")
"""Beginnings of the names of operations that the engine adds to a step."""


def call_problem(project: Project, call: RemainingCall) -> str | None:
    """Why a worker of the project could not perform the call, as one sentence without a period; None if it could."""
    operation = call.operation
    if not operation.local:
        return None  # a worker of its task queue performs it
    if (missing := missing_setting(project, call)) is not None:
        return missing
    if operation.uses == NESTED and call.role == "do":
        return _nested_problem(project, call)
    if operation.uses in (*BUILTINS, *ENGINE_ACTIONS) or operation.uses.startswith(_OF_THE_ENGINE):
        return None
    action = project.actions.get(operation.uses)
    if action is None:
        return f"there is no action {operation.uses}"
    if action.connection != operation.connection:
        before, now = operation.connection or "no connection", action.connection or "no connection"
        return f"the action {action.name} runs on {now}, and these sagas have its guard rows on {before}"
    for name, value in call.arguments.items():
        if action.signature.find(name) is None:
            return f"the action {action.name} takes no argument {name}"
        is_computed = not call.recorded and OPENING.encode() in encode_json(value)
        if not is_computed and (problem := argument_problem(action, name, value)):
            what = f"{name} with the values of these sagas" if call.recorded else problem  # their values are not quoted
            return f"the action {action.name} does not take the argument {what}"
    for parameter in action.signature.missing(call.arguments):
        return f"the action {action.name} needs the argument {parameter.name}, which these sagas do not give"
    return None


def _nested_problem(project: Project, call: RemainingCall) -> str | None:
    """Why the nested saga could not be started."""
    name, given = call.arguments.get("name"), call.arguments.get("input")
    if name is None:
        return "which saga it starts is not known before the step begins: keep each one that its `name` may give"
    definition = project.definitions.get(name) if isinstance(name, str) else None
    if definition is None:
        return f"there is no saga {name}"
    problems = validate_input(definition, given)[1] if call.recorded else certain_input_problems(definition, given)
    if not problems:
        return None
    if call.recorded:
        return f"the saga {name} does not take the input that these sagas give"  # their values are not quoted
    return f"the saga {name} does not take its input: {problems[0]}"
