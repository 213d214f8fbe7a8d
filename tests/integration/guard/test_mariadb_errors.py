"""Real errors of MariaDB: the class of each, and how many attempts the engine makes.

Each statement is preceded by one that writes, so that a refused attempt would leave a row if it were not rolled back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from saga_activities.connections import DatabaseConnections
from saga_activities.guard.database_errors import classify_database_error
from sagas.protocol.outcomes import Outcome
from sagas.settings import SqlConnection
from tests.helpers.database_servers import DatabaseServer, mariadb
from tests.helpers.new_databases import new_mariadb_database
from tests.integration.guard.conftest import GuardDatabase, new_address, open_guard_database
from tests.integration.guard.test_statement_errors import attempts, invocation

VALUE = "correct the value or the statement"
STATEMENT = "correct the statement or the database"
RIGHT = "grant the right to the user of the connection"

SEVERAL = "give each row once, or correct the statement: it meets several rows where one is expected"

ATTEMPTS = {
    VALUE: 1,
    STATEMENT: 1,
    RIGHT: 1,
    SEVERAL: 1,
    "conflict": 3,
    "infrastructure": 5,
    "timeout": 5,
    "unknown": 5,
}
"""Attempts of each class; five stands for as many as the step's `retry` has, or without limit."""

SIGNALS = {
    "45000": "unknown",  # as PostgreSQL's `raise exception`
    "02000": "unknown",
    "22003": VALUE,
    "23502": VALUE,
    "23514": VALUE,
    "44000": VALUE,
    "0A000": STATEMENT,
    "21000": SEVERAL,
    "42000": STATEMENT,
    "42501": RIGHT,
    "23000": "conflict",
    "23505": "conflict",
    "40001": "infrastructure",
    "53100": "infrastructure",
}
"""What the error of a trigger or a procedure is, by the SQLSTATE of its SIGNAL."""

ROUTINES = {
    "no_procedure": (1305, "call no_such_procedure()", STATEMENT),
    "wrong_arguments": (1318, "call no_case()", STATEMENT),
    "not_a_variable": (1414, "call out_only(1)", STATEMENT),
    "of_a_missing_account": (1449, "call of_nobody()", STATEMENT),
    "several_rows": (1172, "call several()", STATEMENT),
    "case_without_else": (1339, "call no_case(2)", STATEMENT),
    "closed_cursor": (1326, "call no_cursor()", STATEMENT),
    "recursion": (1456, "call calls_itself(1)", STATEMENT),
    "unknown_zone": (1298, "set time_zone = 'Nowhere/Town'", VALUE),
    "global_variable": (1229, "set session max_connections = 5", STATEMENT),
    "read_only_variable": (1238, "set session version = '1'", STATEMENT),
    "wrong_mode": (1231, "set session sql_mode = 'no_such_mode'", STATEMENT),
    "of_an_administrator": (1227, "set global max_connections = 500", RIGHT),
    "without_execute": (1370, "call {other}.secret()", RIGHT),
    "kills_itself": (1317, "kill query connection_id()", "infrastructure"),
    **{
        f"refuses_{state}": (1643 if state == "02000" else 1644, f"signal sqlstate '{state}'", group)
        for state, group in SIGNALS.items()
    },
}
"""Statements that a guarded step may not have, in functions."""

