"""A database that accepts connections and never answers holds a command up once, not with each question to it."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from saga_activities.silent_databases import ANSWER_TIMEOUT
from tests.helpers.forked_commands import run_command
from tests.helpers.processes import TemporalServer

TOML = """
definitions = ["."]
[temporal]
address = "{address}"
task_queue = "silent-{unique}"
[connections.frozen]
url = "{scheme}://root@127.0.0.1:{port}/shop"
[connections.lite]
url = "sqlite:///lite.db"
[ledger]
connection = "frozen"
[enqueue]
connections = ["frozen", "lite"]
"""


@pytest.fixture
def silent_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield server.getsockname()[1]


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
@pytest.mark.parametrize("command", [["list", "--stuck"], ["parked"], ["doctor"]], ids=lambda words: words[0])
def test_a_silent_database_is_waited_for_once(
    temporal: TemporalServer, tmp_path: Path, silent_port: int, scheme: str, command: list[str]
) -> None:
    toml = TOML.format(address=temporal.address, unique=uuid.uuid4(), scheme=scheme, port=silent_port)
    (tmp_path / "saga.toml").write_text(toml, encoding="utf-8")
    run_command([*command, "--help"], tmp_path)  # the first command of a test run takes longer
    began = time.monotonic()
    done = run_command(command, tmp_path)
    waited = time.monotonic() - began
    assert "frozen" in done.stdout + done.stderr, done
    assert waited < 3 * ANSWER_TIMEOUT, (waited, done)
