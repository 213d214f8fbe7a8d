"""`saga pause` and `saga resume`: stop a saga from starting anything new, and let it go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.commands.decide.standing_pauses import begin_standing_pause, end_standing_pause, is_standing
from saga_cli.context import load_settings, with_locator
from saga_cli.output import echo, print_document
from saga_cli.own_identity import own_identity
from saga_cli.shared_options import Operator, Yes, operator_name, print_target, warn_without_poller
from saga_cli.wait import NEEDS_A_WORKER, noting_silence
from saga_cli.where_option import SagaRequest, ask_running_sagas
from sagas.errors import UsageError

if TYPE_CHECKING:
    from saga_workers.location.locator import Locator
    from sagas.settings import Settings


def pause(
    saga_id: Annotated[str | None, typer.Argument(help="the saga's id")] = None,
    where: Annotated[str | None, typer.Option(help="all running sagas that match this Temporal list filter")] = None,
    saga: Annotated[
        str | None, typer.Option(help="all sagas of this name, also those started later; needs a ledger")
    ] = None,
    connection: Annotated[
        str | None,
        typer.Option(help="every step that needs this connection, also of sagas started later; needs a ledger"),
    ] = None,
    reason: Annotated[str, typer.Option(help="reason; shown while the saga is paused")] = "",
    as_: Operator = None,
    yes: Yes = False,
) -> int:
    """Stop a running saga from starting calls until `saga resume`: no step, no compensation, no confirm.

    Calls in flight go on, with Temporal's retries, and timers run. A deadline that passes, a cancel and a decision are
    handled, and the calls that follow from them wait for `saga resume`. Nested sagas that run are not paused. Needs a
    worker of that saga.

    With --where all sagas that run now and match are paused, also nested ones, and the exit code is the highest of all.
    Those of bulk workflows also match, if the filter has only comparisons of WorkflowType, WorkflowId, StartTime and
    SagaLabels, joined by AND.

    With --saga or --connection the pause holds until `saga resume` with the same option, also for sagas that are
    started meanwhile: they start, and wait. No attempt is used up, and no worker has to answer.
    """
    by = operator_name(as_)
    if is_standing(saga_id, where, saga, connection, "saga pause --help"):
        return begin_standing_pause(saga, connection, reason, by)
    if where is not None:
        request = SagaRequest(
            "pauses",
            lambda locator, id: _pause_further(locator, id, reason, by),
            nested=True,
            without_answer=NEEDS_A_WORKER,
        )
        return ask_running_sagas(request, where, yes=yes)
    assert saga_id is not None

    async def ask(locator: Locator, settings: Settings) -> dict[str, Any]:
        print_target(settings)
        async with noting_silence("pause"):
            return await _pause(locator, saga_id, reason, by)

    row = with_locator(ask)
    note = row.pop("note")
    print_document(row, human=lambda: echo(f"{saga_id}: {note}"))
    return 0


async def _pause(locator: Locator, saga_id: str, reason: str, by: str | None) -> dict[str, Any]:
    from saga_workers import intervention_answers

    return await intervention_answers.pause(locator, saga_id, reason=reason, who=by)


async def _pause_further(locator: Locator, saga_id: str, reason: str, by: str | None) -> dict[str, Any]:
    """Pause a saga that is not paused by itself yet: an earlier pause stays as it is, with its reason."""
    from saga_workers.views.saga_view import read_view

    view = await read_view(locator, saga_id)
    if view.paused is not None and view.paused.kind is None:
        return {"id": saga_id, "response": "already paused", "held": list(view.paused.held), "note": view.pause_text}
    return await _pause(locator, saga_id, reason, by)


def resume(
    saga_id: Annotated[str | None, typer.Argument(help="the saga's id")] = None,
    where: Annotated[str | None, typer.Option(help="all paused sagas that match this Temporal list filter")] = None,
    saga: Annotated[str | None, typer.Option(help="end the pause of all sagas of this name")] = None,
    connection: Annotated[
        str | None, typer.Option(help="end the pause of this connection, and close its circuit breaker")
    ] = None,
    reason: Annotated[str, typer.Option(help="reason; recorded with the saga")] = "",
    definition: Annotated[
        Path | None, typer.Option(help="the definition the saga was started with, if the project has a newer one")
    ] = None,
    input: Annotated[
        str | None, typer.Option(help="its input, if the guard has not kept it: JSON, @FILE, or -")
    ] = None,
    undone: Annotated[
        list[str] | None,
        typer.Option(metavar="STEP", help="its undo elsewhere has happened, or no effect of it is there; repeatable"),
    ] = None,
    not_ended: Annotated[
        bool, typer.Option("--not-ended", help="it had not ended, although its run was deleted")
    ] = False,
    committed: Annotated[
        bool | None,
        typer.Option(
            "--committed/--not-committed",
            help="whether it was past its point of no return, because a participant was asked to confirm",
            show_default=False,
        ),
    ] = None,
    as_: Operator = None,
    yes: Yes = False,
) -> int:
    """Let a paused saga go on, or continue a terminated or deleted one whose effects are open.

    A terminated saga is continued where it stood: backward before its commit point, forward after it.

    A saga without a run is started with what the guard has kept of its start. Effects that are there are not made
    again, so it gets to where it was; a `wait` waits for its signal again. Then let it go on, or cancel it, if it is
    not past its point of no return. The same holds for a saga whose open run was started with another input than its
    effects: that run is ended first.

    With --where all paused sagas that match go on, and the exit code is the highest of all; those that are not paused
    are left as they are.

    With --saga or --connection the pause of all sagas of a name, or of a connection, ends; saga doctor lists them. The
    circuit breaker of the connection is closed too: it opens again if the connection still fails.
    """
    has_facts = definition is not None or input is not None or bool(undone) or not_ended or committed is not None
    if is_standing(saga_id, where, saga, connection, "saga resume --help"):
        if has_facts:
            raise UsageError(_NEEDS_ID)
        return end_standing_pause(saga, connection)
    if where is not None:
        if has_facts:
            raise UsageError(_NEEDS_ID)
        by = operator_name(as_)
        request = SagaRequest(
            "resumes the paused ones of",
            lambda locator, id: _resume(locator, id, reason, by),
            nested=True,
            without_answer=NEEDS_A_WORKER,
        )
        return ask_running_sagas(request, where, yes=yes)
    assert saga_id is not None
    return _resume_one(saga_id, reason, definition, input, undone or (), not_ended, committed, as_)


async def _resume(locator: Locator, saga_id: str, reason: str, by: str | None) -> dict[str, Any]:
    from saga_workers import intervention_answers
    from saga_workers.views.saga_view import read_view

    view = await read_view(locator, saga_id)
    if view.paused is None or view.paused.kind is not None:
        note = f"it is {view.state}" if view.paused is None else f"{view.pause_text}; {view.resume_command} ends it"
        return {"id": saga_id, "response": "not paused", "state": view.state, "note": note}
    answer = await intervention_answers.resume(locator, saga_id, reason=reason, who=by)
    return {**answer, "note": f"it is {answer['state']}"}


def _resume_one(
    saga_id: str,
    reason: str,
    definition: Path | None,
    input: str | None,
    undone: Sequence[str],
    not_ended: bool,
    committed: bool | None,
    as_: str | None,
) -> int:
    from saga_cli.command_loop import run_command
    from saga_cli.inputs import read_definition, read_input
    from saga_workers import intervention_answers
    from saga_workers.client import Client
    from saga_workers.stuck.continuation import continue_saga
    from saga_workers.stuck.resumption import ABSENT, start_again
    from saga_workers.stuck.verdict import judge
    from saga_workers.temporal.machine_query import answers_no_query
    from saga_workers.views.saga_view import read_view
    from sagas.project import Project

    settings = load_settings()
    project = Project(settings)
    given = None if definition is None else read_definition(definition, project)
    value = ABSENT if input is None else read_input(input, [])

    async def run() -> dict[str, Any]:
        async with await Client.connect(project, identity=own_identity()) as client:
            print_target(settings)
            location = await client.locator.locate(saga_id)
            who = operator_name(as_) or client.temporal.identity
            verdict = await judge(client.locator, settings, location)
            is_continued, run = verdict in ("terminated", "claim left"), location.run
            if is_continued and run is not None and not run.never_accepted:
                is_continued = not await answers_no_query(client.temporal, run.run)
            if is_continued:
                done = await continue_saga(client.locator, saga_id, who, reason)
                is_free = (await client.locator.locate(saga_id)).kind == "unknown"  # it had not begun
                state = None if is_free else (await read_view(client.locator, saga_id)).state
                return {"id": saga_id, "response": done, "state": state}
            if verdict is None and (location.open_run is not None or location.kind == "in bulk"):
                async with noting_silence("resume"):
                    return await intervention_answers.resume(client.locator, saga_id, reason=reason, who=who)
            started = await start_again(
                client,
                location,
                definition=given,
                input=value,
                undone=undone,
                not_ended=not_ended,
                committed=committed,
                who=who,
                reason=reason,
            )
            await warn_without_poller(client)
            return {"id": started.id, "response": "started again", "state": "RUNNING"}

    document = run_command(run())
    print_document(document, human=lambda: echo(f"{saga_id}: {_in_words(document)}"))
    return 0


def _in_words(document: dict[str, Any]) -> str:
    response, is_in = document["response"], f"it is {document['state']}"
    return response if document["state"] is None or is_in in response else f"{response}; {is_in}"


_NEEDS_ID = "--definition, --input, --undone, --not-ended and --committed need the id of one saga"
