"""The task queues besides its own that the steps of a project name."""

from __future__ import annotations

from collections.abc import Iterable

from sagas.definition.model import Definition


def actions_on_other_queues(definitions: Iterable[Definition], own: str) -> dict[str, set[str]]:
    """Task queues other than ``own``, with the actions that steps run there."""
    actions: dict[str, set[str]] = {}
    for definition in definitions:
        for step in definition.steps:
            for operation in step.operations_and_probe:
                if operation.task_queue and operation.task_queue != own:
                    actions.setdefault(operation.task_queue, set()).add(operation.uses)
    return actions
