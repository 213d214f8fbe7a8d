"""A command that `saga reconcile` prints for a declared table repairs the row meant and harms no other, and amounts are
compared as PostgreSQL compares them: exactly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest_asyncio

from saga_activities.guard.schema import create_tables
from saga_spark.reconcile.comparison_database import open_comparison
from saga_spark.reconcile.extracts import ReconciliationScope, SagaExport, extract_database
from saga_spark.reconcile.findings import Finding, repair_command
from saga_spark.reconcile.saga_reconciliation import find_mismatches
from saga_workers.reconcile.matched_rows import WHY, with_safe_commands
from saga_workers.runtime.databases import open_command_engine
from sagas.protocol.saga_view import SagaView
from sagas.settings import Settings, load_settings
from sagas.settings.reconcile import EffectTable
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database

VALUES = (
    *("0", "1.5", "1.50", "1e-35", "1.5000000001", "1.50000000000000000000000000000000001", "-1.5", "NaN", "Infinity"),
    *("12345678901234567890.0123456789", "12345678901234567890.0123456788", "9" * 40 + ".5"),
)
SCHEMA = """
create table odd (at date, name text, amount numeric, gk text);
create table amt (id int primary key, gk text, total numeric, other numeric, f float8);
"""
ODD = EffectTable(connection="shop", table="odd", key=("at", "name", "amount"), guard_key="gk", step="write")
AMOUNTS = EffectTable(
    connection="shop", table="amt", key=("id",), guard_key="gk", step="write",
    amounts={"total": "total", "other": "other", "f": "f"},
)  # fmt: skip


class Books:
    """A database with the guard rows of sagas that have written one row each."""

    def __init__(self, folder: Path, url: str, settings: Settings) -> None:
        self.folder, self.url, self.settings, self.round = folder, url.replace("+psycopg", ""), settings, 0
        self.sagas: dict[str, Mapping[str, Any]] = {}

    def sql(self, statement: str, *values: Any) -> tuple[list[Any], int]:
        """The rows, and how many were changed."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            done = connection.execute(statement.encode(), values or None)
            return (done.fetchall() if done.description else []), done.rowcount

    def done(self, saga_id: str, result: Mapping[str, Any] | None = None) -> None:
        self.sql(
            "insert into saga_guard (saga_id, step, generation, op, reason, result, created_at)"
            " values (%s, 'write', 1, 'do', 'do', %s, 1790000000)",
            saga_id, json.dumps(result),
        )  # fmt: skip
        entry = {"id": "write", "step": "write", "uses": "w", "state": "DONE", "generation": 1, "guarantee": "guarded"}
        moment = "2026-09-21T14:12:00Z"
        self.sagas[saga_id] = {
            "id": saga_id, "saga": "odd", "state": "COMPLETED", "started_at": moment, "ended_at": moment,
            "steps": [{**entry, "started_at": moment}],
        }  # fmt: skip

    async def reconcile(self, effects: EffectTable) -> list[Finding]:
        self.round += 1
        folder = self.folder / str(self.round)
        with SagaExport(folder) as export:
            for view in self.sagas.values():
                export.add(SagaView.from_json(view))
        engine = open_command_engine(self.settings.sql_connection("shop"))
        try:
            await extract_database(engine, "shop", [effects], folder, ReconciliationScope(), [effects])
        finally:
            await engine.dispose()
        with open_comparison(folder, None, 0.0, lambda connection: None) as database:
            find_mismatches(database, [effects], None)
            findings = list(database.findings(1_000))
        declared, dialects = {effects.name: effects}, {"shop": "postgresql"}
        commanded = [replace(finding, command=repair_command(finding, dialects, declared)) for finding in findings]
        return await with_safe_commands(self.settings, commanded, dialects, declared)


@pytest_asyncio.fixture
async def books(postgres_server: DatabaseServer, tmp_path: Path) -> Books:
    url = new_database(postgres_server)
    (tmp_path / "saga.toml").write_text(f'[connections.shop]\nurl = "{url}"\n')
    books = Books(tmp_path, url, load_settings(config=str(tmp_path / "saga.toml")))
    engine = open_command_engine(books.settings.sql_connection("shop"))
    await create_tables(engine)
    await engine.dispose()
    books.sql(SCHEMA)
    return books


