"""A stranger's run with the id of the undo of a terminated saga: the saga stays in the list of the stuck ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_workers.stuck.database_traces import DatabaseTraces
from saga_workers.stuck.kept_locks import kept_locks
from saga_workers.stuck.open_sagas import find_lost
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views.saga_list import SagaFilter
from saga_workers.worker.retention_horizon import may_be_continued
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.processes import TemporalServer
from tests.helpers.sampling import mostly_slow
from tests.helpers.waiting import until
from tests.integration.trust.test_forged_answers import ORDER, slow_payment
from tests.integration.trust.test_forged_undos import forge_undo

WAITING = ORDER.replace("output:", "  - {id: go, uses: wait, with: {signal: go}}\noutput:")


@pytest.mark.parametrize("how", mostly_slow(["later", "closed", "kept", "terminated"], {"later", "terminated"}))
async def test_its_open_effects_are_found(
    tmp_path: Path, temporal: TemporalServer, postgres_server: DatabaseServer, how: str
) -> None:
    async with slow_payment(tmp_path, temporal, postgres_server, WAITING) as (client, payment):
        id = await payment.begin(client)
        payment.may_end.set()

        async def is_paid() -> bool:
            return any(row["id"] == "go" and row["state"] == "RUNNING" for row in (await client.show(id))["steps"])

        await until(is_paid)
        await client.temporal.get_workflow_handle(id).terminate()
        await forge_undo(client, id, how, "order")
        lost = await find_lost(client.locator, client.project.settings, id, suspects=[id])
        queue = client.project.settings.temporal.task_queue
        all_traces = (DatabaseTraces(lost=lost), DatabaseTraces())  # the latter as of a project without connections

        async def is_listed() -> bool:
            criteria = SagaFilter(task_queue=queue)
            lists = [list_stuck(client.locator, criteria, limit=9, databases=traces) for traces in all_traces]
            ids = [{row.id async for row in rows} for rows in lists]
            return all(id in listed for listed in ids)

        await until(is_listed)
        location = await client.locator.locate(id)
        kept = await kept_locks(client.locator, client.project.settings, id)
        assert location.run is not None
        assert kept is not None
        assert await may_be_continued(client.locator, location.run.run), "so its rows are not deleted"
        assert payment.balance == 10
