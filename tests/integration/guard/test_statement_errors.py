"""Errors of statements on each database: which are final at once, which are retried, and what people read."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
import pytest_asyncio
from sqlalchemy.exc import DBAPIError, NotSupportedError

from saga_activities import conflict_retries
from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.bulk.chunk_performer import ChunkPerformer
from saga_activities.conflict_retries import schedule_conflict
from saga_activities.guard.database_errors import classify_database_error
from sagas.protocol.outcomes import Outcome
from tests.helpers.new_databases import new_url
from tests.integration.guard.conftest import GuardDatabase, new_address, new_attempt
from tests.integration.guard.failing_statements import (
    ACTIONS,
    attempt_number,
    attempts,
    dispatcher,
    invocation,
    make_done,
    open_shop,
    traces,
)


@dataclass(frozen=True)
class Case:
    """``final``: another attempt fails the same way. ``names``: what the message has to name besides the statement."""

    name: str
    statement: str
    names: str
    final: bool = True


ANYWHERE = (
    Case("missing table", "insert into nowhere values (1)", "nowhere"),
    Case("missing column", "update stock set fre = 1 where sku = 'A'", "fre"),
    Case("syntax", "update stock set free == 1 wher sku = 'A'", "wher"),
    Case("not null", "insert into stock values ('N', null)", "free"),
    Case("check", "update stock set free = -1 where sku = 'A'", "stock"),
    Case("unique", "insert into stock values ('A', 1)", "", final=False),
    Case("foreign key", "insert into line values ('C')", "", final=False),
    Case("referenced", "delete from stock where sku = 'B'", "", final=False),
)
CASES = {
    "postgresql": (
        *ANYWHERE,
        Case("division by zero", "update stock set free = free / (free - free)", "division by zero"),
        Case("out of range", "update stock set free = 3000000000 where sku = 'A'", "integer"),
        Case("numeric overflow", "insert into amount_row (amount) values (12345.67)", "precision 5"),
        Case("wrong type", "insert into amount_row (at) values ('yesterdayish')", "yesterdayish"),
        Case("unknown function", "select no_such_function(1)", "no_such_function"),
        Case("unknown schema", "select nowhere.f(1)", "nowhere"),
        Case("several rows", "update stock set free = (select free from stock)", "more than one row"),
        Case("not supported", "select sku from stock group by sku for update", "FOR UPDATE"),
        Case("a view", "update totals set free = 1", "totals"),
        Case("unused sequence", "select currval('ticket')", "ticket"),
        Case("missing right", "insert into only_for_the_owner values (1)", "only_for_the_owner"),
        Case("exclusion", "insert into slot values (1, '[2,3)')", "", final=False),
    ),
    "mariadb": (
        *ANYWHERE,
        Case("division by zero", "insert into stock values ('D', 1 / 0)", "0"),
        Case("out of range", "update stock set free = 3000000000 where sku = 'A'", "free"),
        Case("numeric overflow", "insert into amount_row (amount) values (12345.67)", "amount"),
        Case("wrong type", "insert into amount_row (at) values ('yesterdayish')", "yesterdayish"),
        Case("unknown function", "select no_such_function(1)", "no_such_function"),
        Case("several rows", "select (select sku from stock)", "more than 1 row"),
        Case("scale", "select cast(1 as decimal(10, 39))", "scale"),
        Case("a column twice", "select * from (select 1 as a, 2 as a) as twice", "a"),
        Case("missing right", "delete from only_for_the_owner", "only_for_the_owner"),
    ),
    "sqlite": (
        *ANYWHERE,
        Case("wrong type", "insert into amount_row (amount) values ('much')", "amount"),
        Case("unknown function", "select no_such_function(1)", "no_such_function"),
        Case("unknown collation", "select sku from stock order by sku collate nowhere", "nowhere"),
        Case("wrong key", "insert into numbered values ('much')", "mismatch"),
        Case("too big", "select zeroblob(3000000000)", "too big"),
    ),
}
EACH = [pytest.param(kind, case, id=f"{kind}-{case.name}") for kind, cases in CASES.items() for case in cases]


Shops = dict[str, GuardDatabase]


@pytest_asyncio.fixture(scope="module")
async def shops() -> AsyncIterator[Shops]:
    """The shop of each kind of database that a test has needed."""
    opened: Shops = {}
    yield opened
    for shop in opened.values():
        await shop.connections.close()


@pytest_asyncio.fixture
async def shop(shops: Shops, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GuardDatabase:
    kind: str = request.param
    if kind not in shops:
        shops[kind] = await open_shop(kind, await new_url(kind, request, tmp_path_factory.mktemp("shop")))
    return shops[kind]


async def check(shop: GuardDatabase, saga_id: str, case: Case, made: list[Outcome]) -> None:
    """The attempts are as many as the error deserves, nothing is there, and the message tells what to correct."""
    transactions = sum(outcome.repeats + 1 for outcome in made)
    assert (made[-1].kind, transactions) == ("failed", 1 if case.final else 3)
    assert not made[-1].retryable
    failure = made[-1].failure
    assert failure is not None
    assert case.statement in failure.message
    assert case.names in failure.message
    assert failure.details["code"]
    assert await traces(shop, saga_id) == 0


@pytest.mark.parametrize(("shop", "case"), EACH, indirect=["shop"])
async def test_a_step(shop: GuardDatabase, case: Case) -> None:
    saga_id = new_address().saga_id
    await check(shop, saga_id, case, await attempts(shop, invocation(saga_id, "do", case.statement)))
    assert await shop.rows("select 1 from saga_guard where saga_id = :id", id=saga_id) == []


IN_PYTHON = [param for param in EACH if str(param.id).endswith(("missing table", "not null", "-unique"))]


@pytest.mark.parametrize(("shop", "case"), IN_PYTHON, indirect=["shop"])
@pytest.mark.parametrize("uses", ["errors.raises", "errors.translates"])
async def test_a_python_action(shop: GuardDatabase, case: Case, uses: str) -> None:
    """An action that raises its own error instead has the outcome of the statement's error."""
    saga_id = new_address().saga_id
    await check(shop, saga_id, case, await attempts(shop, invocation(saga_id, "do", case.statement, uses)))


