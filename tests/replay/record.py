"""Record the histories that the replay test keeps: ``python -m tests.replay.record [NAME …]``.

Every run is written to a new file ``histories/NAME.N.json.gz``: an old one is what a saga that is still running
looks like, so it is never overwritten. Run it after a change of the interpreter that is meant
(docs/how-to/versioning.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from temporalio.client import WorkflowFailureError, WorkflowHistory
from temporalio.service import RPCError

from saga_workers.client import Client
from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import handle, open_environment
from tests.replay.scenario import EARLY, Scenario, perform, playing
from tests.replay.scenarios import SCENARIOS

HISTORIES = Path(__file__).parent / "histories"


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
        written = [path for id, mark in marked for path in await _write(client, id, scenario.name + mark)]
    await env.engine.dispose()
    return written


async def _wait(client: Client, id: str) -> None:
    """Until the run is over, however it ends."""
    with contextlib.suppress(WorkflowFailureError):
        await handle(client, id).result()


def _marks() -> Iterator[str]:
    """What distinguishes the runs of one scenario: the saga, its undo, its children, their undos."""
    yield from ("", "+undo", "+child", "+child-undo")


async def _write(client: Client, id: str, name: str) -> list[Path]:
    """Write the history of a run, and of those it continued: the first is the one that has no mark."""
    try:
        last = (await handle(client, id).describe()).run_id
    except RPCError:
        return []  # this run has no such companion
    histories: list[WorkflowHistory] = []
    run: str = last
    while run:
        history = await client.temporal.get_workflow_handle(id, run_id=run).fetch_history()
        histories.insert(0, history)
        run = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    return [_save(history, f"{name}+{number}" if number else name) for number, history in enumerate(histories)]


def _save(history: WorkflowHistory, name: str) -> Path:
    number = 1
    while (path := HISTORIES / f"{name}.{number}.json.gz").exists():
        number += 1
    path.write_bytes(gzip.compress(history.to_json().encode(), mtime=0))
    return path


async def main(names: list[str]) -> None:
    wanted = [one for one in SCENARIOS if not names or one.name in names]
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


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
