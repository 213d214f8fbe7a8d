"""A project in a folder with a space in its name, and the `saga` command as a user calls it."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.forked_commands import run_command

SAGA = [sys.executable, "-P", "-m", "saga_cli.main"]
SERVERS = ("--only", "temporal,postgres")


@dataclass(frozen=True)
class Project:
    root: Path

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_command(words, self.root)

    def saga(self, *words: str) -> str:
        done = self.call(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def up(self, *words: str) -> dict[str, Any]:
        """The stack's status, which has the passwords, unlike what `dev up` prints."""
        json.loads(self.saga("dev", "up", *(words or SERVERS), "--json"))
        return self.status()

    def status(self) -> dict[str, Any]:
        return json.loads(self.saga("dev", "status", "-o", "json"))


@contextlib.contextmanager
def usual_port_taken() -> Iterator[None]:
    """A stack that starts meanwhile gets a port that the stacks of other tests do not want.

    Whichever test has the usual port at the moment keeps it.
    """
    with socket.socket() as holder:
        with contextlib.suppress(OSError):
            holder.bind(("127.0.0.1", 7233))
            holder.listen()
        yield


def make_project(root: Path) -> Project:
    root.mkdir()
    (root / "saga.toml").write_text('[connections.shop]\nschema = "schema.sql"\n', encoding="utf-8")
    (root / "schema.sql").write_text("create table if not exists stock (sku text primary key);", encoding="utf-8")
    return Project(root)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = make_project(tmp_path / "my shop")
    try:
        yield made
    finally:
        made.call("dev", "down", "--wipe")
