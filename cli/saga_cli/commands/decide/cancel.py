"""`saga cancel`: ask a saga to undo what it has done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import target_line, with_locator
from saga_cli.output import confirm, echo, print_document, warn
from saga_cli.shared_options import Operator, Yes, operator_name, print_target
from sagas.errors import RefusedError, SagaError, UsageError
from sagas.text.shortening import counted

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

    A cancel is recorded even if no worker answers; the next worker that runs the saga processes it. With --where all
    matching sagas are cancelled, and the exit code is the highest of all. Those of bulk workflows match, too, if the
    filter has only comparisons of WorkflowType, WorkflowId, StartTime and SagaLabels, joined by AND.
    """
    if (saga_id is None) == (where is None):
        raise UsageError("give either the id of one saga or --where", help="saga cancel --help")
    if timeout is not None and not wait:
        raise UsageError("--timeout needs --wait")
    by = operator_name(as_)
    if saga_id is not None:
        return _one(saga_id, reason, by, wait, timeout)
    if wait:
        raise UsageError("--wait needs the id of one saga", help="follow many with saga list")
    assert where is not None
    return _cancel_many(where, reason, by, yes)


def _one(saga_id: str, reason: str, by: str | None, wait: bool, timeout: str | None) -> int:
    from saga_cli.wait import noting_silence, parse_deadline, print_end, wait_for_saga

    parse_deadline(timeout)

    async def ask(locator: Locator, settings: Settings) -> SagaView | None:
        print_target(settings)
        async with noting_silence("cancel"):
            row = await _ask(locator, saga_id, reason, by)
        if not wait:
            print_document(row, human=lambda: echo(_message(row)))
            return None
        warn(_message(row))
        return await wait_for_saga(locator, saga_id, timeout, web_ui=settings.temporal.web_ui)

    ended = with_locator(ask)
    return 0 if ended is None else print_end(saga_id, ended)


def _cancel_many(where: str, reason: str, by: str | None, yes: bool) -> int:
    async def find(locator: Locator, settings: Settings) -> list[str]:
        from saga_cli.shared_options import saga_filter
        from saga_workers.temporal.temporal_runs import list_runs
        from saga_workers.views.saga_list import visibility_query

        asked = saga_filter(settings, where=f"({where}) AND ExecutionStatus = 'Running'")
        warn(target_line(settings))
        # A nested saga goes the way of its parent.
        ids = [run.id async for run in list_runs(locator.temporal, visibility_query(asked)) if run.parent_id is None]
        return [*ids, *(id for id in await _in_bulk(locator, settings, where) if id not in ids)]

    ids = with_locator(find)
    if not ids:
        print_document([], human=lambda: echo("no running saga matches"))
        return 0
    confirm(f"this cancels {counted(len(ids), 'saga')}: {', '.join(ids[:5])}{' …' * (len(ids) > 5)}", yes=yes)

    async def ask_all(locator: Locator, settings: Settings) -> list[dict[str, Any] | SagaError]:
        from saga_workers.interventions import ask_each

        return await ask_each(ids, lambda id: _ask(locator, id, reason, by))

    from saga_workers.interventions import worst_code

    answers = with_locator(ask_all)
    rows = [
        _failed(id, answer) if isinstance(answer, SagaError) else answer
        for id, answer in zip(ids, answers, strict=True)
    ]

    def human() -> None:
        for row in rows:
            echo(_message(row))
        refused, failed = (sum(row["response"] == word for row in rows) for word in ("refused", "failed"))
        echo(f"{len(rows) - refused - failed} requested, {refused} refused" + (f", {failed} failed" if failed else ""))

    print_document(rows, human=human)
    return worst_code(answers)


async def _in_bulk(locator: Locator, settings: Settings, where: str) -> list[str]:
    """The ids of sagas in bulk workflows that match a filter; without a ledger, which knows them, none."""
    from saga_cli.shared_options import saga_filter
    from saga_workers.views.claim_filter import claimed_sagas, parse_claim_filter

    if not locator.ledger.configured:
        return []
    claims = parse_claim_filter(where)
    if claims is None:
        warn("sagas of bulk workflows are left out: the filter cannot be applied to them")
        return []
    return await claimed_sagas(locator, claims, saga_filter(settings).task_queue)


async def _ask(locator: Locator, saga_id: str, reason: str, by: str | None) -> dict[str, Any]:
    from saga_workers.interventions import cancel as ask

    answer = await ask(locator, saga_id, reason=reason, who=by)
    return {"id": saga_id, "response": answer.answer, "note": answer.note}


def _failed(saga_id: str, error: SagaError) -> dict[str, Any]:
    word = "refused" if isinstance(error, RefusedError) else "failed"
    return {"id": saga_id, "response": word, "note": error.message}


def _message(row: dict[str, Any]) -> str:
    return f"{row['id']}: {row['response']}: {row['note']}"