TABLES = (
    "create table trace_row (id varchar(200) primary key)",
    "create table stock (sku varchar(20) primary key, free int not null check (free >= 0), note varchar(20) null)",
    "create table line (sku varchar(20) not null, foreign key (sku) references stock (sku))",
    "create table filled (id int, due int not null)",
    "create table value_row (n tinyint, amount decimal(5,2), kind enum('a','b'), at date, word varchar(3), doc json)",
    "create table doubled (n int, twice int generated always as (n * 2))",
    "create table hidden (a int, b int invisible)",
    "create table parted (n int) partition by list (n) (partition p1 values in (1), partition p2 values in (2))",
    "create table self_row (n int)",
    "create table numbered (id bigint unsigned auto_increment primary key)",
    "create view cheap as select sku, free from stock where free < 10 with check option",
    "create view totals as select sum(free) as free from stock",
    "create view joined as select s.sku, s.free, f.due from stock s join filled f on f.id = s.free",
    "create table short_lived (n int)",
    "create view broken as select n from short_lived",
    "drop table short_lived",
    "create sequence short maxvalue 2 nocycle",
    "do nextval(short), nextval(short)",
    "insert into stock values ('A', 5, null), ('B', 6, null)",
    "insert into line values ('B')",
    "insert into value_row values (2, 1, 'a', '2026-05-01', '3 x', '{}')",
    "insert into numbered values (18446744073709551614)",
    "create trigger loops before insert on self_row for each row update self_row set n = 1",
    "create procedure with_commit() commit",
    "create table committing (n int)",
    "create trigger commits before insert on committing for each row call with_commit()",
    "create procedure several() begin declare s varchar(20); select sku into s from stock; end",
    "create procedure no_case(n int) begin case n when 1 then do 1; end case; end",
    "create procedure no_cursor() begin declare s varchar(20); declare c cursor for select sku from stock;"
    " fetch c into s; end",
    "create procedure calls_itself(n int) call calls_itself(n + 1)",
    "create procedure out_only(out n int) set n = 1",
    "create function no_return(n int) returns int begin if n = 1 then return 1; end if; end",
    "create definer=nobody@localhost procedure of_nobody() sql security definer do 1",
    *(
        f"create function {name}() returns int sql security invoker begin {body}; return 1; end"
        for name, (_, body, _) in ROUTINES.items()
    ),
    *(f"create table signal_{state} (n int)" for state in SIGNALS),
    *(
        f"create trigger refuses_{state} before insert on signal_{state} for each row"
        f" signal sqlstate '{state}' set message_text = 'no'"
        for state in SIGNALS
    ),
)


@dataclass(frozen=True)
class Case:
    number: int
    statement: str
    group: str = STATEMENT


