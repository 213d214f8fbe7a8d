"""`saga setup` sets up what it can: an error of one connection is reported, and the others are set up."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from tests.helpers.forked_commands import run_command
from tests.helpers.processes import TemporalServer

TOML = """
[temporal]
address = "ADDRESS"
[connections.broken]
url = "sqlite:///broken.db"
schema = "broken.sql"
[connections.absent]
url = "sqlite:///absent.db"
schema = "absent.sql"
[connections.fine]
url = "sqlite:///fine.db"
schema = "fine.sql"
"""


def tables(file: Path) -> set[str]:
    with sqlite3.connect(file) as connection:
        return {name for (name,) in connection.execute("select name from sqlite_master")}


DECLARED = """
[[reconcile.effects]]
connection = "fine"
table = "goods"
key = ["sku", "Weird Col"]
saga_id = "sku"
"""


async def test_a_column_that_is_declared_and_missing_is_named(temporal: TemporalServer, tmp_path: Path) -> None:
    fine = TOML[: TOML.index("[connections.broken]")] + TOML[TOML.index("[connections.fine]") :]
    (tmp_path / "saga.toml").write_text(fine.replace("ADDRESS", temporal.address) + DECLARED)
    (tmp_path / "fine.sql").write_text("create table if not exists goods (sku text primary key)")
    problem = "[[reconcile.effects]] goods: `key` has Weird Col, which fine cannot read from goods: "
    done = await asyncio.to_thread(run_command, ["setup"], tmp_path)
    assert f"error: {problem}" in done.stderr
    assert done.returncode == 1
    checked = await asyncio.to_thread(run_command, ["doctor"], tmp_path)
    assert problem in " ".join((checked.stdout + checked.stderr).split())
    reconciled = await asyncio.to_thread(run_command, ["reconcile"], tmp_path)
    assert f"the connection fine could not be read: {problem}" in reconciled.stderr


@pytest.mark.parametrize("unreadable", [["broken", "absent"], ["absent"]])
async def test_a_schema_file_that_fails_keeps_nothing_else_from_being_set_up(
    unreadable: list[str], temporal: TemporalServer, tmp_path: Path
) -> None:
    (tmp_path / "saga.toml").write_text(TOML.replace("ADDRESS", temporal.address))
    (tmp_path / "broken.sql").write_text(
        "create table mine (a)" if "broken" not in unreadable else "create tabel mine (a)"
    )
    (tmp_path / "fine.sql").write_text("create table if not exists goods (sku text primary key)")
    done = await asyncio.to_thread(run_command, ["setup"], tmp_path)
    errors = [line for line in done.stderr.splitlines() if "absent.sql" in line or "broken.sql" in line]
    assert [line for line in done.stdout.splitlines() if "✔" in line][-1].startswith("✔ search attributes")
    assert {"goods", "saga_guard"} <= tables(tmp_path / "fine.db")
    assert len(errors) == len(unreadable)
    assert errors[0].startswith("error: ")
    assert "absent.sql cannot be read" in errors[-1]
    assert done.returncode == (2 if unreadable == ["absent"] else 1)