@pytest.mark.sampled
@pytest.mark.parametrize(("shop", "case"), EACH, indirect=["shop"])
@pytest.mark.parametrize("op", ["undo", "confirm"])
async def test_an_undo_and_a_confirm(shop: GuardDatabase, case: Case, op: str) -> None:
    saga_id = new_address().saga_id
    await make_done(shop, saga_id)
    await check(shop, saga_id, case, await attempts(shop, invocation(saga_id, op, case.statement, known_done=True)))
    rows = await shop.rows("select op from saga_guard where saga_id = :id", id=saga_id)
    assert [row.op for row in rows] == ["do"]


@pytest.mark.sampled("shop", keep=15)
@pytest.mark.parametrize(("shop", "case"), EACH, indirect=["shop"])
async def test_a_chunk(shop: GuardDatabase, case: Case) -> None:
    """In bulk the item at fault has the same outcome, and its neighbour is done."""
    saga_id, other = new_address().saga_id, new_address().saga_id
    good = invocation(other, "do", "select 1")
    performer = ChunkPerformer(shop.guard, ActionBodies(ACTIONS))
    made: list[Outcome] = []
    while not made or made[-1].retryable:
        call = replace(invocation(saga_id, "do", case.statement), earlier_attempts=len(made))
        outcome, neighbour = await performer.perform([call, good], new_attempt())
        assert outcome is not None
        assert neighbour is not None
        assert neighbour.kind == "done"
        made.append(schedule_conflict(outcome, call, len(made) + 1))
    await check(shop, saga_id, case, made)
    assert await traces(shop, other) == 1


ON_SERVERS = [param for param in EACH if param.values[0] != "sqlite"]


@pytest.mark.sampled("shop", keep=12)
@pytest.mark.parametrize(("shop", "case"), ON_SERVERS, indirect=["shop"])
async def test_a_two_phase_step(shop: GuardDatabase, case: Case) -> None:
    saga_id = new_address().saga_id
    made = await attempts(shop, invocation(saga_id, "do", case.statement, two_phase=True))
    await check(shop, saga_id, case, made)


