"""Fixtures of the fault matrix, and its table at the end of the run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.faults.cell_runner import CellRunner
from tests.faults.cells import Cell
from tests.faults.shared_servers import SharedServers, prepare, shared_workflow_worker
from tests.helpers.database_servers import postgres
from tests.helpers.processes import TemporalServer


@pytest.fixture(scope="session")
def servers(temporal: TemporalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServers]:
    folder = tmp_path_factory.mktemp("faults")
    with postgres() as database:
        prepare(database)
        workflow_worker = shared_workflow_worker(temporal, folder / "flows")
        workflow_worker.start()
        yield SharedServers(temporal, database, folder)
        workflow_worker.kill()


@pytest_asyncio.fixture(scope="session")
async def cell_runner(servers: SharedServers, request: pytest.FixtureRequest) -> AsyncIterator[CellRunner]:
    """Runs the cells that tests of this process ask for."""
    cell_runner = CellRunner(servers, beside_others=hasattr(request.config, "workerinput"))
    yield cell_runner
    await cell_runner.close()
    await servers.kafka.end()


@pytest_asyncio.fixture(scope="module")
async def cells_ahead(cell_runner: CellRunner, request: pytest.FixtureRequest) -> None:
    """The selected cells begin, so that they run concurrently; unless xdist gives them to several processes."""
    if getattr(request.config, "workerinput", {}).get("dist", "loadfile") == "loadfile":
        cell_runner.schedule(cell for item in request.session.items if (cell := cell_of(item)) is not None)


def cell_of(item: pytest.Item) -> Cell | None:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    cell = parameters.get("cell")
    return cell if isinstance(cell, Cell) else None
