"""`saga cancel`: ask a saga to undo what it has done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import with_locator
from saga_cli.output import echo, print_document, warn
from saga_cli.shared_options import Operator, Yes, operator_name, print_target
from saga_cli.where_option import SagaRequest, ask_running_sagas, require_id_or_filter, row_text
from sagas.errors import UsageError

if TYPE_CHECKING:
    from saga_workers.location.locator import Locator
    from sagas.protocol.saga_view import SagaView
    from sagas.settings import Settings


def cancel(
    saga_id: Annotated[str | None, typer.Argument(help="the saga's id")] = None,
    where: Annotated[str | None, typer.Option(help="all running sagas that match this Temporal list filter")] = None,
    reason: Annotated[str, typer.Option(help="reason; recorded with the saga")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="wait for the end; the exit code shows how it ended")] = False,
    timeout: Annotated[str | None, typer.Option(help="how long to wait, for example 1m")] = None,
    as_: Operator = None,
    yes: Yes = False,
) -> int:
    """Cancel a running saga and undo its steps. Past the point of no return this is refused (exit code 9).

    A second cancel changes nothing, also when the first has already ended the saga (exit code 0).

    A cancel is recorded even if no worker answers; the next worker that runs the saga processes it. With --where all
    matching sagas are cancelled, and the exit code is the highest of all. Those of bulk workflows also match, if the
    filter has only comparisons of WorkflowType, WorkflowId, StartTime and SagaLabels, joined by AND.
    """
    require_id_or_filter(saga_id, where, "saga cancel --help")
    if timeout is not None and not wait:
        raise UsageError("--timeout needs --wait")
    by = operator_name(as_)
    if saga_id is not None:
        return _one(saga_id, reason, by, wait, timeout)
    if wait:
        raise UsageError("--wait needs the id of one saga", help="follow many with saga list")
    assert where is not None
    asked = SagaRequest(
        "cancels",
        lambda locator, id: _ask(locator, id, reason, by),
        nested=False,
        without_answer="a cancel is recorded in Temporal then, and the next worker takes it",
    )
    return ask_running_sagas(asked, where, yes=yes)


def _one(saga_id: str, reason: str, by: str | None, wait: bool, timeout: str | None) -> int:
    from saga_cli.wait import noting_silence, parse_deadline, print_end, wait_for_saga
    from saga_workers import intervention_answers

    parse_deadline(timeout)

    async def ask(locator: Locator, settings: Settings) -> SagaView | None:
        print_target(settings)
        async with noting_silence("cancel") as without_answer:
            row = await intervention_answers.cancel(
                locator, saga_id, reason=reason, who=by, without_answer=without_answer
            )
        if not wait:
            print_document(row, human=lambda: echo(row_text(row)))
            return None
        warn(row_text(row))
        return await wait_for_saga(locator, saga_id, timeout, web_ui=settings.temporal.web_ui)

    ended = with_locator(ask)
    return 0 if ended is None else print_end(saga_id, ended)


async def _ask(locator: Locator, saga_id: str, reason: str, by: str | None) -> dict[str, Any]:
    from saga_workers import intervention_answers

    return await intervention_answers.cancel(locator, saga_id, reason=reason, who=by)
