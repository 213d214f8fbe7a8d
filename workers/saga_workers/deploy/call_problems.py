"""Checks that the actions of a project can perform the calls of sagas that were started with an earlier version."""

from __future__ import annotations

from sagas.builtins.registry import BUILTINS
from sagas.definition.action_arguments import argument_problem
from sagas.definition.model import ENGINE_ACTIONS
from sagas.expressions.template_syntax import OPENING
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
    if operation.connection is not None and operation.connection not in project.settings.connections:
        return f"the connection {operation.connection} is not in saga.toml"
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
        if OPENING.encode() not in encode_json(value) and (problem := argument_problem(action, name, value)):
            return f"the action {action.name} does not take the argument {problem}"
    for parameter in action.signature.missing(call.arguments):
        return f"the action {action.name} needs the argument {parameter.name}, which these sagas do not give"
    return None
