"""The books of the closed days, checked by SQL: the lake, the stage area and finance against receipts and sagas.

As in `accounts.py`, every check selects rows that must not exist. What pyiceberg reads of the lake, what lies in the
stage area, and what the engine says of each saga are put into temporary tables next to the shop's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from sagas.settings import Settings

from .accounts import Invariant, InvariantResult, apply_invariant
from .plan import PlannedClose


@dataclass(frozen=True, slots=True)
class ClosedDay:
    """One day-close as the engine tells it: ``state`` as in `saga show`; ``committed``: it has passed its commit point
    (and may have been undone after that); ``staged``: the files that are left in the stage area, apart from what the
    audit keeps for people."""

    close: PlannedClose
    saga_id: str
    state: str
    committed: bool
    staged: Sequence[str] = ()


_TEMPORARY_TABLES = """
create temporary table closing (saga_id text, role text, day date, state text, committed boolean) on commit drop;
create temporary table left_over (saga_id text, path text) on commit drop;
create temporary table writer (table_name text, saga_id text) on commit drop;
create temporary table moved (table_name text, transaction text) on commit drop;
create temporary table daily_facts (order_id bigint, sku text, day date, quantity integer, amount numeric,
    placement text) on commit drop;
create temporary table daily_totals (day date, placement text, lines bigint, units bigint, amount numeric)
    on commit drop;
create temporary table sold on commit drop as
    select o.order_id, l.sku, r.day, l.quantity, l.amount from orders o join receipt r using (basket_id)
    join receipt_line l using (basket_id) where o.state <> 'draft';
"""

DAY_INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "lake",
        "the facts equal the receipts of the closed days, line by line and to the cent",
        "select coalesce(f.order_id, s.order_id) || '/' || coalesce(f.sku, s.sku) from daily_facts f full join "
        "(select * from sold where day in (select day from closing where state = 'COMPLETED')) s "
        "on (s.order_id, s.sku, s.day, s.quantity, s.amount) = (f.order_id, f.sku, f.day, f.quantity, f.amount) "
        "where f.order_id is null or s.order_id is null",
    ),
    Invariant(
        "lake",
        "the totals are the sums of the facts, for every day and placement",
        "select coalesce(t.day, f.day) || '/' || coalesce(t.placement, f.placement) from daily_totals t full join "
        "(select day, placement, count(*) lines, sum(quantity) units, sum(amount) amount from daily_facts "
        "group by day, placement) f using (day, placement) "
        "where (t.lines, t.units, t.amount) is distinct from (f.lines, f.units, f.amount)",
    ),
    Invariant(
        "lake",
        "one transaction of the catalog has moved both tables",
        "select string_agg(table_name, ' and ') from moved where exists (select 1 from closing where committed) "
        "having count(distinct transaction) > 1",
    ),
    Invariant(
        "lake",
        "a refused day was never visible: neither table has a snapshot of it",
        "select distinct saga_id from closing join writer using (saga_id) where not committed",
    ),
    Invariant(
        "lake",
        "both tables have a snapshot of every other day",
        "select saga_id from closing left join writer using (saga_id) where committed "
        "group by saga_id having count(distinct table_name) <> 2",
    ),
    Invariant(
        "stage",
        "a refused or undone day has no staged output",
        "select path from closing join left_over using (saga_id) where state = 'COMPENSATED'",
    ),
    Invariant(
        "finance",
        "the agency has its commission for every closed day, to the cent, and for no other",
        "select coalesce(p.day, c.day)::text from (select day, sum(amount) amount from commission "
        "where state = 'paid' group by day) p full join (select c.day, round(sum(s.amount) * :rate, 2) amount "
        "from closing c join sold s using (day) where c.state = 'COMPLETED' group by c.day) c using (day) "
        "where p.amount is distinct from c.amount",
    ),
    Invariant(
        "finance",
        "finance was notified of every published day, and again when it was undone",
        "select coalesce(n.saga_id, c.saga_id) from finance_note n full join "
        "(select * from closing where committed) c using (saga_id) where n.state is distinct from "
        "case c.state when 'COMPLETED' then 'sent' else 'corrected' end",
    ),
)


async def check_days(
    engine: AsyncEngine, closed: Sequence[ClosedDay], lake: LakeContents, rate: Decimal
) -> tuple[InvariantResult, ...]:
    """Hold the lake against the shop and the sagas, in one snapshot of the shop's database."""
    async with engine.connect() as connection:
        connection = await connection.execution_options(isolation_level="REPEATABLE READ")
        async with connection.begin():
            await _insert_state(connection, closed, lake)
            return tuple([await apply_invariant(connection, check, {"rate": rate}) for check in DAY_INVARIANTS])


