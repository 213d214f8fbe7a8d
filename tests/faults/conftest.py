"""Fixtures of the fault matrix, and its table at the end of the run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.faults.cell_runner import Theatre
from tests.faults.cells import Cell
from tests.faults.shared_servers import SETTINGS, Ground, prepare, shared_flows
from tests.helpers.database_servers import postgres
from tests.helpers.processes import TemporalServer


@pytest.fixture(scope="session")
def ground(temporal: TemporalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("faults")
    with postgres(SETTINGS) as database:
        prepare(database)
        flows = shared_flows(temporal, folder / "flows")
        flows.start()
        yield Ground(temporal, database, folder)
        flows.kill()


@pytest_asyncio.fixture(scope="session")
async def theatre(ground: Ground, request: pytest.FixtureRequest) -> AsyncIterator[Theatre]:
    """Plays the selected cells; with xdist each process plays only its own, one at a time."""
    theatre = Theatre(ground)
    if not hasattr(request.config, "workerinput"):
        theatre.announce(cell for item in request.session.items if (cell := cell_of(item)) is not None)
    yield theatre
    await theatre.close()
    await ground.kafka.end()


def cell_of(item: pytest.Item) -> Cell | None:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    found = parameters.get("cell")
    return found if isinstance(found, Cell) else None
