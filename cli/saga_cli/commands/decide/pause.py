"""`saga pause` and `saga resume`: stop a saga from starting anything new, and let it go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from saga_cli.context import with_locator
from saga_cli.output import echo, print_document
from saga_cli.shared_options import operator_name, print_target

if TYPE_CHECKING:
    from saga_workers.location.locator import Locator
    from sagas.protocol.saga_view import SagaView
    from sagas.settings import Settings


def pause(
    saga_id: Annotated[str, typer.Argument(help="the saga's id")],
    reason: Annotated[str, typer.Option(help="reason; shown while the saga is paused")] = "",
    as_: Annotated[str | None, typer.Option("--as", help="name of the operator; default: SAGA_USER")] = None,
) -> int:
    """Stop a running saga from starting calls until `saga resume`: no step, no compensation, no confirm.

    Calls in flight go on, with Temporal's retries, and timers run. A deadline that passes, a cancel and a decision are
    handled, and the calls that follow from them wait for `saga resume`. Nested sagas that run are not paused. Needs a
    worker of that saga.
    """
    from saga_workers import interventions

    view = _ask(lambda locator: interventions.pause(locator, saga_id, reason=reason, who=operator_name(as_)))
    held = list(view.paused.held) if view.paused else []
    in_flight = [step.id for step in view.steps if step.state in _IN_FLIGHT and step.id not in held]
    note = f"in flight: {', '.join(in_flight)}" if in_flight else "nothing is in flight"
    document = {"id": saga_id, "response": "paused", "held": held, "in_flight": in_flight}
    print_document(document, human=lambda: echo(f"{saga_id}: paused; {note}"))
    return 0


def resume(
    saga_id: Annotated[str, typer.Argument(help="the saga's id")],
    as_: Annotated[str | None, typer.Option("--as", help="name of the operator; default: SAGA_USER")] = None,
) -> int:
    """Let a paused saga go on with what was held back."""
    from saga_workers import interventions

    view = _ask(lambda locator: interventions.resume(locator, saga_id, who=operator_name(as_)))
    document = {"id": saga_id, "response": "resumed", "state": view.state}
    print_document(document, human=lambda: echo(f"{saga_id}: resumed; it is {view.state}"))
    return 0


_IN_FLIGHT = ("RUNNING", "COMPENSATING", "CONFIRMING")


def _ask(ask: Callable[[Locator], Awaitable[SagaView]]) -> SagaView:
    async def run(locator: Locator, settings: Settings) -> SagaView:
        print_target(settings)
        return await ask(locator)

    return with_locator(run)
