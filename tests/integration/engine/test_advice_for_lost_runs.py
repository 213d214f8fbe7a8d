"""Advice about a saga whose run was deleted fits what it needs, and the point that it has reached."""

from __future__ import annotations

import pytest

from saga_spark.reconcile.extracts import ReconciliationScope
from saga_workers.client import Client
from saga_workers.reconcile.open_saga_findings import find_lost_runs, with_one_remedy
from saga_workers.reconcile.recheck import recheck
from saga_workers.reconcile.repair import repair_findings
from saga_workers.stuck.database_traces import DatabaseTraces
from saga_workers.stuck.open_sagas import find_lost
from saga_workers.stuck.resumption import start_again
from saga_workers.stuck.stuck_sagas import list_stuck, remedy
from saga_workers.views.saga_list import SagaFilter
from saga_workers.views.saga_view import read_view
from sagas.errors import RefusedError, UsageError
from sagas.text.continuation_words import CANCEL_BEFORE, CANCEL_OR_NOT, ONLY_FORWARD
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import delete_run
from tests.integration.engine.environment import Environment, begin, handle
from tests.integration.engine.repeated_runs import waits_at

SAGA = """
    saga: advised
    input:
      type: object
      properties: {card: {type: string CARD}}
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: paid, uses: book, pivot: true}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: last, uses: book}
"""
PAST = SAGA.replace(" CARD", "")
BEFORE = PAST.replace(", pivot: true", ", compensate: unbook").replace(
    "last, uses: book", "last, uses: book, pivot: true"
)
SENSITIVE = SAGA.replace(" CARD", ", x-sensitive: true")


async def lose(client: Client) -> str:
    id = await begin(client, "advised", {"card": "4711"})
    await waits_at(client, id)
    await delete_run(client.temporal, id)
    return id


async def advice(client: Client, id: str) -> tuple[str, str]:
    """The reason of `saga list --stuck`, and its command, which is also that of the doctor."""
    deleted = await find_lost(client.locator, client.project.settings, id, suspects=[id])
    traces, criteria = DatabaseTraces(deleted), SagaFilter(saga="advised")
    views = [view async for view in list_stuck(client.locator, criteria, limit=100, databases=traces)]
    [view] = [view for view in views if view.id == id]
    assert view.stuck is not None
    return view.stuck[0], remedy(view)


async def shown_help(client: Client, id: str) -> str:
    with pytest.raises(UsageError) as refused:
        await read_view(client.locator, id)
    assert refused.value.help is not None
    return refused.value.help


@pytest.mark.parametrize(("definition", "then"), [(PAST, ONLY_FORWARD), (BEFORE, CANCEL_OR_NOT)])
async def test_a_saga_past_its_pivot_is_not_to_be_cancelled(env: Environment, definition: str, then: str) -> None:
    async with env.serving(definition) as client:
        id = await lose(client)
        reason, command = await advice(client, id)
        assert command == f"saga resume {id}"
        assert reason.endswith(f"start it again with `{command}`, {then}")
        assert (
            await shown_help(client, id)
            == f"{command}    starts it again where its effects are, if it had not ended; {then}"
        )
        await start_again(client, await client.locator.locate(id))
        await waits_at(client, id)
        if then == ONLY_FORWARD:
            with pytest.raises(RefusedError):
                await client.cancel(id)
            await handle(client, id).signal("go")
        else:
            await client.cancel(id)
        assert (await finished(client, id))["state"] == ("COMPLETED" if then == ONLY_FORWARD else "COMPENSATED")


async def test_what_resume_needs_is_in_its_command(env: Environment) -> None:
    async with env.serving(SENSITIVE) as client:
        id = await lose(client)
        needed = f"saga resume {id} --input @FILE"
        assert (await advice(client, id))[1] == needed
        assert (await shown_help(client, id)).startswith(needed)
        scope, settings = ReconciliationScope(saga_id=id), client.project.settings
        lost = await find_lost_runs(client.locator, settings, scope, [])
        kept, _ = await recheck(client.locator, settings, lost, {}, [])
        [missing] = with_one_remedy(kept)
        assert missing.command == needed
        [row] = await repair_findings(client.locator, settings, [missing.to_json()], who="anna")
        assert row["done"].endswith(f": {needed}")
    async with env.serving(SENSITIVE.replace("id: last", "id: later")) as client:  # the project has another definition
        reason, command = await advice(client, id)
        assert command == f"saga resume {id} --definition FILE --input @FILE"
        assert reason.endswith(CANCEL_BEFORE)
