"""Record the histories that the replay test keeps: ``python -m tests.replay.record [--single-batch] [NAME …]``.

Every run is written to a new file, and none is overwritten: from the first release on, an existing one is what a saga
that is still running looks like (docs/how-to/versioning.md). NAME ``bulk`` is that of bulk workflows and batches,
``schedule`` that of scheduled starts, ``redelivery`` that of events that start their saga again. ``--single-batch``:
with that flag of the SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from temporalio.client import WorkflowFailureError

from saga_workers.client import Client
from tests.helpers.processes import TemporalServer
from tests.helpers.sdk_flags import SINGLE_BATCH, default_flags
from tests.integration.engine.environment import handle, open_environment
from tests.replay import record_bulk, record_redelivery, record_schedule
from tests.replay.history_files import write
from tests.replay.scenario import EARLY, Scenario, perform, playing
from tests.replay.scenarios import SCENARIOS


async def record(scenario: Scenario, address: str, folder: Path) -> list[Path]:
    """Play one scenario and write the histories of all its runs."""
    env = await open_environment(folder, address)
    async with playing(env, scenario) as client:
        saga, story = await perform(client, scenario)
        ids = [saga, f"{saga}~undo", *(child["id"] for child in story["children"])]
        ids += [f"{child['id']}~undo" for child in story["children"]]
        marked = list(zip(ids, _marks(), strict=False))
        for row in (await client.show(saga))["notifications"]:
            await _wait(client, row["run"])
            marked.append((row["run"], f"+{row['id']}"))
        written = [path for id, mark in marked for path in await write(client, id, scenario.name + mark)]
    await env.engine.dispose()
    return written


async def _wait(client: Client, id: str) -> None:
    """Until the run is over, however it ends."""
    with contextlib.suppress(WorkflowFailureError):
        await handle(client, id).result()


def _marks() -> Iterator[str]:
    """Suffixes of the runs of one scenario: the saga, its undo, its children, their undos."""
    yield from ("", "+undo", "+child", "+child-undo")


async def main(names: list[str]) -> None:
    wanted = [scenario for scenario in SCENARIOS if not names or scenario.name in names]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        addresses: dict[bool, str] = {}
        for number, scenario in enumerate(wanted):
            if scenario.long not in addresses:
                extra = [EARLY] if scenario.long else []
                server = TemporalServer(Path(folder) / f"temporal-{scenario.long}", extra=extra).start()
                servers.callback(server.kill)
                addresses[scenario.long] = server.address
            place = Path(folder) / str(number)
            place.mkdir()
            for path in await record(scenario, addresses[scenario.long], place):
                print(path.name)
    if not names or "bulk" in names:
        await record_bulk.main()
    if not names or "schedule" in names:
        await record_schedule.main()
    if not names or "redelivery" in names:
        await record_redelivery.main()


if __name__ == "__main__":
    given = sys.argv[1:]
    with default_flags(SINGLE_BATCH) if "--single-batch" in given else contextlib.nullcontext():
        asyncio.run(main([name for name in given if name != "--single-batch"]))