@pytest.mark.parametrize("shop", ["postgresql", "mariadb", "sqlite"], indirect=True)
async def test_a_rejection_stays_one(shop: GuardDatabase) -> None:
    saga_id = new_address().saga_id
    (outcome,) = await attempts(shop, invocation(saga_id, "do", "insert into nowhere values (1)", "errors.rejects"))
    assert (outcome.kind, outcome.failure and outcome.failure.message) == ("rejected", "not in stock")


@pytest.mark.parametrize("shop", ["postgresql", "mariadb", "sqlite"], indirect=True)
@pytest.mark.parametrize("op", ["do", "undo"])
async def test_another_number_of_rows_is_a_conflict(shop: GuardDatabase, op: str) -> None:
    """Another transaction may write the row, so there are three transactions, and the message has the statement."""
    for statement, rows, help in (
        ("select free from stock where sku = 'none'", 0, "read it with one_or_none, and raise Rejected for a refusal"),
        ("select 1 union select 2", 2, "narrow its condition"),
    ):
        saga_id = new_address().saga_id
        if op == "undo":
            await make_done(shop, saga_id)
        call = invocation(saga_id, op, statement, "errors.one", known_done=op == "undo")
        (outcome,) = await attempts(shop, call)
        assert (outcome.kind, outcome.repeats, outcome.retryable) == ("failed", 2, False)
        assert outcome.failure is not None
        assert outcome.failure.message == (
            f"the statement returned {rows} rows, and exactly one is expected, in `{statement}`; {help}"
        )
        assert await traces(shop, saga_id) == 0


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
@pytest.mark.parametrize("uses", ["sql", "errors.raises"])
async def test_text_that_is_not_utf8_cannot_heal(shop: GuardDatabase, uses: str) -> None:
    saga_id = new_address().saga_id
    (outcome,) = await attempts(shop, invocation(saga_id, "do", "select cast(x'ff' as text) as name", uses))
    assert (outcome.kind, outcome.retryable) == ("failed", False)
    assert outcome.failure is not None
    assert outcome.failure.message.endswith(
        "the text in the column name is not UTF-8: correct the row, or read the bytes with `hex(name) as name`"
    )
    assert await traces(shop, saga_id) == 0


