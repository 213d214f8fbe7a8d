"""Parameters that reach a column through another one of their statement: stored whole, or refused before it is sent.

A statement is drawn from the products of flows, of a first and a last column, and of values at the edges of types.
"""

from __future__ import annotations

import random
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from itertools import product
from typing import Any

import pytest

from sagas.protocol.outcomes import Outcome
from tests.helpers.sampling import scaled
from tests.integration.guard.conftest import GuardDatabase
from tests.integration.guard.test_exact_sql_forms import execute

COLUMNS = {
    "postgres": {
        "n": "numeric", "n2": "numeric(10,2)", "i": "integer", "l": "bigint", "r": "real", "f": "double precision",
        "t": "text", "v3": "varchar(3)", "ts": "timestamptz", "ts0": "timestamptz(0)", "tz": "timestamp", "d": "date",
        "c": "time", "iv": "interval",
    },
    "mariadb": {
        "n": "decimal(40,20)", "n2": "decimal(10,2)", "i": "int", "l": "bigint", "r": "float", "f": "double",
        "t": "text", "v3": "varchar(3)", "ts": "datetime(6)", "ts0": "datetime", "d": "date", "c": "time(6)",
    },
    "sqlite": {"n": "numeric", "n2": "decimal(10,2)", "i": "integer", "r": "real", "t": "text", "b": "blob"},
}  # fmt: skip
"""The names of columns, which have a type each, with these types."""

VALUES = [
    7, "7", Decimal("2.5"), "2.5", Decimal("1.005"), "1.005", Decimal("0.1"), 16777217, "16777217.25",
    9007199254740993, Decimal("0.30000000000000004"), "0.12345678901234567", "abc", "abc  ", "2026-01-01",
    "2026-01-01T10:00:00", "2026-01-01T10:00:00.75", "2026-01-01T10:00:00+05:00", "2026-01-01T01:00:00.5+05:00",
    "10:00:00", "10:00:00.75",
]  # fmt: skip
FITS = (7, "7")
TIMES = ("ts", "ts0", "tz", "d", "c", "iv")
WHOLE_CASTS = ("n", "t", "ts", "tz")
"""The columns to whose types a cast keeps all of a value."""

_EXPRESSIONS = ["{}", "coalesce({}, {})", "case when 1 = 1 then {} end", "({})", "nullif({}, null)"]
_UPSERT = "insert into carried (id, {first}) values (:id, :v) on conflict (id) do update set "
_CTE = "with p as (update carried set {first} = :v where id = :id "
_SAME = {
    "postgres": (
        *("text(:v)", "bpchar(:v)", "text(:v::text)", "coalesce(:v)", "nullif(:v, '')", "greatest(:v)"),
        *("(select any_value(x) from (values (:v::text)) s(x))", "(array[:v])[1]"),
    ),
    "mariadb": (
        *("binary(:v)", "binary (:v)", "BINARY((:v))", "binary :v", "cast(:v as binary)", "convert(:v, binary)"),
        *("convert(:v using utf8mb4)", "decode_oracle(1, 1, :v, 0)", "name_const('x', :v)", "make_set(1, :v)"),
        *("coalesce(:v)", "ifnull(:v, 1)", "nvl(:v, 1)", "nvl2(1, :v, 1)", "elt(1, :v)", "if(1 = 1, :v, 1)"),
        *("(select max(x) from (select :v as x) s)", "(select lag(:v, 0) over ())", "nullif(:v, null)"),
        *("(select first_value(:v) over ())", "(values (:v))", "(select :v)"),
    ),
    "sqlite": (
        *("likely(:v)", "unlikely(:v)", "likelihood(:v, 0.5)", "coalesce(:v, 1)", "ifnull(:v, 1)", "iif(1, :v, 1)"),
        *("(select max(x) from (select :v as x) s)", "(select lag(:v, 0) over ())", "nullif(:v, null)", "+:v"),
        *("(select first_value(:v) over ())", "(values (:v))", "max(:v, :v)", "min(:v, :v)"),
    ),
}
"""Expressions that give a parameter on as it is."""

_RETURNED = "with p as (insert into carried (id, {first}) values (:id + 1000, :v) returning "
_ROWS = [
    *(
        (f"{_UPSERT}{{last}} = {row}", "carried")
        for row in (
            "(excluded).{first}",
            "(select (excluded).{first})",
            "((excluded)::carried).{first}",
            "((array[excluded])[1]).{first}",
            "(case when true then excluded end).{first}",
            "(select (e).{first} from (select excluded as e) s)",
            "(select x.{first} from (select excluded.*) x)",
            "(select (x).{first} from (select excluded.*) x)",
        )
    ),
    *(
        (f"{_RETURNED}{row}) update carried_log set {{last}} = {read} from p", "carried_log")
        for row, read in (
            ("(carried).{first} as m", "m"),
            ("carried as w", "(p.w).{first}"),
            ("carried", "(p.carried).{first}"),
            ("carried as w", "(select (x.w).{first} from (select p.w) x)"),
            ("*", "(p).{first}"),
            ("*", "p.{first}"),
            ("carried.*", "(select (x.w).{first} from (select p as w) x)"),
        )
    ),
    (f"{_RETURNED}*) insert into carried_log (id, {{last}}) select (p).id, (p).{{first}} from p", "carried_log"),
    (f"{_RETURNED}carried) insert into carried_log select (p.carried).* from p", "carried_log"),
]
"""Statements of PostgreSQL that give on whole rows."""