CASES = (
    # Names.
    Case(1054, "select nope from stock"),
    Case(1146, "select 1 from nowhere"),
    Case(1305, "select no_such_function(1)"),
    Case(1052, "select sku from stock join line on true"),
    Case(1066, "select 1 from stock join stock on true"),
    Case(1193, "select @@no_such_variable"),
    Case(1273, "select 'a' collate no_such_collation"),
    Case(1115, "select convert('a' using no_such_charset)"),
    Case(1176, "select 1 from stock use index (no_such_index)"),
    Case(1191, "select 1 from stock where match (sku) against ('x')"),
    Case(1735, "select 1 from parted partition (p9)"),
    Case(1747, "select 1 from stock partition (p0)"),
    Case(1356, "select 1 from broken"),
    Case(4089, "select nextval(stock)"),
    # The form of the statement.
    Case(1056, "select count(*) as c from stock group by c"),
    Case(1111, "select sum(sum(free)) from stock"),
    Case(1060, "select * from (select 1 as a, 2 as a) as twice"),
    Case(1110, "insert into stock (sku, sku) values ('N', 'N')"),
    Case(1136, "insert into stock values ('N')"),
    Case(1136, "insert into hidden values (1, 2)"),
    Case(1222, "select 1 union select 1, 2"),
    Case(1241, "select (select 1, 2)"),
    Case(1242, "select (select sku from stock)", SEVERAL),
    Case(1582, "select abs(1, 2)"),
    Case(1425, "select cast(1 as decimal(60, 39))"),
    Case(1426, "select cast(1 as decimal(66, 1))"),
    Case(1267, "select _utf8mb4'a' collate utf8mb4_bin = _utf8mb4'b' collate utf8mb4_general_ci"),
    Case(4008, "with recursive r as (select 1 as n union all select n + 1 from r where n < (select max(n) from r))"
         " select n from r"),
    Case(4124, "select 1 from stock for system_time all"),
    Case(4078, "select point(1, 1) + 1", VALUE),
    Case(4079, "select abs(point(1, 1))", VALUE),
    Case(4024, "select ntile(0) over (order by sku) from stock", VALUE),
    # Values.
    Case(1048, "update stock set free = null where sku = 'A'", VALUE),
    Case(1364, "insert into filled (id) values (1)", VALUE),
    Case(4025, "update stock set free = -1 where sku = 'A'", VALUE),
    Case(4025, "insert into value_row (doc) values ('{')", VALUE),
    Case(1264, "insert into value_row (n) values (1000)", VALUE),
    Case(1264, "insert into value_row (amount) values (12345.67)", VALUE),
    Case(1265, "insert into value_row (kind) values ('c')", VALUE),
    Case(1292, "insert into value_row (at) values ('2026-02-30')", VALUE),
    Case(1292, "insert into value_row (at) values ('yesterdayish')", VALUE),
    Case(1366, "insert into value_row (n) values ('much')", VALUE),
    Case(1406, "insert into value_row (word) values ('long')", VALUE),
    Case(1365, "insert into value_row (n) values (1 / 0)", VALUE),
    # What the server only warns of.
    Case(1292, "delete from value_row where n = '2 or so'", VALUE),
    Case(1292, "delete from value_row where n in ('1', '2 or so')", VALUE),
    Case(1292, "delete from value_row where n < '3rd'", VALUE),
    Case(1292, "delete from value_row where at <= '2026-05-01T12:00:00+02:00'", VALUE),
    Case(1292, "delete from value_row where word = 3", VALUE),
    Case(1292, "select n from value_row where n = 'customer-5'", VALUE),
    Case(1260, "select group_concat(a.sku, repeat('x', 1000000)) from stock a, stock b", VALUE),
    Case(1265, "insert ignore into value_row (word) values ('long')", VALUE),
    Case(1264, "insert ignore into value_row (n) values (1000)", VALUE),
    Case(1265, "insert ignore into value_row (kind) values ('c')", VALUE),
    Case(1264, "update ignore value_row set n = 1000", VALUE),
    Case(1048, "insert ignore into stock (sku, free) select 'N', null", VALUE),
    Case(4025, "insert ignore into stock (sku, free) values ('N', -1)", VALUE),
    Case(1452, "insert ignore into line values ('C')", "conflict"),
    Case(1690, "select 18446744073709551615 + 1", VALUE),
    Case(1411, "insert into value_row (at) values (str_to_date('x', '%%Y'))", VALUE),
    Case(1906, "insert into doubled (n, twice) values (1, 5)"),
    Case(1526, "insert into parted values (3)", VALUE),
    Case(1748, "insert into parted partition (p1) values (2)", VALUE),
    Case(1369, "insert into cheap values ('N', 50)", VALUE),
    Case(1139, "select 'a' regexp '('"),
    Case(4037, "select * from json_table('[1', '$[*]' columns (a int path '$')) as t", VALUE),
    Case(4178, "select * from json_table('[[[1]]]', '$[*]' columns (a int path '$[0]' error on error)) as t", VALUE),
    Case(4084, "select nextval(short)", VALUE),
    Case(1467, "insert into numbered values (null), (null)", VALUE),
    # Views and routines.
    Case(1288, "update totals set free = 1"),
    Case(1393, "update joined set free = 1, due = 2"),
    Case(1394, "insert into joined values ('N', 1, 1)"),
    Case(1395, "delete from joined"),
    Case(1471, "insert into totals values (1)"),
    Case(1442, "insert into self_row values (1)"),
    Case(1422, "insert into committing values (1)"),
    Case(1321, "select no_return(2)"),
    # Rights.
    Case(1142, "select user from mysql.user", RIGHT),
    Case(1143, "select {other}.secrets.hidden from {other}.secrets", RIGHT),
    # What another transaction may end.
    Case(1062, "insert into stock values ('A', 1, null)", "conflict"),
    Case(1451, "delete from stock where sku = 'B'", "conflict"),
    Case(1452, "insert into line values ('C')", "conflict"),
    *(Case(number, f"select {name}()", group) for name, (number, _, group) in ROUTINES.items()),
    *(
        Case(1643 if state == "02000" else 1644, f"insert into signal_{state} values (1)", group)
        for state, group in SIGNALS.items()
    ),
)  # fmt: skip
EACH = [pytest.param(case, id=f"{case.number}-{case.statement[:50]}") for case in CASES]


