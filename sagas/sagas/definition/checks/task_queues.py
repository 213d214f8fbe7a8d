"""Checks the task queues that a definition names: not every worker has the built-in actions."""

from __future__ import annotations

from collections.abc import Iterator

from sagas.builtins.registry import BUILTINS
from sagas.definition.diagnostics import Positioned, Report
from sagas.definition.parser.draft import OperationDraft, SagaDraft, StepDraft
from sagas.text.shortening import join_names


def check_task_queues(draft: SagaDraft, report: Report) -> None:
    """Warn about each `task_queue` that takes a built-in action away from the workers of the project's sagas.

    One finding for each place: `defaults` may send the actions of many steps there.
    """
    actions: dict[tuple[int, int], list[str]] = {}
    places: dict[tuple[int, int], tuple[Positioned, str]] = {}
    for step, operation in _operations(draft):
        queue, builtin = operation.operation.task_queue, BUILTINS.get(operation.operation.uses)
        if queue in (None, draft.project.task_queue) or builtin is None or builtin.executor == "engine":
            continue
        position = _position(draft, step, operation)
        place = position.line, position.column
        places[place] = position, queue
        actions.setdefault(place, []).append(f"`{builtin.name}`")
    for place, (position, queue) in places.items():
        names = list(dict.fromkeys(actions[place]))
        sent, them = ("action {} is", "it") if len(names) == 1 else ("actions {} are", "them")
        what = sent.format(join_names(names, 5))
        message = f"the built-in {what} sent to the task queue `{queue}`, where only a `saga worker` has {them}"
        report.add("SAGA235", position, message)


def _operations(draft: SagaDraft) -> Iterator[tuple[StepDraft | None, OperationDraft]]:
    for step in draft.steps:
        yield from ((step, operation) for operation in step.operations)
    yield from ((None, operation) for operation in draft.notify)


def _position(draft: SagaDraft, step: StepDraft | None, operation: OperationDraft) -> Positioned:
    """The place where its `task_queue` is written."""
    for form in (operation.parsed, None if step is None else step.parsed, draft.root.get("defaults")):
        if form is not None and "task_queue" in form:
            return form.node_of("task_queue")
    return operation.position
