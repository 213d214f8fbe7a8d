"""The books of the closed days, checked by SQL: the lake, the stage area and finance against receipts and sagas.

As in `books.py`, every check selects rows that must not exist. What pyiceberg reads of the lake, what lies in the stage
area, and what the engine says of each saga are put into temporary tables beside the shop's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_workers.demo.books import Check, Finding, apply_check
from saga_workers.demo.days import Close
from saga_workers.demo.lake import Lake


@dataclass(frozen=True, slots=True)
class Closed:
    """One day-close as the engine tells it: ``state`` as in `saga show`; ``committed``: it has passed its commit point
    (and may have been undone after that); ``staged``: the files that are left in the stage area, apart from what the
    audit keeps for people."""

    close: Close
    saga_id: str
    state: str
    committed: bool
    staged: Sequence[str] = ()


_TEMPORARY = """
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

CHECKS: tuple[Check, ...] = (
    Check(
        "lake",
        "the facts are what the receipts of the closed days say, line by line and to the cent",
        "select coalesce(f.order_id, s.order_id) || '/' || coalesce(f.sku, s.sku) from daily_facts f full join "
        "(select * from sold where day in (select day from closing where state = 'COMPLETED')) s "
        "on (s.order_id, s.sku, s.day, s.quantity, s.amount) = (f.order_id, f.sku, f.day, f.quantity, f.amount) "
        "where f.order_id is null or s.order_id is null",
    ),
    Check(
        "lake",
        "the totals are the sums of the facts, for every day and placement",
        "select coalesce(t.day, f.day) || '/' || coalesce(t.placement, f.placement) from daily_totals t full join "
        "(select day, placement, count(*) lines, sum(quantity) units, sum(amount) amount from daily_facts "
        "group by day, placement) f using (day, placement) "
        "where (t.lines, t.units, t.amount) is distinct from (f.lines, f.units, f.amount)",
    ),
    Check(
        "lake",
        "one transaction of the catalog has moved both tables",
        "select string_agg(table_name, ' and ') from moved where exists (select 1 from closing where committed) "
        "having count(distinct transaction) > 1",
    ),
    Check(
        "lake",
        "of a day that was refused nothing was ever visible: neither table has a snapshot of it",
        "select distinct saga_id from closing join writer using (saga_id) where not committed",
    ),
    Check(
        "lake",
        "of every other day both tables have one",
        "select saga_id from closing left join writer using (saga_id) where committed "
        "group by saga_id having count(distinct table_name) <> 2",
    ),
    Check(
        "stage",
        "of a refused or undone day nothing is staged any more",
        "select path from closing join left_over using (saga_id) where state = 'COMPENSATED'",
    ),
    Check(
        "finance",
        "the agency has its commission for every closed day, to the cent, and for no other",
        "select coalesce(p.day, c.day)::text from (select day, sum(amount) amount from commission "
        "where state = 'paid' group by day) p full join (select c.day, round(sum(s.amount) * :rate, 2) amount "
        "from closing c join sold s using (day) where c.state = 'COMPLETED' group by c.day) c using (day) "
        "where p.amount is distinct from c.amount",
    ),
    Check(
        "finance",
        "finance was told of every day that was published, and was told again when it was undone",
        "select coalesce(n.saga_id, c.saga_id) from finance_note n full join "
        "(select * from closing where committed) c using (saga_id) where n.state is distinct from "
        "case c.state when 'COMPLETED' then 'sent' else 'corrected' end",
    ),
)


async def check_days(engine: AsyncEngine, closed: Sequence[Closed], lake: Lake, rate: Decimal) -> tuple[Finding, ...]:
    """Hold the lake against the shop and the sagas, in one snapshot of the shop's database."""
    async with engine.connect() as connection:
        connection = await connection.execution_options(isolation_level="REPEATABLE READ")
        async with connection.begin():
            await _note(connection, closed, lake)
            return tuple([await apply_check(connection, check, {"rate": rate}) for check in CHECKS])


async def _note(connection: AsyncConnection, closed: Sequence[Closed], lake: Lake) -> None:
    for statement in _TEMPORARY.split(";\n"):
        if statement.strip():
            await connection.exec_driver_sql(statement)
    rows: Mapping[str, Iterable[Mapping[str, Any]]] = {
        "closing": (
            {"saga_id": one.saga_id, "role": one.close.role, "day": one.close.sales.day, "state": one.state,
             "committed": one.committed} for one in closed
        ),
        "left_over": ({"saga_id": one.saga_id, "path": path} for one in closed for path in one.staged),
        "writer": ({"table_name": name, "saga_id": one} for name, ids in lake.writers.items() for one in ids),
        "moved": ({"table_name": name, "transaction": one} for name, one in lake.moved_by.items()),
        "daily_facts": (_only(row, "order_id", "sku", "day", "quantity", "amount", "placement")
                        for row in lake.rows["daily_facts"]),
        "daily_totals": (_only(row, "day", "placement", "lines", "units", "amount")
                         for row in lake.rows["daily_totals"]),
    }  # fmt: skip
    for table, some in rows.items():
        some = list(some)
        if some:
            names = list(some[0])
            statement = f"insert into {table} ({', '.join(names)}) values ({', '.join(f':{name}' for name in names)})"
            await connection.execute(text(statement), some)


def _only(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names}
