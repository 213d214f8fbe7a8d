"""The statement of a chunk on PostgreSQL against the same one of single calls: types, errors, row counts, effects."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy.engine import make_url

from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.bulk import effects
from saga_activities.bulk.chunk_performer import ChunkPerformer
from saga_activities.connections import DatabaseConnections
from saga_activities.dispatcher import Dispatcher
from saga_activities.http import HttpConnections
from sagas.actions.registry import Actions
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation, idempotency_key
from sagas.settings import SqlConnection
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.helpers.sampling import every_nth
from tests.integration.guard.conftest import GuardDatabase, new_attempt, open_guard_database

_UUID = re.compile("[0-9a-f]{8}-[0-9a-f-]{27}")

INTEGERS = (0, -1, 7, 32_767, 32_768, 2_147_483_648, 9_223_372_036_854_775_807, 9_223_372_036_854_775_808, None)
NUMBERS = (*INTEGERS, Decimal("1.50"), Decimal("-0.00"), Decimal("12345678901234567890.123456789"), "7", "x", True)
TEXTS = (
    "", "a", "a ", "é\u0301", "it's", 'a "b"', "back\\slash", "$saga0$", "100%", "%s", "null", "\t\n", "x" * 300, None,
    5,
)  # fmt: skip
TIMES = (
    "2026-11-27", "2026-11-27T10:00:00Z", "2026-11-27 10:00:00.123456+02", "10:00", "0044-03-15 BC", "infinity", "P1D",
    "1 day", "x", None,
)  # fmt: skip
COLUMNS: Mapping[str, tuple[Any, ...]] = {
    "smallint": NUMBERS,
    "integer": NUMBERS,
    "bigint": NUMBERS,
    "numeric": NUMBERS,
    "numeric(6, 2)": NUMBERS,
    "real": NUMBERS,
    "double precision": NUMBERS,
    "boolean": (True, False, None, "true", "off", 1, "x"),
    "text": TEXTS,
    "varchar(5)": TEXTS,
    "char(5)": TEXTS,
    '"char"': TEXTS,
    "name": TEXTS,
    "date": TIMES,
    "time": TIMES,
    "timetz": TIMES,
    "timestamp": TIMES,
    "timestamptz(3)": TIMES,
    "interval": TIMES,
    "uuid": ("0188b2a4-0000-7000-8000-000000000000", "x", None),
    "bytea": ("\\x00ff", "abc", None),
    "json": ({"b": 1, "a": [None, "é"]}, [1, 2], "text", '{"a": 1}', None, Decimal("1.10")),
    "jsonb": ({"b": 1, "a": [None, "é"]}, [1, 2], "text", '{"a": 1}', None, Decimal("1.10")),
    "integer[]": ([1, 2], [], "{1,2}", [1, None], "x", None),
    "text[]": (["a", 'b"c'], [], "{a,b}", None),
    "block_mood": ("sad", "ok", "none", "", None),
    "block_small": (1, 99, 100, None, "7"),
    "inet": ("10.0.0.1", "x", None),
    "money": ("1.50", 3, None),
    "xml": ("<a/>", "<a", None),
    "regclass": ("pg_class", "no_such_table", None),
}
SCHEMA = """
create type block_mood as enum ('sad', 'ok');
create domain block_small as int check (value < 100);
create table block_parent (id text primary key);
insert into block_parent values ('known');
create table block_rule (
    id text primary key, n int check (n < 5), parent text references block_parent deferrable, label text not null,
    code text unique, total numeric(6, 2) generated always as (n * 1.5) stored
);
create function block_rule_checked() returns trigger language plpgsql as $$ begin
    if new.label = 'raise' then raise exception 'a rule of the database' using errcode = 'P0001'; end if;
    if new.label = 'own' then raise exception 'own' using errcode = 'SAGA1'; end if;
    if new.label = 'skip' then return null; end if;
    return new;
end $$;
create trigger block_rule_checked before insert or update on block_rule
    for each row execute function block_rule_checked();
