"""The undos of the definitions that the project ships: those of the patterns, the ported sagas and the demo."""

from __future__ import annotations

import asyncio
import re
import runpy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from saga_workers.runtime.databases import set_up_database
from saga_workers.undo_check.undo_report import VERIFIED, UndoReport
from sagas.project import Project
from sagas.settings import load_settings
from sagas.testing import Sagas
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database, new_mariadb_database

DEFINITIONS = Path(__file__).parents[3] / "definitions"
CASES = {
    f"{settings.parent.relative_to(DEFINITIONS)}/{file.name.removesuffix('.saga.yaml')}": settings.parent
    for settings in sorted(DEFINITIONS.rglob("saga.toml"))
    for file in sorted(settings.parent.rglob("*.saga.yaml"))
    if re.search("compensate:|two_phase: true|uses: spark", file.read_text(encoding="utf-8"))
}
LIMITS = {"patterns/saga/saga": 4, "ported/seata-reduce/seata-reduce": 20, "retail/weekly-order": 4}
QUICK = tuple(LIMITS)
"""The definitions that `make test` verifies, with few orders."""

ON_MARIADB = (
    "patterns/claimed-event/claimed-event",
    "patterns/message-table/message-table",
    "patterns/saga/saga",
    "ported/bpmn-trip/bpmn-trip",
    "ported/ftgo-revise/ftgo-revise",
    "ported/google-credit/google-credit",
    "ported/kogito-order/kogito-order",
    "ported/oxide-disk/oxide-disk",
    "shop-api/checkout",
)
"""The definitions whose SQL runs there, too."""

ROWS = {
    "retail": """
        insert into stock (sku, product, initial, on_shelf) values ('milk', 'milk', 9, 9), ('bread', 'bread', 9, 9);
        insert into account (household_id, spending_limit, available) values ('h-1', 100, 100);
        insert into coupon (household_id, campaign, upc) values ('h-1', '18', '51111');
        insert into carrier values ('van', 50);
        insert into delivery_slot (slot, capacity) values ('2017-12-18 17:00', 2);
        insert into gift values ('Christmas stollen', 2, 2);
        insert into agency values ('agency', 1000);
    """,
    "shop-api": "insert into orders values ('o-1', 'apple', 2)",
}
"""What the shops have before, which no schema brings along."""

TESTS = DEFINITIONS / "retail" / "tests"
GIVEN = {
    "retail/checkout": ("test_checkout.py", "BASKET"),
    "retail/checkout-tcc": ("test_checkout.py", "COLLECTED"),
    "retail/weekly-order": ("test_weekly_order.py", "SMALL"),
    "retail/day-close": ("test_day_close.py", "DAY"),
}
NOT_RUN = {"retail/day-close": ("count", "facts")}
"""The steps whose results Spark gives."""

NOT_UNDONE = {
    "retail/weekly-order": dict.fromkeys(
        ("buy/reserve", "buy/redeem", "buy/charge"), "no order undoes it with this input"
    ),
}
"""The steps that are run, and that nothing undoes: those of a nested saga whose pivot ends the whole one."""


@pytest.mark.parametrize(
    # Those of both databases are quick on MariaDB.
    "case",
    [pytest.param(case, marks=() if case in QUICK and case not in ON_MARIADB else pytest.mark.slow) for case in CASES],
)
def test_the_undos_restore_all_rows(
    case: str, postgres_server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, name = CASES[case], case.rpartition("/")[2]
    urls = {connection.name: new_database(postgres_server) for connection in load_settings(folder).sql_connections()}
    project = _project(folder, urls, monkeypatch)
    if (rows := ROWS.get(folder.name)) is not None:
        asyncio.run(set_up_database(project.settings.sql_connection("shop")))
        with psycopg.connect(urls["shop"]) as session:
            session.execute(rows)  # pyright: ignore[reportArgumentType,reportCallIssue]
    given, results = _given(case)
    limit = LIMITS.get(case, 100)
    report = Sagas(project).verify_undo(name, *given, results=results, limit=limit)
    assert case in QUICK or report.unused_waivers == ()
    _expect_all_verified(case, report)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in ON_MARIADB]
)
def test_the_undos_restore_all_rows_on_mariadb(
    case: str, mariadb_server: DatabaseServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    shutil.copytree(CASES[case], folder)
    for file in folder.glob("*.sql"):
        file.write_text(_for_mariadb(file.read_text(encoding="utf-8")), encoding="utf-8")
    names = [connection.name for connection in load_settings(folder).sql_connections()]
    urls = {name: asyncio.run(new_mariadb_database(mariadb_server)) for name in names}
    given, results = _given(case)
    limit = LIMITS.get(case, 100)
    saga = case.rpartition("/")[2]
    report = Sagas(_project(folder, urls, monkeypatch)).verify_undo(saga, *given, results=results, limit=limit)
    _expect_all_verified(case, report)


def _expect_all_verified(case: str, report: UndoReport) -> None:
    """Every step that is run in a database is verified, and none leaves anything."""
    left = {step.step: step.why or step.result for step in report.steps if step.result != VERIFIED}
    assert {step: why for step, why in left.items() if "is not run, because" not in why} == NOT_UNDONE.get(case, {})


def _for_mariadb(schema: str) -> str:
    """The schema with a length for each text in a key, and MariaDB's words for a row that may exist."""
    schema = re.sub(r"\btext(?= (primary key|not null|references))", "varchar(200)", schema)
    return re.sub(r"insert (into [^;]*) on conflict do nothing", r"insert ignore \1", schema)


def _project(folder: Path, urls: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Project:
    """The project with other databases."""
    for connection, url in urls.items():
        monkeypatch.setenv(f"SAGA_CONNECTIONS__{connection.upper()}__URL", url)
    return Project(load_settings(folder))


def _given(case: str) -> tuple[list[Any], Mapping[str, Any] | None]:
    """The input with which the saga succeeds, and the results of steps that are not run; none for the generated ones.

    They are those of the project's tests, or of its play.
    """
    if case in GIVEN:
        file, name = GIVEN[case]
        values = runpy.run_path(str(TESTS / file))
        return [values[name]], {step: values["RESULTS"][step] for step in NOT_RUN.get(case, ())} or None
    if case.startswith("shop-api/"):
        return [{"order": "o-1", "product": "apple", "quantity": 1}], None
    play = CASES[case] / "play.py"
    return ([runpy.run_path(str(play))["SUCCESS"]] if case.startswith("ported/") else []), None