FLOWS = {
    "postgres": [
        *_ROWS,
        *((f"update carried set {{last}} = {of} where id = :id", "carried") for of in _SAME["postgres"]),
        *((f"{_UPSERT}{{last}} = {of.replace('{}', 'excluded.{first}')}", "carried") for of in _EXPRESSIONS),
        (f"{_UPSERT}(id, {{last}}) = (excluded.id, excluded.{{first}})", "carried"),
        (f"{_UPSERT}(id, {{last}}) = (select excluded.id, excluded.{{first}})", "carried"),
        (
            "insert into carried (id, {first}) select :id, x from (select :v::{type} as x) s"
            " on conflict (id) do update set {last} = excluded.{first}",
            "carried",
        ),
        (f"{_CTE} returning id, {{first}}) insert into carried_log (id, {{last}}) select * from p", "carried_log"),
        (f"{_CTE} returning *) insert into carried_log (id, {{last}}) select id, {{first}} from p", "carried_log"),
        (f"{_CTE} returning {{first}} as x) update carried_log set {{last}} = (select x from p)", "carried_log"),
        (f"{_CTE} returning new.{{first}} as x) update carried_log g set {{last}} = p.x from p", "carried_log"),
        (
            "with p as (insert into carried (id, {first}) values (:id + 1000, :v) returning id, {first}), q as"
            " (select {first} as y from p) insert into carried_log (id, {last}) select :id, y from q",
            "carried_log",
        ),
        (
            "with p as (delete from carried where id = :id returning id, :v::{type} as x)"
            " insert into carried_log (id, {last}) select id, x from p",
            "carried_log",
        ),
        (
            "with p as (delete from carried using (select :v::{type} as x) s where id = :id returning id, s.x)"
            " insert into carried_log (id, {last}) select id, max(x) from p group by id",
            "carried_log",
        ),
        (
            "with p as (merge into carried t using (select 1 as k) s on t.id = :id when matched then update set"
            " {first} = :v returning t.{first}) insert into carried_log (id, {last}) select :id, {first} from p",
            "carried_log",
        ),
        (
            f"{_CTE} returning {{first}} as x) insert into carried_log (id, {{last}})"
            " select :id, mode() within group (order by x) from p",
            "carried_log",
        ),
    ],
    "mariadb": [
        *(
            (f"insert into carried (id, {{first}}) {rows} on duplicate key update {{last}} = {of}", "carried")
            for rows in ("values (:id, :v)", "select :id, :v", "select i, x from (select :id as i, :v as x) s")
            for of in ("values({first})", "value({first})", "coalesce(values({first}), 1)")
        ),
        ("insert into carried set id = :id + 1000, {first} = :v, {last} = {first}", "carried"),
        ("insert into carried (id, {first}, {last}) values (:id + 1000, :v, {first})", "carried"),
        ("update carried set {first} = :v, {last} = {first} where id = :id", "carried"),
        ("update carried set {first} = :v, {last} = (select {first}) where id = :id", "carried"),
        ("update carried set {last} = (select {first}), {first} = :v where id = :id", "before"),
        (
            "insert into carried (id) values (:id) on duplicate key update {first} = :v, {last} = {first}",
            "carried",
        ),
        ("update carried set {first} = :v, {last} = binary({first}) where id = :id", "carried"),
        *((f"update carried set {{last}} = {of} where id = :id", "carried") for of in _SAME["mariadb"]),
    ],
    "sqlite": [
        *((f"{_UPSERT}{{last}} = {of.replace('{}', 'excluded.{first}')}", "carried") for of in _EXPRESSIONS),
        (f"{_UPSERT}(id, {{last}}) = (select excluded.id, excluded.{{first}})", "carried"),
        *((f"update carried set {{last}} = {of} where id = :id", "carried") for of in _SAME["sqlite"]),
        (
            "insert into carried (id, {first}) select :id, x from (select :v as x) s where true"
            " on conflict (id) do update set {last} = excluded.{first}",
            "carried",
        ),
    ],
}
"""Statements, and the table that has the last column; "before": it gets the value that the first one had before."""

