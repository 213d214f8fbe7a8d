"""`saga cancel`: ask a saga to undo what it has done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.context import target, with_client
from cli.output import confirm, print_document, say, warn
from cli.people import name_target, who
from sagas.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from temporalio.client import Client

    from sagas.settings import Settings


def cancel(
    saga_id: Annotated[str | None, typer.Argument(help="the saga's id")] = None,
    where: Annotated[str | None, typer.Option(help="all running sagas that fit this Temporal list filter")] = None,
    reason: Annotated[str, typer.Option(help="why; it is kept in the story")] = "",
    as_: Annotated[str | None, typer.Option("--as", help="who asks; default: SAGA_USER")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> int:
    """Ask a saga to undo what it has done. Past the point of no return it is refused (exit code 9)."""
    if (saga_id is None) == (where is None):
        raise UsageError("`saga cancel` takes the id of one saga, or --where for many", help="saga cancel --help")
    by = who(as_)

    async def one(client: Client, settings: Settings) -> dict[str, Any]:
        from workers.steering import cancel as ask

        assert saga_id is not None
        name_target(settings)
        answer = await ask(client, saga_id, reason=reason, who=by)
        return {"id": saga_id, "answer": answer.answer, "note": answer.note}

    if where is None:
        found = with_client(one)
        print_document(found, human=lambda: say(f"{found['id']}: {found['answer']}: {found['note']}"))
        return 0
    return _many(where, reason, by, yes)


def _many(where: str, reason: str, by: str | None, yes: bool) -> int:
    async def find(client: Client, settings: Settings) -> list[str]:
        from cli.filters import wanted
        from workers.listing import query_of
        from workers.runs import list_runs

        asked = wanted(settings, where=f"({where}) AND ExecutionStatus = 'Running'")
        warn(target(settings))
        # A nested saga goes the way of its parent.
        return [run.id async for run in list_runs(client, query_of(asked)) if run.parent_id is None]

    ids = with_client(find)
    if not ids:
        print_document([], human=lambda: say("no running saga fits"))
        return 0
    confirm(
        f"This asks {len(ids)} sagas to undo what they have done: {', '.join(ids[:5])}{' …' * (len(ids) > 5)}", yes=yes
    )

    async def ask_all(client: Client, settings: Settings) -> list[dict[str, Any]]:
        from workers.steering import cancel as ask

        told = []
        for id in ids:
            try:
                answer = await ask(client, id, reason=reason, who=by)
                told.append({"id": id, "answer": answer.answer, "note": answer.note})
            except RefusedError as error:
                told.append({"id": id, "answer": "refused", "note": error.message})
        return told

    told = with_client(ask_all)
    refused = sum(1 for one in told if one["answer"] == "refused")

    def human() -> None:
        for one in told:
            say(f"{one['id']}: {one['answer']}: {one['note']}")
        say(f"{len(told) - refused} asked, {refused} refused")

    print_document(told, human=human)
    return RefusedError.exit_code if refused else 0
