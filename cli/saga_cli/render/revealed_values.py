"""The lines of `saga show ID --reveal --reason TEXT` with the values of a saga, which its view has in clear."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from saga_cli.output import to_json
from sagas.presentation.styled_text import Line
from sagas.protocol.saga_view import SagaView


def value_lines(view: SagaView) -> list[Line]:
    """A line for the input, the arguments and the result of each operation, and the output, as JSON."""
    rows = list(_values(view))
    width = max((len(name) for name, _ in rows), default=0)
    return [[(name.ljust(width) + "  ", "bold"), (to_json(value), "")] for name, value in rows]


def _values(view: SagaView) -> Iterator[tuple[str, Any]]:
    yield "input", view.input
    for step in view.steps:
        operations = {"": step, " undo": step.compensation, " confirm": step.confirmation}
        for name, operation in operations.items():
            if operation is not None and operation.arguments is not None:
                yield f"{step.id}{name} with", operation.arguments
        if step.result is not None:
            yield f"{step.id} result", step.result
        if step.error is not None and step.error.details:
            yield f"{step.id} error", step.error.details
    if view.output is not None:
        yield "output", view.output