_OPERATORS = [
    ("update carried set {last} = numeric_uplus(:v) where id = :id", "carried"),
    ("update carried set {last} = numeric_smaller(:v, 100000000000000000) where id = :id", "carried"),
    ("update carried set {last} = numeric_larger(:v, 0) where id = :id", "carried"),
]


def _moment(value: Any) -> Any:
    """A time as a comparable value: of a date its midnight, in UTC; None for what is not a time."""
    if isinstance(value, timedelta):
        return (datetime.min + value).time()
    if isinstance(value, str):
        value = value.strip()
        for read in (datetime.fromisoformat, time.fromisoformat):
            try:
                value = read(value)
                break
            except ValueError:
                pass
        else:
            return None
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value if isinstance(value, time) else None


def _number(value: Any) -> Decimal | None:
    try:
        return Decimal(repr(value) if isinstance(value, float) else str(value).strip())
    except InvalidOperation:
        return None


def _is_whole(value: Any, stored: Any) -> bool:
    stored = stored.decode() if isinstance(stored, bytes) else stored
    number = _number(value)
    if number is not None:
        return _number(stored) == number
    return stored == value or (_moment(value) is not None and _moment(stored) == _moment(value))


async def _new_tables(database: GuardDatabase) -> None:
    columns = ", ".join(f"{name} {type}" for name, type in COLUMNS[database.kind].items())
    async with database.engine.connect() as connection:
        for table in ("carried", "carried_log"):
            await connection.exec_driver_sql(f"drop table if exists {table}")
            await connection.exec_driver_sql(f"create table {table} (id integer primary key, {columns})")
        if database.kind == "postgres":
            await connection.exec_driver_sql("drop domain if exists carried_price")
            await connection.exec_driver_sql("create domain carried_price as numeric")


async def _run(database: GuardDatabase, statement: str, table: str, last: str, value: Any) -> tuple[Outcome, list[Any]]:
    """The outcome, and what the last column has afterwards."""
    for name in ("carried", "carried_log"):
        await execute(database, f"delete from {name}")
        if name == "carried" or "update carried_log" in statement:
            await execute(database, f"insert into {name} (id) values (1)")
    names = {"id": 1, "v": value} if ":id" in statement else {"v": value}
    outcome = await execute(database, statement, **names)
    read = table if table != "before" else "carried"
    rows = await database.rows(f"select {last} from {read} where {last} is not null")
    return outcome, [row[0] for row in rows]


def _cases(kind: str) -> list[tuple[tuple[str, str], str, str, Any]]:
    types = COLUMNS[kind]
    flows = [*FLOWS[kind], *(_OPERATORS if kind == "postgres" else ())]
    return [
        (flow, first, last, value)
        for flow, first, last, value in product(flows, types, types, VALUES)
        if first != last
        and (first in WHOLE_CASTS or "{type}" not in flow[0])
        # A number is a time as well: MariaDB reads 103000 as 10:30:00, and an interval of PostgreSQL 90 as 00:01:30.
        and not ({first, last} & {*TIMES} and _number(value) is not None)
    ]


def _statement(flow: str, first: str, last: str, kind: str) -> str:
    return flow.format(first=first, last=last, type=COLUMNS[kind][first].partition("(")[0])


@pytest.mark.sampled(keep=1)
async def test_a_value_that_a_column_gives_on_is_stored_whole_or_refused(guard_database: GuardDatabase) -> None:
    database, kind = guard_database, guard_database.kind
    await _new_tables(database)
    drawn, changed, done = random.Random(0), list[Any](), 0
    cases = _cases(kind)
    while done < scaled(15, 2000):
        (flow, table), first, last, value = drawn.choice(cases)
        statement = _statement(flow, first, last, kind)
        outcome, rows = await _run(database, statement, table, last, value)
        if outcome.kind != "done":
            assert rows == [], (statement, value)
            assert not outcome.retryable, (statement, value, outcome)
            message = outcome.failure.message if outcome.failure is not None else ""
            if value in FITS and message.startswith("the parameter"):
                changed.append((statement, value, message))
            done += message.startswith("the parameter")  # and not the database that refuses a type
            continue
        done += 1
        if table == "before":
            assert rows == [], (statement, value)
        elif not all(_is_whole(value, stored) for stored in rows):
            changed.append((statement, value, rows))
    assert changed == []


