"""`saga pause` and `saga resume`: stop a saga from starting anything new, and let it go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import load_settings, with_locator
from saga_cli.output import echo, print_document
from saga_cli.shared_options import Operator, operator_name, print_target, warn_without_poller

if TYPE_CHECKING:
    from saga_workers.location.locator import Locator
    from sagas.protocol.saga_view import SagaView
    from sagas.settings import Settings


def pause(
    saga_id: Annotated[str, typer.Argument(help="the saga's id")],
    reason: Annotated[str, typer.Option(help="reason; shown while the saga is paused")] = "",
    as_: Operator = None,
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
    reason: Annotated[str, typer.Option(help="reason; recorded with the saga")] = "",
    definition: Annotated[
        Path | None, typer.Option(help="the definition the saga was started with, if the project has a newer one")
    ] = None,
    input: Annotated[
        str | None, typer.Option(help="its input, if the guard has not kept it: JSON, @FILE, or -")
    ] = None,
    undone: Annotated[
        list[str] | None,
        typer.Option(metavar="STEP", help="its undo in another database or service has happened; repeatable"),
    ] = None,
    not_ended: Annotated[
        bool, typer.Option("--not-ended", help="it had not ended, although its run was deleted long ago")
    ] = False,
    as_: Operator = None,
) -> int:
    """Let a paused saga go on, or continue a terminated or deleted one whose effects are open.

    A terminated saga is continued where it stood: backward before its commit point, forward after it.

    A saga without a run is started with what the guard has kept of its start. Effects that are there are not made
    again, so it gets to where it was; a `wait` waits for its signal again. Then cancel it, or let it go on. The same
    holds for a saga whose open run was started with another input than its effects: that run is ended first.
    """
    import asyncio

    from saga_cli.inputs import read_definition, read_input
    from saga_workers import interventions
    from saga_workers.client import Client
    from saga_workers.reconcile.terminated_runs import continue_terminated
    from saga_workers.resumption import ABSENT, is_left, must_be_started_again, start_again
    from saga_workers.views.saga_view import read_view
    from sagas.settings.project import Project

    settings = load_settings()
    project = Project(settings)
    given = None if definition is None else read_definition(definition, project)
    value = ABSENT if input is None else read_input(input, [])

    async def run() -> dict[str, Any]:
        async with await Client.connect(project) as client:
            print_target(settings)
            location = await client.locator.locate(saga_id)
            who = operator_name(as_) or client.temporal.identity
            if is_left(location):
                done = await continue_terminated(client.locator, saga_id, who, reason)
                state = (await read_view(client.locator, saga_id)).state
                return {"id": saga_id, "response": done, "state": state}
            if not await must_be_started_again(client, location):
                view = await interventions.resume(client.locator, saga_id, reason=reason, who=who)
                return {"id": saga_id, "response": "resumed", "state": view.state}
            started = await start_again(
                client,
                location,
                definition=given,
                input=value,
                undone=undone or (),
                not_ended=not_ended,
                who=who,
                reason=reason,
            )
            await warn_without_poller(client)
            return {"id": started.id, "response": "started again", "state": "RUNNING"}

    document = asyncio.run(run())
    print_document(document, human=lambda: echo(f"{saga_id}: {_in_words(document)}"))
    return 0


def _in_words(document: dict[str, Any]) -> str:
    is_in = f"it is {document['state']}"
    return document["response"] if is_in in document["response"] else f"{document['response']}; {is_in}"


_IN_FLIGHT = ("RUNNING", "COMPENSATING", "CONFIRMING")


def _ask(ask: Callable[[Locator], Awaitable[SagaView]]) -> SagaView:
    async def run(locator: Locator, settings: Settings) -> SagaView:
        print_target(settings)
        return await ask(locator)

    return with_locator(run)