"""
STATEMENTS = (
    "insert into {table} (id, v) values (:id, :v)",
    "update {table} set v = :v where id = :id",
    "update {table} set note = :v where id = :id",
    "insert into {table} (id, v) values (:id, :v) on conflict (id) do update set v = excluded.v",
    "insert into {table} (id, v, note) select :id, v, note from {table} where v = :v limit 1",
    "delete from {table} where id = :id and v is not distinct from :v",
)


class BothWays:
    """Runs the same calls as one chunk and one by one."""

    def __init__(self, database: GuardDatabase) -> None:
        self.database = database
        bodies = ActionBodies(Actions([]))
        self._performer = ChunkPerformer(database.guard, bodies)
        self._single = Dispatcher(bodies, database.connections, HttpConnections({}))

    async def run(
        self, statement: str, parameters: Sequence[Mapping[str, Any]], **options: Any
    ) -> tuple[list[str], list[str]]:
        """The outcomes of single execution, and those of a chunk. The ids of ``{id}`` differ."""
        outcomes: list[list[str]] = []
        for way in ("single", "chunk"):
            calls = [
                self._call(statement, {**given, **({"id": f"{way}-{given['id']}"} if "id" in given else {})}, options)
                for given in parameters
            ]
            if way == "chunk":
                ended = await self._performer.perform(calls, new_attempt())
            else:
                ended = [await self._single.perform(call, new_attempt()) for call in calls]
            outcomes.append([_described(outcome, way) for outcome in ended])
        return outcomes[0], outcomes[1]

    def _call(self, statement: str, params: Mapping[str, Any], options: Mapping[str, Any]) -> Invocation:
        id = f"block-{uuid4()}"
        arguments = {"connection": "shop", "run": statement, "params": params, **options}
        key = idempotency_key(id, "pay", 1, "")
        return Invocation("sql", arguments, key, id, "pay", "do", 1, 30.0, GuardSpec("shop"), saga="order")

    async def rows(self, table: str, way: str) -> list[str]:
        rows = await self.database.rows(f"select t::text as row from {table} t where id like :way", way=f"{way}-%")
        return sorted(row.replace(f"{way}-", "") for (row,) in rows)


def _described(outcome: Outcome | None, way: str) -> str:
    assert outcome is not None
    failure = outcome.failure
    repeated = outcome.retryable and not outcome.conflict  # a chunk leaves the repetitions of a conflict to its saga
    text = f"{outcome.kind} {repeated} {outcome.infrastructure} {outcome.result!r} " + (
        "" if failure is None else f"{failure.type} {failure.message} {dict(failure.details)}"
    )
    return _UUID.sub("…", text).replace(f"{way}-", "")


@pytest.fixture
async def both(postgres_server: DatabaseServer) -> AsyncIterator[BothWays]:
    opened = await open_guard_database("postgres", postgres_server.url())
    async with opened.engine.connect() as connection:
        raw: Any = (await connection.get_raw_connection()).driver_connection
        await raw.execute("drop table if exists block_rule, block_parent cascade")
        await raw.execute("drop function if exists block_rule_checked")
        await raw.execute("drop type if exists block_mood cascade; drop domain if exists block_small cascade")
        await raw.execute(SCHEMA)
        await raw.commit()
    yield BothWays(opened)
    await opened.connections.close()


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that ran as blocks."""
    ran: list[str] = []
    original = effects.run_block

    async def counted(tx: Any, statement: Any, calls: Any) -> Any:
        ends = await original(tx, statement, calls)
        if ends is not None:
            ran.append(statement.source)
        return ends

    monkeypatch.setattr(effects, "run_block", counted)
    return ran


@pytest.mark.sampled(keep=12)
@pytest.mark.parametrize("type", COLUMNS)
async def test_every_type_is_stored_and_refused_as_by_single_calls(both: BothWays, type: str) -> None:
    table = f"block_type_{uuid4().hex[:8]}"
    await both.database.rows(f"create table {table} (id text primary key, v {type}, note text)")
    values = COLUMNS[type]
    for statement in every_nth(2, STATEMENTS, turn=list(COLUMNS).index(type)):  # each half stores the value
        # Each update finds its row: for a row that is not there, the plan decides whether a wrong value is an error.
        await both.database.rows(f"truncate {table}")
        if not statement.startswith("insert"):
            ids = [f"{way}-{number}" for way in ("single", "chunk") for number in range(len(values))]
            await both.database.rows(f"insert into {table} (id) select unnest(cast(:ids as text[]))", ids=ids)
        parameters = [{"id": str(number), "v": value} for number, value in enumerate(values)]
        single, chunk = await both.run(statement.format(table=table), parameters)
        assert chunk == single, statement
        assert await both.rows(table, "chunk") == await both.rows(table, "single"), statement


RULES: Sequence[Mapping[str, Any]] = (
    {"n": 1, "parent": "known", "label": "ok", "code": None},
    {"n": 9, "parent": "known", "label": "check", "code": None},
    {"n": 2, "parent": "unknown", "label": "foreign key", "code": None},
    {"n": 3, "parent": None, "label": None, "code": None},
    {"n": 4, "parent": "known", "label": "raise", "code": None},
    {"n": 4, "parent": "known", "label": "own", "code": None},
    {"n": 0, "parent": None, "label": "skip", "code": None},
    {"n": None, "parent": None, "label": "ok", "code": None},
    {"n": 40_000, "parent": None, "label": "another integer type", "code": None},
    {"n": 4, "parent": "known", "label": "ok", "code": None},
)


