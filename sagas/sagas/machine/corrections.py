"""Compensations and confirms of a step that was called with arguments of an operator (`retry --with`).

In short form they get the arguments that the step was called with, so they follow the correction. Arguments that are
written out are computed from the definition, as if nothing had been corrected: they may name another account, and what
they undo or confirm may be another effect. Only an operator can tell, so such an operation is parked, once.

A step that runs again after a savepoint keeps its correction, if the definition computes what has been corrected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.definition.model import Operation, StepDefinition
from sagas.definition.sensitivity import without_values
from sagas.expressions import compile_value
from sagas.expressions.template_syntax import split_template
from sagas.machine.expressions.arguments import forward_arguments
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.state import Entry, EntryOperation, SagaRun, StepRecord
from sagas.text.exact_json import readable_json
from sagas.text.shortening import shorten_middle

_SHOWN = 400
"""Characters of the arguments in a message."""

NOT_FOLLOWED = "will not follow --with"
"""A part of each warning before a correction."""

_NAMES: Mapping[str, str] = {"undo": "compensation", "confirm": "confirm"}


def is_open(run: SagaRun, entry: Entry, op: EntryOperation) -> bool:
    """True for an operation that does not follow the correction of its step, before an operator has decided about it.

    The guard may choose ``compensate.confirmed`` once a confirm has begun.
    """
    operation, step = {"do": None, "undo": entry.undo, "confirm": entry.confirm}[op], run.step(entry)
    if entry.override is None or operation is None or operation.as_written or operation.override is not None:
        return False
    if op == "confirm":
        return _ignores_correction(step, step.confirm)
    if step.compensate is None:
        return False
    alternate, confirmed = step.compensate.alternates[operation.alternate], step.compensate.confirmed
    begun = operation.undoes_confirmed or (entry.confirm is not None and entry.confirm.state != "PENDING")
    certain = begun and confirmed is not None and entry.confirm is not None and entry.confirm.state == "DONE"
    return (not certain and _ignores_correction(step, alternate)) or (begun and _ignores_correction(step, confirmed))


def question(run: SagaRun, entry: Entry, op: EntryOperation, arguments: Mapping[str, Any]) -> str:
    """The question that an operator has to answer about the operation, which would be called with ``arguments``."""
    name, sensitive = _NAMES[op], run.plan.sensitive_values(run.input)
    corrected, written = (
        shorten_middle(readable_json(without_values(dict(value), sensitive)), _SHOWN)
        for value in (entry.override or {}, arguments)
    )
    return (
        f"{entry.id} was called with arguments that an operator had corrected, {corrected}, and its {name} has "
        f"arguments of the definition, which do not follow the correction, {written}: compare them, then `retry` "
        "calls it with these, and `retry --with` with others"
    )


def note(step: StepDefinition) -> str | None:
    """The warning before a correction of the step's arguments; None if all its operations follow them."""
    names = [_NAMES["undo"]] if any(_ignores_correction(step, each) for each in step.compensations) else []
    names += [_NAMES["confirm"]] if _ignores_correction(step, step.confirm) else []
    if not names:
        return None
    return (
        f"the {' and the '.join(names)} of {step.id} {NOT_FOLLOWED}, because the definition writes out the "
        "arguments: should one of them be needed, the saga parks before it and shows both"
    )


def of_entries(run: SagaRun, record: StepRecord) -> dict[str, list[Any]]:
    """The corrections of a step that will run again: what the definition computes, and what was given instead."""
    given = {entry.id: [computed(run, entry), entry.override] for entry in record.entries if entry.override is not None}
    return {**record.corrections, **given}


def carry_over(run: SagaRun, entry: Entry) -> None:
    """Correct an entry that runs again as in the run before it, unless its arguments are others now."""
    before = run.record(entry).corrections.pop(entry.id, None)
    if before is not None and before[0] == computed(run, entry):
        entry.override = before[1]


def computed(run: SagaRun, entry: Entry) -> dict[str, Any] | None:
    """The arguments of a step as the definition has them; None if they cannot be evaluated."""
    try:
        return forward_arguments(run, entry, None)
    except DefinitionError:
        return None


def _ignores_correction(step: StepDefinition, operation: Operation | None) -> bool:
    """True for arguments that say anything but what the step has returned, and under which key."""
    return operation is not None and operation.with_ is not None and not _is_of_the_call(step.id, operation.with_)


def _is_of_the_call(step: str, value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_of_the_call(step, item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(_is_of_the_call(step, item) for item in value)
    if not isinstance(value, str) or [part.expression for part in split_template(value)] != [True]:
        return False
    ((_, expression),) = compile_value(value).expressions
    paths = [reference.path for reference in expression.references]
    return bool(paths) and all(path[0] == "step" or path[:3] == ("steps", step, "result") for path in paths)
