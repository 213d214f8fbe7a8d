"""Runs that repeat an earlier one of their saga: after a reset in Temporal, or a resume of a deleted one."""

from __future__ import annotations

from saga_workers.client import Client
from saga_workers.stuck.resumption import start_again
from tests.helpers import run_changes
from tests.helpers.run_changes import delete_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import row


async def waits_at(client: Client, id: str, step: str = "go") -> None:
    """Wait until this step of the newest run of the saga runs."""

    async def waits() -> bool:
        if (await client.locator.locate(id)).kind == "unknown":
            return False
        return row(await client.show(id), step)["state"] == "RUNNING"

    await until(waits)


async def repeat(client: Client, id: str, how: str, *, after: str = "go") -> None:
    """Begin another run of the saga, at its first step, once the first run is at the step ``after``."""
    await waits_at(client, id, after)
    if how == "reset":
        await run_changes.reset_run(client.temporal, id, keeps_signals=False)
        return
    await delete_run(client.temporal, id)
    await start_again(client, await client.locator.locate(id), not_ended=True, who="anna", reason="lost")
