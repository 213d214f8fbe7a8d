"""A console with sagas, one for each file of tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.helpers.processes import TemporalServer
from tests.integration.serve.served_console import ServedConsole, open_console


@pytest.fixture(scope="module")
async def console(temporal: TemporalServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedConsole]:
    async with open_console(tmp_path_factory.mktemp("console"), temporal.address) as served:
        yield served