EDGES = {
    "postgres": [
        (f"{_UPSERT}i = excluded.n", "2.5"), (f"{_UPSERT}r = excluded.n", 16777217),
        (f"{_UPSERT}ts0 = excluded.ts", "2026-01-01T10:00:00.75Z"),
        (f"{_UPSERT}tz = excluded.ts", "2026-01-01T10:00:00+05:00"), (f"{_UPSERT}v3 = excluded.t", "abc  "),
        (f"{_UPSERT}d = excluded.ts", "2026-01-01T01:00:00+05:00"), (f"{_UPSERT}c = excluded.iv", "2 days 10:00:00"),
        (f"{_UPSERT}n2 = excluded.f", Decimal("1.005")), (f"{_UPSERT}f = excluded.r", Decimal("0.1")),
        (f"{_UPSERT}n = excluded.f", Decimal("0.30000000000000004")),
        ("with p as (delete from carried where id = :id returning :v::numeric as x) insert into carried_log (id, i)"
         " select 1, x from p", Decimal("2.5")),
        ("with p as (update carried set n = :v where id = :id returning *) insert into carried_log (id, n, n2)"
         " select id, n2, n from p", Decimal("1.005")),
        ("with p as (update carried set n = :v where id = :id returning *) insert into carried_log (id, n2, n)"
         " select * from p", Decimal("1.005")),
        *((flow.format(first="n", last="n2"), "1.005") for flow, _ in _ROWS if ").*" not in flow),
        *((f"update carried set n2 = {of}::numeric where id = :id", "1.005") for of in _SAME["postgres"]),
        ("update carried set ts0 = timestamptz(:v) where id = :id", "2026-01-01T10:00:00.75Z"),
        ("update carried set n2 = :v::carried_price where id = :id", "1.005"),
        ("with recursive w as (select :v::numeric as a, 1 as k union all select w.* from w where false)"
         " update carried set n2 = (select max(a) from w) where id = :id", "1.005"),
        *((flow.format(last="n2"), value) for flow, _ in _OPERATORS for value in ("1.005", Decimal("1.005"))),
    ],
    "mariadb": [
        ("insert into carried (id, n) values (:id, :v) on duplicate key update i = values(n)", Decimal("2.5")),
        ("insert into carried (id, t) values (:id, :v) on duplicate key update v3 = values(t)", "abc  "),
        ("insert into carried (id, ts) values (:id, :v) on duplicate key update ts0 = values(ts)",
         "2026-01-01T10:00:00.75"),
        ("insert into carried (id, ts) values (:id, :v) on duplicate key update l = values(ts)", "2026-01-01T10:00:00"),
        ("insert into carried (id, c) values (:id, :v) on duplicate key update ts = values(c)", "10:00:00"),
        ("insert into carried (id, r) values (:id, :v) on duplicate key update t = coalesce(values(r), 1)",
         Decimal("0.1")),
        ("insert into carried (id, r) values (:id, :v) on duplicate key update v3 = values(r)", Decimal("1.005")),
        ("update carried set n = :v, i = n where id = :id", "2.5"),
        *((f"update carried set i = {of} where id = :id", value)
          for of in _SAME["mariadb"]
          for value in ("2.5", Decimal("2.5"))),
    ],
    "sqlite": [
        (f"{_UPSERT}t = excluded.r", Decimal("0.30000000000000004")),
        (f"{_UPSERT}t = excluded.b", Decimal("0.30000000000000004")), (f"{_UPSERT}r = excluded.t", "9007199254740993"),
        *((f"update carried set r = {of} where id = :id", "0.12345678901234567") for of in _SAME["sqlite"]),
    ],
}  # fmt: skip


@pytest.mark.sampled(keep=1)
async def test_values_at_the_edges_are_refused_before_the_statement_is_sent(guard_database: GuardDatabase) -> None:
    await _new_tables(guard_database)
    for flow, value in EDGES[guard_database.kind]:
        carried = re.search(r"excluded\.(\w+)", flow)
        statement = flow.replace("{first}", carried[1]) if carried is not None else flow
        outcome, _ = await _run(guard_database, statement, "carried", "id", value)
        assert outcome.failure is not None, (statement, value)
        assert outcome.failure.message.startswith("the parameter v is "), (statement, value, outcome)


async def test_all_columns_of_written_rows_are_compared_in_their_order(guard_database: GuardDatabase) -> None:
    if guard_database.kind != "postgres":
        return  # has no statements that write rows in others
    await _new_tables(guard_database)
    run = "with p as (update carried set n = :v where id = :id returning *) insert into carried_log select * from p"
    outcome, rows = await _run(guard_database, run, "carried_log", "n", Decimal("1.005"))
    assert (outcome.kind, rows) == ("done", [Decimal("1.005")])  # the column i, of integers, does not get it


async def test_a_datetime_with_an_offset_is_to_be_in_utc(guard_database: GuardDatabase) -> None:
    if guard_database.kind != "mariadb":
        return  # the others have types or texts with an offset
    await _new_tables(guard_database)
    run = "insert into carried (id, ts) values (:id, :v)"
    outcome, rows = await _run(guard_database, run, "carried", "ts", "2026-05-01T10:00:00+02:00")
    assert rows == []
    assert outcome.failure is not None
    assert "give the time in UTC, such as 2026-05-01T10:00:00Z" in outcome.failure.message
