"""Record the histories that the replay test keeps: ``python -m tests.replay.record [NAME …]``.

Every run is written to a new file ``histories/NAME.N.json.gz``: an old one is what a saga that is still running
looks like, so it is never overwritten. Run it after a change of the interpreter that is meant
(docs/how-to/versioning.md).
"""

from __future__ import annotations

import asyncio
import gzip
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from temporalio.service import RPCError

from tests.integration.engine.world import handle, open_world
from tests.processes import TemporalServer
from tests.replay.scenarios import SCENARIOS, Scenario, perform
from workers.client import Client

HISTORIES = Path(__file__).parent / "histories"


async def record(scenario: Scenario, address: str, folder: Path) -> list[Path]:
    """Play one scenario and write the histories of all its runs."""
    world = await open_world(folder, address)
    world.plan = {what: list(moves) for what, moves in scenario.plan.items()}
    async with world.serving(*scenario.definitions) as client:
        saga, story = await perform(client, scenario)
        ids = [saga, f"{saga}~undo", *(child["id"] for child in story["children"])]
        ids += [f"{child['id']}~undo" for child in story["children"]]
        written = [await _write(client, id, scenario.name + mark) for id, mark in zip(ids, _marks(), strict=False)]
    await world.engine.dispose()
    return [path for path in written if path is not None]


def _marks() -> Iterator[str]:
    """What tells the runs of one scenario apart: the saga, its undo, its children, their undos."""
    yield from ("", "+undo", "+child", "+child-undo")


async def _write(client: Client, id: str, name: str) -> Path | None:
    try:
        history = await handle(client, id).fetch_history()
    except RPCError:
        return None  # this run has no such companion
    number = 1
    while (path := HISTORIES / f"{name}.{number}.json.gz").exists():
        number += 1
    path.write_bytes(gzip.compress(history.to_json().encode(), mtime=0))
    return path


async def main(names: list[str]) -> None:
    wanted = [one for one in SCENARIOS if not names or one.name in names]
    with tempfile.TemporaryDirectory() as folder:
        server = TemporalServer(Path(folder) / "temporal").start()
        try:
            for number, scenario in enumerate(wanted):
                place = Path(folder) / str(number)
                place.mkdir()
                for path in await record(scenario, server.address, place):
                    print(path.name)
        finally:
            server.kill()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
