"""The PostgreSQL of the Spark tests, and a small disk."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.small_spark import spark

__all__ = ["spark"]


@pytest.fixture(scope="session")
def server(postgres_server: DatabaseServer) -> DatabaseServer:
    return postgres_server


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty disk of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False).returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a runner may have a file of it open