@pytest.mark.parametrize("shop", ["postgresql", "mariadb", "sqlite"], indirect=True)
async def test_the_attempts_of_a_conflict(shop: GuardDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three within one attempt of Temporal and ten seconds; a `retry` that is written at the step applies instead."""
    call = invocation(new_address().saga_id, "do", "insert into stock values ('A', 1)")
    (outcome,) = await attempts(shop, call)
    assert (outcome.repeats, outcome.retryable) == (2, False)
    monkeypatch.setattr(conflict_retries, "CONFLICT_INTERVALS", (0.01, 20.0))
    late = await dispatcher(shop).perform(call, attempt_number(1, seconds=100.0))
    assert (late.repeats, late.retryable) == (1, False), "the third would begin twenty seconds after the first"
    began = time.monotonic()
    short = await dispatcher(shop).perform(call, attempt_number(1, seconds=8.0))
    assert (short.repeats, short.retryable) == (2, False), "the pauses fit into the time of the attempt"
    assert time.monotonic() - began < 8.0
    own = await attempts(shop, replace(call, own_retry=True))
    assert len(own) == 5
    assert all(outcome.retryable and outcome.retry_after is None for outcome in own)


@pytest.mark.parametrize("shop", ["postgresql", "mariadb", "sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("statement", "help"),
    [
        ("update stock set free = -1 where sku = 'A'", "correct the value or the statement"),
        ("update stock set free = null where sku = 'A'", "correct the value or the statement"),
        ("insert into stock values ('N', -1)", "correct the value or the statement"),
        ("update stock set fre = 1", "correct the statement or the database"),
        (
            "insert into stock values ('D', 1), ('D', 2) on conflict (sku) do update set free = excluded.free",
            "give each row once, or correct the statement: it meets several rows where one is expected",
        ),
    ],
)
async def test_what_to_correct(shop: GuardDatabase, statement: str, help: str) -> None:
    """The reason stands before the author's statement, also where the engine adds columns to it."""
    if "on conflict" in statement and shop.kind != "postgresql":
        pytest.skip("only PostgreSQL refuses a row twice in one statement")
    for images in (False,) if shop.kind == "mariadb" else (False, True):  # there the account cannot see triggers
        call = invocation(new_address().saga_id, "do", statement, images=images)
        (outcome,) = await attempts(shop, call)
        assert outcome.failure is not None
        assert outcome.failure.message.endswith(f", in `{statement}`; {help}")
        assert outcome.failure.details["statement"] == statement
        assert "saga_image" not in outcome.failure.message


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
async def test_errors_about_a_parameter_have_its_name(shop: GuardDatabase) -> None:
    """The server knows its number only, and hints at a setting that the engine fixes."""
    for statement, value, error, help in (
        ("select date :x", "2026-01-01", 'at or near ":x"', "write `:x::date` for `date :x`"),
        ("select :a, now() - interval :x", "1 day", 'at or near ":x"', "write `:x::interval` for `interval :x`"),
        ("select 1 from :x", "stock", 'at or near ":x"', "a parameter is a value: write names of tables and columns"),
        ("select 1 where :x is null", "a", "data type of parameter :x", "such as `:x::text`"),
        (
            "select left(:x, :x), :a::text",
            "a",
            "inconsistent types deduced for parameter :x; text versus integer",
            "cast each place of `:x` to the type that it has there, such as `:x::text` and `:x::integer`",
        ),
        (
            "update stock set free = ? where sku = :a",
            "a",
            "syntax error",
            "a parameter has a name: write `:name` for `?`",
        ),
        (
            "update amount_row set at = :x where :a = ''",
            "",
            'type date: "", the value of :x for the column at of amount_row',
            "correct the value",
        ),
        ("select :a * :x", None, "operator is not unique", "cast the parameters, such as `:a::numeric`"),
        ("select 1 from stock where sku = :x", 5, "varying = bigint", "a number and text are compared"),
        ("select 1 from amount_row where at = :x", 5, "= bigint", "cast it where it stands, as `:x::int`"),
        ("select (:x::text)::date", "29.12.2026", "out of range", "write the date as year-month-day"),
    ):
        values = {name: value for name in "ax" if f":{name}" in statement}
        call = invocation(new_address().saga_id, "do", "")
        call = replace(call, arguments={"run": [{"sql": statement, "params": values}]})
        (outcome,) = await attempts(shop, call)
        assert outcome.failure is not None
        message = outcome.failure.message
        assert error in message, message
        assert help in message, message
        assert "$" not in message, message
        assert "datestyle" not in message.lower(), message


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
async def test_a_plan_that_is_outdated_may_heal(shop: GuardDatabase) -> None:
    """PostgreSQL has the same code for it as for an unsupported feature."""
    async with shop.engine.connect() as connection:
        await connection.exec_driver_sql("create temp table changing (a int)")
        await connection.exec_driver_sql("prepare reading as select * from changing")
        await connection.exec_driver_sql("execute reading")
        await connection.exec_driver_sql("alter table changing add b int")
        with pytest.raises(NotSupportedError) as caught:
            await connection.exec_driver_sql("execute reading")
    classified = classify_database_error(caught.value)
    assert classified is not None
    assert (classified.of_the_connection, classified.healing) == (True, "perhaps")


REFUSING = {
    "postgresql": ("select refuse('P0001')", "P0001"),
    "sqlite": ("insert into refusing values (1)", "SQLITE_CONSTRAINT_TRIGGER"),
}


@pytest.mark.parametrize("shop", REFUSING, indirect=True)
async def test_the_refusal_of_a_trigger_may_heal(shop: GuardDatabase) -> None:
    """Refusals of a trigger are retried: their reason is known to its author alone, like that of SIGNAL on MariaDB."""
    statement, code = REFUSING[shop.kind]
    made = await attempts(shop, invocation(new_address().saga_id, "do", statement))
    assert [outcome.retryable for outcome in made] == [True] * 5
    assert made[-1].failure is not None
    assert made[-1].failure.details["code"] == code


@pytest.mark.sampled
@pytest.mark.parametrize("shop", ["postgresql", "mariadb", "sqlite"], indirect=True)
@pytest.mark.parametrize("op", ["do", "undo", "confirm"])
@pytest.mark.parametrize("uses", ["sql", "errors.raises"])
async def test_the_authors_own_words_are_shown(shop: GuardDatabase, op: str, uses: str) -> None:
    """A refusal without a class of its own is the same on each database: rolled back, retried, and in these words."""
    code = {"postgresql": "P0001", "mariadb": "1644", "sqlite": "SQLITE_CONSTRAINT_TRIGGER"}[shop.kind]
    for n in (1, 2, 3) if shop.kind == "sqlite" else (1,):  # RAISE(ABORT), RAISE(FAIL), RAISE(ROLLBACK)
        saga_id, statement = new_address().saga_id, f"insert into seat values ({n})"
        if op != "do":
            await make_done(shop, saga_id)
        made = await attempts(shop, invocation(saga_id, op, statement, uses, known_done=op != "do"))
        assert [(finding.kind, finding.retryable, finding.infrastructure) for finding in made] == [
            ("failed", True, False)
        ] * 5
        failure = made[-1].failure
        assert failure is not None
        assert failure.message == (f"the database refuses the statement: row 7 is Ada's: no ({code}), in `{statement}`")
        assert await traces(shop, saga_id) == 0
        assert await shop.rows("select n from seat") == []


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("code", "group"),
    [
        ("22003", "never"), ("0A000", "never"), ("23514", "never"), ("25001", "never"), ("2D000", "never"),
        ("20000", "never"), ("2F005", "never"), ("23505", "perhaps"), ("40000", "infrastructure"),
        ("53400", "infrastructure"), ("45000", None), ("02000", None),
    ],
)  # fmt: skip
async def test_the_sqlstate_of_a_routine_counts(shop: GuardDatabase, code: str, group: str | None) -> None:
    (outcome, *_) = await attempts(shop, invocation(new_address().saga_id, "do", f"select refuse('{code}')"))
    assert outcome.infrastructure == (group == "infrastructure")
    assert outcome.retryable == (group not in ("never", "perhaps"))
    assert outcome.repeats == (2 if group == "perhaps" else 0)
    assert outcome.conflict == (group == "perhaps")


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
async def test_a_prerequisite_that_may_come_is_waited_for(shop: GuardDatabase) -> None:
    """PostgreSQL has the same code for a view that is not populated yet as for an insert into a view."""
    saga_id = new_address().saga_id
    made = await attempts(shop, invocation(saga_id, "do", "select a from refreshed"))
    assert [outcome.retryable for outcome in made] == [True] * 5
    assert made[-1].failure is not None
    assert made[-1].failure.details["code"] == "55000"


