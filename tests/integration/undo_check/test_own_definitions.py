"""The undos of the definitions that the project ships: those of the patterns, the ported sagas and the demo."""

from __future__ import annotations

import asyncio
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from saga_workers.runtime.databases import set_up_database
from sagas.project import Project
from sagas.settings import load_settings
from sagas.testing import Sagas
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database

DEFINITIONS = Path(__file__).parents[3] / "definitions"
CASES = {
    f"{settings.parent.relative_to(DEFINITIONS)}/{file.name.removesuffix('.saga.yaml')}": settings.parent
    for settings in sorted(DEFINITIONS.rglob("saga.toml"))
    for file in sorted(settings.parent.rglob("*.saga.yaml"))
    if "compensate:" in file.read_text(encoding="utf-8")
}
QUICK = ("patterns/saga/saga", "ported/seata-reduce/seata-reduce", "retail/weekly-order")
"""The definitions that `make test` verifies, with few orders."""

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


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_the_undos_restore_all_rows(
    case: str, postgres_server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, name = CASES[case], case.rpartition("/")[2]
    urls = {connection.name: new_database(postgres_server) for connection in load_settings(folder).sql_connections()}
    for connection, url in urls.items():
        monkeypatch.setenv(f"SAGA_CONNECTIONS__{connection.upper()}__URL", url)
    project = Project(load_settings(folder))
    if (rows := ROWS.get(folder.name)) is not None:
        asyncio.run(set_up_database(project.settings.sql_connection("shop")))
        with psycopg.connect(urls["shop"]) as session:
            session.execute(rows)  # pyright: ignore[reportArgumentType,reportCallIssue]
    given, results = _given(case)
    limit = 4 if case in QUICK else 100
    report = Sagas(project).verify_undo(name, *given, results=results, limit=limit)
    assert case in QUICK or report.unused_waivers == ()
    assert any(step.result == "verified" for step in report.steps) == bool(urls)


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