async def test_each_rule_of_the_database_concerns_its_call(both: BothWays, blocks: list[str]) -> None:
    insert = "insert into block_rule (id, n, parent, label, code) values (:id, :n, :parent, :label, :code)"
    parameters = [{"id": str(number), **rule} for number, rule in enumerate([*RULES, *RULES])]
    single, chunk = await both.run(insert, parameters)
    assert chunk == single
    assert await both.rows("block_rule", "chunk") == await both.rows("block_rule", "single")
    assert len(await both.rows("block_rule", "chunk")) == 6
    assert blocks == [insert]


async def test_a_row_that_another_call_of_the_chunk_has_inserted(both: BothWays, blocks: list[str]) -> None:
    insert = "insert into block_rule (id, n, label) values (:id, :n, 'ok')"
    single, chunk = await both.run(insert, [{"id": str(number % 3), "n": 1} for number in range(9)])
    assert sorted(chunk) == sorted(single)
    assert [text.split()[0] for text in chunk].count("done") == 3
    assert blocks == [insert]


@pytest.mark.parametrize("expected", [0, 1, 2])
async def test_another_number_of_rows_is_a_rejection_without_a_trace(
    both: BothWays, blocks: list[str], expected: int
) -> None:
    rows = [(f"{way}-{number}", number % 3) for way in ("single", "chunk") for number in range(6)]
    for id, n in rows:
        await both.database.rows("insert into block_rule (id, n, label) values (:id, :n, 'before')", id=id, n=n)
    change = "update block_rule set label = :label where id = :id or (n = 2 and :label = 'many')"
    parameters = [
        {"id": id, "label": label} for id, label in [("0", "a"), ("1", "many"), ("none", "b"), ("5", "c"), ("4", "a")]
    ]
    single, chunk = await both.run(change, parameters, expect_rows=expected, rejected="not so many")
    assert [text.split()[0] for text in chunk] == [text.split()[0] for text in single]
    assert await both.rows("block_rule", "chunk") == await both.rows("block_rule", "single")
    assert "rejected" in {text.split()[0] for text in chunk}
    assert len(blocks) == 1


async def test_names_and_texts_of_a_statement_are_its_own(both: BothWays, blocks: list[str]) -> None:
    """Words that PL/pgSQL has for itself, dollar quotes, percent signs, comments, and one parameter at two places."""
    table = f"block_names_{uuid4().hex[:8]}"
    await both.database.rows(f"create table {table} (id text primary key, found int, sqlerrm text, saga_item_ text)")
    statement = f"""
        insert into {table} (id, found, sqlerrm, saga_item_) -- $saga0$ and :x
        values (:id, :found, '100% of %s; $saga0$ :id' || :found, /* ; */ $t$ it's; $t$) -- the end"""
    single, chunk = await both.run(statement, [{"id": str(n), "found": n} for n in range(4)])
    assert chunk == single
    change = f"update {table} as saga_row set found = saga_row.found + :found where saga_row.id = :id and found < 100"
    single, chunk = await both.run(change, [{"id": str(n), "found": 1} for n in range(4)])
    assert chunk == single
    assert await both.rows(table, "chunk") == await both.rows(table, "single")
    assert len(blocks) == 2


async def test_a_role_without_pl_pgsql_takes_the_other_way(postgres_server: DatabaseServer, blocks: list[str]) -> None:
    role, owned = f"block_{uuid4().hex[:8]}", new_database(postgres_server)
    owner = await open_guard_database("postgres", owned)
    await owner.rows(f"create role {role} login password 'secret'")
    await owner.rows("create table block_plain (id text primary key, n int check (n < 5))")
    await owner.rows("revoke usage on language plpgsql from public")
    await owner.rows(f"grant all on all tables in schema public to {role}")
    url = make_url(owned).set(username=role, password="secret").render_as_string(False)
    connection = SqlConnection(name="shop", url=url)  # pyright: ignore[reportCallIssue]
    connections = DatabaseConnections([connection], pool_size=10)
    both = BothWays(GuardDatabase(connections, "postgres", url))
    insert = "insert into block_plain (id, n) values (:id, :n)"
    single, chunk = await both.run(insert, [{"id": str(n), "n": n} for n in range(8)])
    assert chunk == single
    assert [text.split()[0] for text in chunk] == ["done"] * 5 + ["failed"] * 3
    assert await both.rows("block_plain", "chunk") == await both.rows("block_plain", "single")
    assert blocks == []
    await connections.close()
    await owner.connections.close()