@pytest.mark.parametrize("shop", ["postgresql", "mariadb"], indirect=True)
async def test_a_session_that_only_reads_is_infrastructure(shop: GuardDatabase) -> None:
    """A failover may have left the connection at a replica."""
    session = {"postgresql": "session characteristics as", "mariadb": "session"}[shop.kind]
    async with shop.engine.connect() as connection:
        await connection.exec_driver_sql(f"set {session} transaction read only")
        await connection.commit()  # the mode is that of the next transaction
        with pytest.raises(DBAPIError) as caught:
            await connection.exec_driver_sql("insert into trace_row values ('x')")
        await connection.invalidate()
    classified = classify_database_error(caught.value)
    assert classified is not None
    assert (classified.code, classified.infrastructure) == ("25006" if shop.kind == "postgresql" else 1792, True)


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
async def test_a_file_that_cannot_be_written_is_a_missing_right(shop: GuardDatabase) -> None:
    async with shop.engine.connect() as connection:
        await connection.exec_driver_sql("pragma query_only = on")
        with pytest.raises(DBAPIError) as caught:
            await connection.exec_driver_sql("insert into trace_row values ('x')")
        await connection.invalidate()
    classified = classify_database_error(caught.value)
    assert classified is not None
    assert (classified.infrastructure, classified.healing) == (False, "never")


@pytest.mark.parametrize("shop", ["postgresql", "mariadb", "sqlite"], indirect=True)
async def test_a_missing_table_is_not_taken_for_one_of_the_engine(shop: GuardDatabase) -> None:
    """The statement names a column of the engine, and a table whose name begins like its own."""
    saga_id = new_address().saga_id
    for statement in ("select 1 from nowhere where saga_id = 'x'", "select 1 from saga_orders"):
        (outcome,) = await attempts(shop, invocation(saga_id, "do", statement))
        assert not outcome.infrastructure
        assert not outcome.retryable