@dataclass(frozen=True)
class Shop:
    database: GuardDatabase
    other: str

    async def attempts(self, case: Case, *, two_phase: bool = False) -> list[Outcome]:
        statement = case.statement.replace("{other}", self.other)
        saga_id = new_address().saga_id
        made = await attempts(self.database, invocation(saga_id, "do", statement, two_phase=two_phase))
        assert await self.database.rows("select 1 from trace_row where id = :id", id=saga_id) == []
        return made


@pytest_asyncio.fixture(scope="module")
async def shop(mariadb_server: DatabaseServer) -> AsyncIterator[Shop]:
    """A database with the tables, and an account that may use its rows and little of another database."""
    url, other_url = await new_mariadb_database(mariadb_server), await new_mariadb_database(mariadb_server)
    name, other = url.rpartition("/")[2], other_url.rpartition("/")[2]
    opened = await open_guard_database("mariadb", url)
    async with opened.engine.connect() as connection:
        for statement in (
            *TABLES,
            f"create table {other}.secrets (visible int, hidden int)",
            f"create procedure {other}.secret() do 1",
            "create or replace user erring@'%%'",
            f"grant select, insert, update, delete, execute, create temporary tables on {name}.* to erring@'%%'",
            f"grant select (visible) on {other}.secrets to erring@'%%'",
        ):
            await connection.exec_driver_sql(statement.replace("{other}", other))
        await connection.commit()
    await opened.connections.close()
    erring = SqlConnection(name="shop", url_setting=url.replace("://root@", "://erring@"))
    database = GuardDatabase(DatabaseConnections([erring], pool_size=4), "mariadb", url)
    yield Shop(database, other)
    await database.connections.close()


def check(case: Case, made: list[Outcome]) -> None:
    last = made[-1]
    assert last.failure is not None, last
    assert last.kind == "failed"
    assert sum(outcome.repeats + 1 for outcome in made) == ATTEMPTS[case.group], last.failure.message
    assert last.infrastructure == (case.group == "infrastructure"), last.failure.message
    if not last.infrastructure:
        assert last.failure.details["code"] == case.number, last.failure.message
        assert last.failure.message.endswith(f"; {case.group}") == (ATTEMPTS[case.group] == 1), last.failure.message


@pytest.mark.sampled
@pytest.mark.parametrize("case", EACH)
@pytest.mark.parametrize("two_phase", [False, True], ids=["one-phase", "two-phase"])
async def test_a_step(shop: Shop, case: Case, two_phase: bool) -> None:
    check(case, await shop.attempts(case, two_phase=two_phase))


async def classes(connection: AsyncConnection, *statements: str) -> tuple[str | int | None, str]:
    """The number of the error of the last statement, and its class."""
    *earlier, last = statements
    for statement in earlier:
        await connection.exec_driver_sql(statement)
    with pytest.raises(DBAPIError) as caught:
        await connection.exec_driver_sql(last)
    return class_of(caught.value)


def class_of(error: DBAPIError) -> tuple[str | int | None, str]:
    classified = classify_database_error(error)
    assert classified is not None
    assert error.orig is not None
    number = error.orig.args[0]
    if classified.infrastructure:
        return number, "lost" if classified.connection_lost else "infrastructure"
    return number, "timeout" if classified.timed_out else classified.healing or "unknown"


async def test_statements_outside_of_steps(shop: Shop) -> None:
    """Changes of the schema, and what only a routine of the author's could run; as the limited account."""
    seen: list[tuple[str | int | None, str]] = []
    for statements in (
        ("create database another",),
        ("drop table stock",),
        ("create temporary table wide (a varchar(40000), b varchar(40000)) character set latin1",),
        ("set statement max_statement_time = 0.05 for select sleep(5)",),
        ("xa start 'x'", "create table another (n int)"),
        (
            "set max_heap_table_size = 16384",
            "create temporary table small (word char(255)) engine = memory",
            "insert into small select 'x' from seq_1_to_1000",
        ),
        ("load data infile '/nowhere' into table stock",),
        ("start transaction read only", "delete from stock"),
    ):
        async with shop.database.engine.connect() as connection:
            seen.append(await classes(connection, *statements))
            await connection.invalidate()
    assert seen == [
        (1044, "never"),
        (1142, "never"),
        (1118, "never"),
        (1969, "timeout"),
        (1399, "never"),
        (1114, "infrastructure"),
        (1045, "unknown"),  # as a wrong password, which may be one that is being changed
        (1792, "infrastructure"),
    ]