async def _insert_state(connection: AsyncConnection, closed: Sequence[ClosedDay], lake: LakeContents) -> None:
    for statement in _TEMPORARY_TABLES.split(";\n"):
        if statement.strip():
            await connection.exec_driver_sql(statement)
    rows: Mapping[str, Iterable[Mapping[str, Any]]] = {
        "closing": (
            {"saga_id": day.saga_id, "role": day.close.role, "day": day.close.sales.day, "state": day.state,
             "committed": day.committed} for day in closed
        ),
        "left_over": ({"saga_id": day.saga_id, "path": path} for day in closed for path in day.staged),
        "writer": ({"table_name": name, "saga_id": saga_id} for name, ids in lake.writers.items() for saga_id in ids),
        "moved": ({"table_name": name, "transaction": transaction} for name, transaction in lake.moved_by.items()),
        "daily_facts": (_select_keys(row, "order_id", "sku", "day", "quantity", "amount", "placement")
                        for row in lake.rows["daily_facts"]),
        "daily_totals": (_select_keys(row, "day", "placement", "lines", "units", "amount")
                         for row in lake.rows["daily_totals"]),
    }  # fmt: skip
    for table, some in rows.items():
        some = list(some)
        if some:
            names = list(some[0])
            statement = f"insert into {table} ({', '.join(names)}) values ({', '.join(f':{name}' for name in names)})"
            await connection.execute(text(statement), some)


def _select_keys(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names}


# The lake as its readers see it, through pyiceberg and nothing of the engine.

CATALOG_NAME = "lake"
NAMESPACE = "sales"
TABLES = ("daily_facts", "daily_totals")


@dataclass(frozen=True, slots=True)
class LakeContents:
    """``rows`` by table; ``writers``: the ids of the sagas that have ever published something, by table; ``moved_by``:
    the transaction of the catalog's database that moved each table last."""

    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    writers: Mapping[str, frozenset[str]]
    moved_by: Mapping[str, str]


def read_lake(settings: Settings) -> LakeContents:
    """The current rows of both tables, and the writers in their histories."""
    tables = {name: _table(_catalog(settings), name) for name in TABLES}
    return LakeContents(
        rows={name: table.scan().to_arrow().to_pylist() if table else [] for name, table in tables.items()},
        writers={name: _writers(table) if table else frozenset() for name, table in tables.items()},
        moved_by=_moved_by(settings.catalogs[CATALOG_NAME]["uri"]),
    )


def clear_lake(settings: Settings) -> None:
    """Delete both tables with their histories: the shop opens again, and the days of an earlier demo are gone."""
    catalog = _catalog(settings)
    for name in TABLES:
        if _table(catalog, name) is not None:
            catalog.purge_table((NAMESPACE, name))


def staged_files(stage: str, key: str) -> list[str]:
    """The files of one output in the stage area, by its publish key."""
    folder = Path(stage.removeprefix("file://")) / key
    return [str(path.relative_to(folder.parent)) for path in sorted(folder.rglob("*")) if path.is_file()]


def _catalog(settings: Settings) -> Catalog:
    return load_catalog(CATALOG_NAME, **settings.catalogs[CATALOG_NAME])


def _table(catalog: Catalog, name: str) -> Table | None:
    try:
        return catalog.load_table((NAMESPACE, name))
    except (NoSuchTableError, NoSuchNamespaceError):
        return None  # nothing was ever published


def _writers(table: Table) -> frozenset[str]:
    saga_ids = (
        snapshot.summary.additional_properties.get("saga.id") for snapshot in table.snapshots() if snapshot.summary
    )
    return frozenset(saga_id for saga_id in saga_ids if saga_id)


def _moved_by(uri: str) -> dict[str, str]:
    """PostgreSQL keeps with every row which transaction wrote it: `xmin`."""
    with psycopg.connect(uri.replace("postgresql+psycopg://", "postgresql://")) as connection:
        rows = connection.execute(
            "select table_name, xmin::text from iceberg_tables where table_namespace = %s", (NAMESPACE,)
        ).fetchall()
    return dict(rows)