async def test_amounts_differ_exactly_where_postgresql_finds_them_distinct(books: Books) -> None:
    number = 0
    for expected in VALUES:
        for actual in VALUES:
            number += 1
            books.done(f"s-{number}", {"total": expected, "other": "7.0", "f": "0.1"})
            books.sql("insert into amt values (%s, %s, %s, 7, 0.1)", number, f"s-{number}/write", Decimal(actual))
    books.sql("create table wanted as select id, total, (result::json->>'total')::numeric as expected from amt"
              " join saga_guard on gk = saga_id || '/write'")  # fmt: skip
    rows, _ = books.sql("select id from wanted where total is distinct from expected")
    findings = await books.reconcile(AMOUNTS)
    assert {finding.kind for finding in findings} == {"amounts_differ"}
    assert {finding.row["id"] for finding in findings if finding.row} == {row[0] for row in rows}
    repairable = [finding for finding in findings if finding.command.startswith("shop: update ")]
    for finding in repairable:
        assert " other = " not in finding.command
        assert books.sql(finding.command.removeprefix("shop: "))[1] == 1
    assert len(await books.reconcile(AMOUNTS)) == len(findings) - len(repairable)
    assert len(repairable) == 100, "the others are looked at in the next reconciliation"
    assert books.sql("select count(*) from amt where other <> 7 or f <> 0.1")[0] == [(0,)]


async def test_no_printed_command_touches_the_row_of_another_saga(books: Books) -> None:
    for number, row in enumerate([("2026-01-01", "a", "1.5"), ("2026-01-01", None, "NaN"), ("2026-01-02", "b", "2")]):
        books.done(f"s-{number}")
        books.sql("insert into odd values (%s, %s, %s, %s)", *row, f"s-{number}/write")
    assert await books.reconcile(ODD) == []
    books.sql("insert into odd select at, name, amount, 'ghost-' || gk from odd")
    books.sql("insert into odd select at, name, amount, 'twin/write' from odd where gk = 's-2/write'")
    books.sql("insert into odd select at, name, amount, 'twin/write' from odd where gk = 's-2/write'")
    findings = await books.reconcile(ODD)
    assert [finding.kind for finding in findings] == ["effect_without_saga"] * 4
    for finding in findings:
        twin = finding.saga_id == "twin"
        assert finding.command.startswith("shop: select " if twin else "shop: delete "), finding.command
        rows, count = books.sql(finding.command.removeprefix("shop: "))
        assert (len(rows), count) == ((2, 2) if twin else (0, 1)), finding.command
        assert (WHY in finding.details) is twin
    assert [finding.saga_id for finding in await books.reconcile(ODD)] == ["twin"]
    assert books.sql("select count(*) from odd where gk like 's-%'")[0] == [(3,)]


async def test_the_rows_of_an_effect_that_was_applied_twice_are_shown_together(books: Books) -> None:
    books.done("s-1")
    books.sql("insert into odd values ('2026-01-01', 'a', 1, 's-1/write'), ('2026-01-02', 'a', 1, 's-1/write')")
    [finding] = await books.reconcile(ODD)
    assert (finding.kind, finding.command) == (
        "effect_applied_twice", "shop: select * from odd where gk = 's-1/write';",
    )  # fmt: skip
    assert len(books.sql(finding.command.removeprefix("shop: "))[0]) == 2


async def test_an_effect_that_was_left_behind_is_undone_by_hand(books: Books) -> None:
    """The command shows the row of the guard; the documented rows in the guard end the report."""
    books.done("s-1")
    step = {**books.sagas["s-1"]["steps"][0], "state": "PENDING", "started_at": None}
    books.sagas["s-1"] = {**books.sagas["s-1"], "state": "COMPENSATED", "steps": [step]}
    books.sql("insert into odd values ('2026-01-01', 'a', 1, 's-1/write')")
    [finding] = [finding for finding in await books.reconcile(ODD) if finding.place == "shop"]
    assert (finding.kind, finding.step, finding.command) == (
        "effect_not_undone",
        "write",
        "shop: select * from saga_guard where saga_id = 's-1' and step = 'write';",
    )
    assert len(books.sql(finding.command.removeprefix("shop: "))[0]) == 1
    books.sql("delete from odd where gk = 's-1/write'")
    for op in ("confirm", "undo"):
        books.sql(
            "insert into saga_guard (saga_id, step, generation, op, reason, created_at)"
            f" select saga_id, step, generation, '{op}', 'undo', created_at from saga_guard"
            " where saga_id = 's-1' and step = 'write' and generation = 1 and op = 'do'"
        )
    assert await books.reconcile(ODD) == []
