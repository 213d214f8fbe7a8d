"""Servers shared by all integration tests of one process; each lives in its own folder and ends with the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import TemporalServer


@pytest.fixture(scope="session")
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    """A real Temporal server with its Web UI."""
    folder: Path = tmp_path_factory.mktemp("temporal")
    server = TemporalServer(folder)
    server.start()
    yield server
    server.kill()
