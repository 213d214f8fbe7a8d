"""The `--where` of commands that ask many running sagas for the same: cancel, pause, resume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saga_cli.context import target_line, with_locator
from saga_cli.output import confirm, echo, print_document, warn
from sagas.errors import RefusedError, SagaError, UsageError
from sagas.text.shortening import counted

if TYPE_CHECKING:
    from saga_workers.location.locator import Locator
    from sagas.settings import Settings


def require_id_or_filter(saga_id: str | None, where: str | None, help: str) -> None:
    """Raises UsageError, with the command that helps, unless exactly one of them is given."""
    if (saga_id is None) == (where is None):
        raise UsageError("give either the id of one saga or --where", help=help)


@dataclass(frozen=True)
class SagaRequest:
    """A request to each of many sagas.

    ``verb`` is what it does, for the question (`this cancels 3 sagas`). ``ask`` makes it, and returns a row with the
    ``id``, the ``response`` and a ``note`` for people. ``nested``: nested sagas are also asked; a cancel reaches them
    through their parents. ``without_answer``: what becomes of it if no worker answers.
    """

    verb: str
    ask: Callable[[Locator, str], Awaitable[dict[str, Any]]]
    nested: bool
    without_answer: str


def ask_running_sagas(request: SagaRequest, where: str, *, yes: bool) -> int:
    """Make the request to all running sagas that match; the exit code is the highest of all.

    Raises UsageError if nobody can approve it, and if the server refuses the filter.
    """
    ids = with_locator(lambda locator, settings: _matching(locator, settings, where, nested=request.nested))
    if not ids:
        print_document([], human=lambda: echo("no running saga matches"))
        return 0
    some = f"{', '.join(ids[:5])}{' …' * (len(ids) > 5)}"
    confirm(f"this {request.verb} {counted(len(ids), 'saga')}: {some}", yes=yes)

    async def ask_all(locator: Locator, settings: Settings) -> list[dict[str, Any] | SagaError]:
        from saga_cli.wait import noting_silent_sagas
        from saga_workers.many_requests import ask_each

        still_open = set(ids)

        async def ask(id: str) -> dict[str, Any]:
            try:
                return await request.ask(locator, id)
            finally:
                still_open.discard(id)

        async with noting_silent_sagas(lambda: len(still_open), request.without_answer):
            return await ask_each(ids, ask)

    from saga_workers.many_requests import worst_code

    answers = with_locator(ask_all)
    rows = [
        _failed(id, answer) if isinstance(answer, SagaError) else answer
        for id, answer in zip(ids, answers, strict=True)
    ]

    def human() -> None:
        for row in rows:
            echo(row_text(row))
        counts = Counter(row["response"] for row in rows)
        echo(", ".join(f"{count} {response}" for response, count in counts.items()))

    print_document(rows, human=human)
    return worst_code(answers)


def row_text(row: dict[str, Any]) -> str:
    """The answer about one saga in a line. A note that begins with the response tells it."""
    response, note = row["response"], row["note"]
    return f"{row['id']}: {note}" if note.startswith(response) else f"{row['id']}: {response}: {note}"


async def _matching(locator: Locator, settings: Settings, where: str, *, nested: bool) -> list[str]:
    from saga_cli.shared_options import saga_filter
    from saga_workers.views.saga_list import list_saga_runs

    asked = saga_filter(settings, where=f"({where}) AND ExecutionStatus = 'Running'")
    warn(target_line(settings))
    ids = [run.id async for run in list_saga_runs(locator.temporal, asked) if nested or run.parent_id is None]
    return [*ids, *(id for id in await _in_bulk(locator, settings, where) if id not in ids)]


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


def _failed(saga_id: str, error: SagaError) -> dict[str, Any]:
    word = "refused" if isinstance(error, RefusedError) else "failed"
    return {"id": saga_id, "response": word, "note": error.message}
