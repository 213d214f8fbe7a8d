"""`saga show ID --reveal --reason TEXT`: the view with the `x-sensitive` values in clear.

Each look is recorded before it happens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from saga_workers.location.locator import Locator
from saga_workers.privacy.saga_values import read_input, read_state
from saga_workers.privacy.sensitive_words import word_mask
from sagas.definition.times import read_timestamp
from sagas.errors import RefusedError, SagaError
from sagas.machine.machine import Machine
from sagas.project import Project
from sagas.protocol.saga_view import ErrorView, OperationView, SagaView, StepView
from sagas.settings import Settings
from sagas.text.shell import saga_command


async def revealed_view(
    locator: Locator, settings: Settings, view: SagaView, *, who: str, reason: str | None
) -> SagaView:
    """The view with the values of its saga in clear, as far as they can be read; ``incomplete`` says if some cannot.

    Raises RefusedError if the values were forgotten, and SagaError if no value can be read.
    """
    location = await locator.locate_known(view.id)
    state = await read_state(locator, location)
    given = await read_input(locator, location) if state is None else None
    if state is None and given is None:
        since = read_timestamp(view.started_at)
        if (forgotten := await locator.ledger.begun_forgetting(view.id, since)) is not None:
            because = f", because {forgotten.reason}" if forgotten.reason else ""
            raise RefusedError(
                f"the values of {view.id} were forgotten at {forgotten.at} by {forgotten.who}{because}",
                help=f"{saga_command('show', view.id)}    shows the rest",
            )
        raise SagaError(
            f"the values of {view.id} cannot be read here: no worker of it answers with a key of this project, or they"
            " are encrypted with a key that is not in [codec]",
            help="start a worker, or run the command where the key is",
        )
    if reason:
        reason = (await word_mask(locator, Project(settings), view.id))(reason)
    await locator.ledger.record_access(view.id, "reveal", who=who, reason=reason)
    if state is None:
        why = "results and messages are masked, as no worker answers"
        return replace(view, input=given, incomplete=view.incomplete or why)
    return _with_values(view, Machine.restore(state).view(reveal=True))


def _with_values(view: SagaView, clear: SagaView) -> SagaView:
    """The view with the values of ``clear``. What only Temporal knows, such as attempts in flight, stays."""
    steps = {step.id: step for step in clear.steps}
    reason = view.reason
    if reason and clear.reason and reason.kind == clear.reason.kind:
        reason = replace(reason, message=clear.reason.message, details=clear.reason.details)
    return replace(
        view,
        input=clear.input,
        output=clear.output,
        reason=reason,
        steps=tuple(_step(step, steps[step.id]) if step.id in steps else step for step in view.steps),
        operator=clear.operator,
    )


def _step(step: StepView, clear: StepView) -> StepView:
    return replace(
        step,
        result=clear.result,
        arguments=clear.arguments,
        error=_error(step.error, clear.error),
        compensation=_operation(step.compensation, clear.compensation),
        confirmation=_operation(step.confirmation, clear.confirmation),
    )


def _operation(operation: OperationView | None, clear: OperationView | None) -> OperationView | None:
    if operation is None or clear is None:
        return operation
    return replace(operation, arguments=clear.arguments, error=_error(operation.error, clear.error))


def _error(error: ErrorView | None, clear: ErrorView | None) -> ErrorView | None:
    is_same: Any = error is not None and clear is not None and error.type == clear.type
    return clear if is_same else error