async def test_locks_and_killed_connections(shop: Shop) -> None:
    engine = shop.database.engine
    async with engine.connect() as first, engine.connect() as second:
        for connection, sku in ((first, "A"), (second, "B")):
            await connection.exec_driver_sql(f"xa start '{sku}-of-locks'")
            await connection.exec_driver_sql(f"update stock set note = 'x' where sku = '{sku}'")
        nowait = await classes(second, "select 1 from stock where sku = 'A' for update nowait")
        assert nowait == (1205, "infrastructure")
        results = await asyncio.gather(
            first.exec_driver_sql("update stock set note = 'y' where sku = 'B'"),
            second.exec_driver_sql("update stock set note = 'y' where sku = 'A'"),
            return_exceptions=True,
        )
        [error] = [result for result in results if isinstance(result, DBAPIError)]
        assert class_of(error) == (1213, "infrastructure")
        victim, sku = (first, "A") if results[0] is error else (second, "B")
        assert await classes(victim, f"xa end '{sku}-of-locks'") == (1399, "infrastructure")
        assert await classes(first, "kill connection_id()") == (1927, "lost")
        await first.invalidate()
        await second.invalidate()


async def test_limits_of_a_server() -> None:
    """A server's limits are infrastructure, also those with the SQLSTATE of a wrong statement."""
    with mariadb() as server:
        server.stop()
        server.argv = [*server.argv, "--max-user-connections=1000"]  # zero could not be changed later
        server.start()
        url = make_url(server.url("mysql")).set(drivername="mariadb+asyncmy")
        root, user = create_async_engine(url), create_async_engine(url.set(username="limited"))
        try:
            async with root.connect() as administrator:
                for host in ("'%%'", "localhost"):
                    await administrator.exec_driver_sql(f"create user limited@{host}")
                    await administrator.exec_driver_sql(f"grant all on mysql.* to limited@{host}")
                await administrator.exec_driver_sql("create table mysql.trace_row (id int)")
                assert await limits(administrator, user) == LIMITS
        finally:
            await root.dispose()
            await user.dispose()


LIMITS = [
    (1290, "infrastructure"),
    (1461, "infrastructure"),
    (1226, "infrastructure"),
    (1203, "infrastructure"),
    (1040, "infrastructure"),
]


async def limits(administrator: AsyncConnection, user: AsyncEngine) -> list[tuple[str | int | None, str]]:
    seen: list[tuple[str | int | None, str]] = []

    async def attempt(limit: str, statement: str, undo: str) -> None:
        await administrator.exec_driver_sql(limit)
        await user.dispose()
        async with user.connect() as connection:
            seen.append(await classes(connection, statement))
            await connection.invalidate()
        await administrator.exec_driver_sql(undo)

    await attempt("set global read_only = 1", "insert into trace_row values (1)", "set global read_only = 0")
    await attempt(
        "set global max_prepared_stmt_count = 0",
        "prepare reading from 'select 1'",
        "set global max_prepared_stmt_count = 1000",
    )
    return seen + [await refused_connection(administrator, user, limit) for limit in CONNECTION_LIMITS]


CONNECTION_LIMITS = (
    ("grant usage on *.* to limited@{host} with max_user_connections 1",),
    ("grant usage on *.* to limited@{host} with max_user_connections 0", "set global max_user_connections = 1"),
    ("set global max_user_connections = 1000", "set global max_connections = 10"),
)


async def refused_connection(
    administrator: AsyncConnection, user: AsyncEngine, limit: tuple[str, ...]
) -> tuple[str | int | None, str]:
    for statement in limit:
        for host in ("'%%'", "localhost"):
            await administrator.exec_driver_sql(statement.replace("{host}", host))
    await user.dispose()
    async with AsyncExitStack() as stack:
        for _ in range(12):
            try:
                await stack.enter_async_context(user.connect())
            except DBAPIError as error:
                return class_of(error)
    raise AssertionError(f"no connection was refused by {limit}")
