"""The view in a document that any client or worker may have written: the one place in which views are validated.

The memo of a run, the response to a query and the details of a failure are written by whoever ran the workflow, which
may be another client of the namespace. What a reader would paste into a shell or take for its own finding is therefore
never taken from the document: the commands are built anew, and the fields that only readers set are emptied.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

from sagas.input_limits import MAX_JSON_DEPTH
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import STATES, ChildParkedView, ChildView, Decision, ParkedView, SagaView
from sagas.text.json_forms import OBJECT
from sagas.text.json_values import json_problem
from sagas.text.shell import quote, saga_command

_MAX_DEPTH = MAX_JSON_DEPTH + 10
"""Levels of a view: those of a value, such as the details of a failure, in the row of a step."""

_DECISIONS: tuple[Decision, ...] = get_args(Decision)
_CORRECTIONS = ({"with": "{…}"}, {"definition": "FILE"})
_FORM = "RESULT-FORM"


def read_foreign_view(document: Any, saga_id: str) -> SagaView | None:
    """The view of the saga ``saga_id`` (or of its undo) in a document from outside; None if it contains none."""
    try:
        if document["state"] not in STATES or json_problem(document, max_depth=_MAX_DEPTH, half_pairs=True):
            return None
        view = SagaView.from_json({**document, "id": saga_id.removesuffix(UNDO_SUFFIX)})
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    view = replace(
        view,
        web_ui=None,
        bulk_workflow=None,
        stuck=None,
        needs_resume=None,
        continue_command=None,
        source=None,
        accesses=None,
    )
    if not view.parked and not any(child.waits for child in view.children):
        return view
    parked = tuple(_with_commands(view, operation) for operation in view.parked)
    return replace(view, parked=parked, children=tuple(map(_child_with_commands, view.children)))


def resolve_commands(
    saga_id: str, step: str, op: str, decisions: Sequence[Decision], written: Sequence[str]
) -> tuple[str, ...]:
    """The commands that make these decisions about a parked operation.

    ``written``: the commands of a document, which tell only whether a decision needs a correction, evidence or a result
    of some form. Any other text in them is ignored.
    """
    corrections = {saga_command("resolve", saga_id, step, "retry", reason="…", **given) for given in _CORRECTIONS}
    commands = [command for command in dict.fromkeys(written) if command in corrections]
    return (*commands, *(_resolve_command(saga_id, step, op, decision, written) for decision in decisions))


def _resolve_command(saga_id: str, step: str, op: str, decision: Decision, written: Sequence[str]) -> str:
    for evidence in (None, "…"):
        plain = saga_command("resolve", saga_id, step, decision, reason="…", evidence=evidence)
        if plain in written:
            return plain
        before, _, after = saga_command(
            "resolve", saga_id, step, decision, reason="…", result=_FORM, evidence=evidence
        ).partition(_FORM)
        for command in written if decision == "done" else ():
            form = _single_word(command.removeprefix(before).removesuffix(after))
            if form is not None and command == f"{before}{quote(form)}{after}":
                return command
    return saga_command(
        "resolve",
        saga_id,
        step,
        decision,
        reason="…",
        result=OBJECT if decision == "done" and op == "do" else None,
        evidence="…" if decision == "done" and op == "undo" else None,
    )


def _single_word(text: str) -> str | None:
    """The word that a shell reads in the text; None if it would read none or several."""
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    return words[0] if len(words) == 1 else None


def _with_commands(view: SagaView, operation: ParkedView) -> ParkedView:
    decisions = _known(operation.decisions)
    saga_id, step = view.id, operation.step
    for child in view.children:
        for wait in child.waits or ():
            if child.step == operation.step and wait.commands == operation.commands:
                saga_id, step = wait.id, wait.step  # the decision is made about the nested saga
    commands = resolve_commands(saga_id, step, operation.op, decisions, operation.commands)
    return replace(operation, decisions=decisions, commands=commands)


def _child_with_commands(child: ChildView) -> ChildView:
    return replace(child, waits=None if child.waits is None else tuple(map(_wait_with_commands, child.waits)))


def _wait_with_commands(wait: ChildParkedView) -> ChildParkedView:
    decisions = _known(wait.decisions)
    return replace(
        wait, decisions=decisions, commands=resolve_commands(wait.id, wait.step, wait.op, decisions, wait.commands)
    )


def _known(decisions: Sequence[Any]) -> tuple[Decision, ...]:
    return tuple(decision for decision in dict.fromkeys(decisions) if decision in _DECISIONS)
