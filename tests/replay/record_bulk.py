"""Record the histories of bulk workflows that the replay test keeps: ``python -m tests.replay.record_bulk``."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from saga_workers.control.start import BulkRow
from saga_workers.runtime.databases import set_up_database
from tests.helpers.database_servers import postgres
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer
from tests.integration.bulk.conftest import Bank, write_project
from tests.integration.bulk.test_bulk_execution import transfer
from tests.replay.record import _write


async def record(address: str, url: str, folder: Path) -> list[Path]:
    """Sagas that complete, are rejected, violate a constraint and retry; others of which one leaves."""
    project = write_project(folder, address, url)
    await set_up_database(project.settings.connection("bank"))
    async with running_worker(project) as client:
        bank = Bank(client, project, url)
        bank.open_accounts(200)
        sagas = [transfer(number) for number in range(1, 9)]
        sagas[1], sagas[3], sagas[5] = transfer(2, amount=1000), transfer(4, to="nobody"), transfer(6, text="fails")
        written = []
        for name, saga, inputs in (
            ("bulk", "transfer", sagas),
            ("bulk-left", "waiting", [{"id": f"x-{number}", "waits": number == 2} for number in range(1, 4)]),
        ):
            starter = await client.starter(saga)
            handle = await starter.start_bulk([BulkRow(str(one["id"]), starter.make_request(one)) for one in inputs])
            await handle.result()
            written += await _write(client, handle.id, name)
        await client.signal("x-2", "go")
        await client.temporal.get_workflow_handle("x-2").result()
        written += await _write(client, "x-2", "bulk-left+detached")
        await client.close()
    return written


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres() as database,
        TemporalServer(Path(folder) / "temporal") as temporal,
    ):
        for path in asyncio.run(record(temporal.address, database.url(), Path(folder) / "project")):
            print(path.name)


if __name__ == "__main__":
    main()
