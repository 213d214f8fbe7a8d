"""Forms in which a statement brings a parameter to a column, which has the whole value, or nothing is written.

A form is a statement around an expression around the parameter; all pairs are possible, and some are drawn.
"""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from saga_activities.guard.sql_session import SqlSession
from sagas.protocol.outcomes import Outcome
from tests.helpers.sampling import every_nth, scaled
from tests.integration.guard.conftest import GuardDatabase, clock, new_address

TABLES = {
    "postgres": [
        "drop table if exists exact_forms, saga_prices",
        "drop domain if exists euros cascade",
        "drop domain if exists cents cascade",
        "drop type if exists priced cascade",
        "create domain cents as numeric(10, 2)",
        "create domain euros as cents",
        "create type priced as (amount euros, n int)",
        "create table exact_forms (no int generated always as identity, id text primary key, a numeric(10, 2),"
        " b numeric(10, 2), e numeric(10, 2)[], g euros[], d priced, m euros, v varchar(5), ar varchar(5)[])",
        "create table saga_prices (id text primary key, a numeric(10, 2))",
    ],
    "mariadb": [
        "drop table if exists exact_forms",
        "create table exact_forms (id varchar(60) primary key, a decimal(10, 2), b decimal(10, 2), v varchar(5))",
    ],
    "sqlite": [
        "drop table if exists exact_forms",
        "create table exact_forms (id text primary key, a numeric, b numeric, v text)",
    ],
}


class Form(NamedTuple):
    """``read``: the expression that has the value afterwards. ``@`` is the table, ``{}`` the parameter's expression."""

    statement: str
    read: str = "a"


EVERYWHERE = [
    Form("insert into @ (id, a) values (:id || 'n', {})"),
    Form("insert into @ (id, a) select :id || 'n', {}"),
    Form("update @ set a = {} where id = :id"),
    Form("update @ set b = 1, a = {} where id = :id"),
    Form("update @ set a = (select s.v from (select {} as v) s) where id = :id"),
]
FORMS = {
    "postgres": [
        *EVERYWHERE,
        Form("insert into @ as z (no, id, a) overriding system value values (7, :id || 'n', {})"),
        Form("with w(v) as (values ({})) insert into @ (id, a) select :id || 'n', v from w"),
        Form("with w as (select :id || 'n' as id, {} as v) insert into @ (id, a) select * from w"),
        Form("with w as (select :id || 'n' as id, {} as v) insert into @ (id, a) table w"),
        Form("insert into @ (id, a) select * from (values (:id || 'n', {})) s"),
        Form("insert into @ (id, a) select s.* from (values (:id || 'n', {})) s"),
        Form("insert into @ (id, a) select s.column1, s.column2 from (values (:id || 'n', {})) s"),
        Form("insert into @ (id, a) select l.i, l.v from (select :id || 'n' as i) q, lateral (select q.i, {} as v) l"),
        Form("insert into @ (id, a) select :id || 'n', max(v) from (values ({})) s(v)"),
        Form("insert into @ (id, a) select :id || 'n', sum(v) from unnest(array[{}]) v"),
        Form("insert into @ (id, a) select :id || 'n', mode() within group (order by v) from (values ({})) s(v)"),
        Form("insert into @ (id, a) select * from unnest(array[:id || 'n'], array[{}])"),
        Form("insert into @ (id, a) select :id || 'n', unnest(array[{}])"),
        Form("insert into @ (id, a) select * from rows from (unnest(array[:id || 'n']), unnest(array[{}])) r(p, q)"),
        Form("insert into @ (id, a) values (:id, {}) on conflict (id) do update set a = excluded.a"),
        Form("insert into @ (id, a) values (:id, 1) on conflict (id) do update set a = {}"),
        Form("merge into @ t using (select {} as v) s on t.id = :id when matched then update set a = s.v"),
        Form("merge into @ t using (values (:id || 'n', {})) s(i, v) on t.id = s.i when not matched then"
             " insert (id, a) values (s.i, s.v)"),
        Form("update only @ set a = {} where id = :id"),
        Form("update @ set (a, b) = row({}, 1) where id = :id"),
        Form("update @ set (a) = row({}) where id = :id"),
        Form("update @ set (a, b) = (select {}, 1) where id = :id"),
        Form("update @ set a = s.v from (values ({})) s(v) where id = :id"),
        Form("update @ set a = s.v from unnest(array[{}]) s(v) where id = :id"),
        Form("with w(v) as (values ({})) update @ set a = w.v from w where id = :id"),
        Form("update @ set m = {} where id = :id", "m"),
        Form("update @ set e[1] = {} where id = :id", "e[1]"),
        Form("update @ set e = array_append(null::numeric[], {}) where id = :id", "e[1]"),
        Form("update @ set e = array[{}] where id = :id", "e[1]"),
        Form("update @ set g = array[{}] where id = :id", "g[1]"),
        Form("update @ set d.amount = {} where id = :id", "(d).amount"),
        Form("update @ set d = row({}, 1)::priced where id = :id", "(d).amount"),
        Form("insert into @ (id, d) values (:id || 'n', row({}, 1))", "(d).amount"),
        Form("/* a /* nested */ comment */ update @ set a = {} where id = :id and 1_000 > 1"),
    ],
    "mariadb": [
        *(Form(form.statement.replace(":id || 'n'", "concat(:id, 'n')")) for form in EVERYWHERE),
        Form("# a comment\nupdate @ set a = {} where id = :id"),
        Form("update low_priority ignore @ set a = {} where id = :id"),
        Form("update @ force index (primary) set a = {} where id = :id"),
        Form("update @ use index (primary) set a = {} where id = :id"),
        Form("insert low_priority into @ (id, a) values (concat(:id, 'n'), {})"),
        Form("insert high_priority ignore into @ set id = concat(:id, 'n'), a = {}"),
        Form("insert into @ (id, a) values (:id, 1) on duplicate key update a = {}"),
        Form("insert into @ (id, a) values (:id, {}) on duplicate key update a = values(a)"),
        Form("replace low_priority into @ (id, a) values (:id, {})"),
        Form("replace @ set id = :id, a = {}"),
        Form("update @ t join (select {} as v) s set a = s.v where id = :id"),
        Form("update @ t join (select {} as v) s on t.id = :id set t.a = s.v"),
        Form("insert into @ (id, a) with w as (select {} as v) select concat(:id, 'n'), v from w"),
    ],
    "sqlite": [
        *EVERYWHERE,
        Form("update or replace @ set a = {} where id = :id"),
        Form("update or ignore @ set a = {} where id = :id"),
        Form("insert or replace into @ (id, a) values (:id, {})"),
        Form("replace into @ (id, a) values (:id, {})"),
        Form("update @ set (a, b) = (select {}, 1) where id = :id"),
        Form("update @ set 'a' = {} where id = :id"),
        Form("with w(v) as (values ({})) update @ set a = (select v from w) where id = :id"),
    ],
}  # fmt: skip
EXPRESSIONS = ["{}", "({})", "coalesce({}, 0)", "nullif({}, 0)", "case when 1 = 1 then {} else 0 end", "(select {})"]
OF_MARIADB = ("nvl2(1, {}, 0)", "elt(1, {})", "({} collate utf8mb4_bin)", "(@v := {})")
OF_POSTGRESQL = ["{}::numeric", "cast({} as numeric)", "greatest({}, 0)"]
OF_DATABASE = {"postgres": (*OF_POSTGRESQL, "trim_scale({})"), "mariadb": OF_MARIADB}
EXACT: list[Any] = [Decimal("1.25"), 1.25, "1.25", 3]
INEXACT: dict[str, list[Any]] = {
    "postgres": [Decimal("1.005"), 1.005, "1.005", "1_0.005"],
    "mariadb": [Decimal("1.005"), 1.005, "1.005"],
    "sqlite": [Decimal("12345678901234567890.125"), "12345678901234567890.125"],
}
SAMPLES = scaled(8, 2000)


def check_refusal(outcome: Outcome, place: str, value: Any) -> None:
    """Check that a statement was refused for good, because of its parameter."""
    assert (outcome.kind, outcome.retryable) == ("failed", False), (place, value, outcome)
    assert outcome.failure is not None
    assert "the parameter v is" in outcome.failure.message, (place, value)


async def execute(database: GuardDatabase, statement: Any, **values: Any) -> Outcome:
    async def body(sql: SqlSession, **_: Any) -> None:
        await sql.execute(statement, **values)

    return await database.guard.do(new_address(), "h", body, **clock())


async def create(database: GuardDatabase) -> None:
    async with database.engine.connect() as connection:
        for statement in TABLES[database.kind]:
            await connection.exec_driver_sql(statement)


async def run_form(database: GuardDatabase, form: Form, expression: str, value: Any) -> tuple[Outcome, list[Any]]:
    """The outcome, and what the column has afterwards."""
    id = uuid4().hex
    await database.rows("insert into exact_forms (id) values (:id)", id=id)
    statement = form.statement.replace("@", "exact_forms").replace("{}", expression)
    outcome = await execute(database, statement, x=value, **({"id": id} if ":id" in statement else {}))
    rows = await database.rows(f"select {form.read} from exact_forms where id in (:id, :n)", id=id, n=f"{id}n")
    return outcome, [row[0] for row in rows if row[0] is not None]


async def test_no_form_rounds_a_number(guard_database: GuardDatabase) -> None:
    database, seed = guard_database, scaled(7, random.randrange(1 << 32))
    print(f"seed {seed}")
    drawn = random.Random(seed)
    await create(database)
    expressions = [*EXPRESSIONS, *OF_DATABASE.get(database.kind, ())]
    pairs = [(form, "{}") for form in every_nth(3, FORMS[database.kind])]
    pairs += [(drawn.choice(FORMS[database.kind]), drawn.choice(expressions)) for _ in range(SAMPLES)]
    done = 0
    for form, expression in pairs:
        written = expression.replace("{}", ":x")
        value = drawn.choice(INEXACT[database.kind])
        outcome, stored = await run_form(database, form, written, value)
        case = f"{form.statement} with {written} = {value!r}: {outcome} {stored}"
        assert (outcome.kind, stored) == ("failed", []), case
        value = drawn.choice(EXACT)
        outcome, stored = await run_form(database, form, written, value)
        case = f"{form.statement} with {written} = {value!r}: {outcome} {stored}"
        if outcome.kind == "done":
            done += 1
            assert [Decimal(str(number)) for number in stored] == [Decimal(str(value))], case
        else:  # a type that the database does not take
            assert outcome.failure is not None, case
            assert "the parameter" not in outcome.failure.message, case
    assert done > len(pairs) // 2


@pytest_asyncio.fixture
async def postgres_forms(server_guard_database: GuardDatabase) -> GuardDatabase:
    if server_guard_database.kind != "postgres":
        pytest.skip("only PostgreSQL has these types")
    await create(server_guard_database)
    return server_guard_database


UNSEEN = "insert into exact_forms (id, a, v) select :id, mode() within group (order by v), :v from (values ({})) s(v)"


async def test_what_the_statement_does_not_show_needs_a_cast(postgres_forms: GuardDatabase) -> None:
    outcome = await execute(postgres_forms, UNSEEN.format(":x"), id="unseen", x=Decimal("1.005"), v="ok")
    assert outcome.failure is not None
    assert outcome.failure.message == (
        "the parameter x is 1.005, the statement does not show which column it reaches, and the column a of exact_forms"
        " (numeric(10,2)) holds 2 digits after the point and would round it: write a cast to the type that is to be"
        " stored directly at the parameter, such as cast(:x as numeric(10,2))"
    )
    for id, value in (("cast", "cast(:x as numeric(10, 2))"), ("round", "round(:x, 2)")):
        outcome = await execute(postgres_forms, UNSEEN.format(value), id=id, x=Decimal("1.005"), v="ok")
        assert outcome.kind == "done", outcome


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("insert into exact_forms (id, ar) values ('t', :x)", ["abcd ", "abcde "]),
        ("insert into exact_forms (id, v) select * from (values ('t', :x)) s", "abcde "),
        ("insert into exact_forms (id, v) values ('t', :x::text)", "abcde "),
        ("insert into exact_forms (id, g) values ('t', :x)", [Decimal("1.005")]),
        ("insert into exact_forms (id, e) values ('t', :x)", [1.005]),
        ("insert into exact_forms (id, a) select 't' || v, v from unnest(:x::numeric[]) v", [Decimal("2.675")]),
        ("insert into saga_prices (id, a) values ('t', :x)", "1.005"),
    ],
)
async def test_lists_domains_and_names_like_the_engines(
    postgres_forms: GuardDatabase, statement: str, value: Any
) -> None:
    outcome = await execute(postgres_forms, statement, x=value)
    assert outcome.failure is not None, "it was stored"
    assert outcome.failure.message.startswith("the parameter x is ")


FORMS_TABLE = sa.Table(
    "exact_forms",
    sa.MetaData(),
    sa.Column("id", sa.Text),
    sa.Column("a", sa.Numeric(10, 2)),
    sa.Column("e", ARRAY(sa.Numeric(10, 2))),
    sa.Column("v", sa.String(5)),
    sa.Column("ar", ARRAY(sa.String(5))),
)


@pytest.mark.parametrize(
    "values",
    [
        [{"id": "1", "a": Decimal(1)}, {"id": "2", "a": Decimal("1.005")}],
        {"id": "1", "a": 1.005},
        {"id": "1", "e": [Decimal("1.005")]},
        {"id": "1", "v": "abcde "},
        {"id": "1", "ar": ["abcdefg"]},
        {"id": "1", "ar": ["abcde "]},
    ],
)
async def test_constructs_of_sqlalchemy(postgres_forms: GuardDatabase, values: Any) -> None:
    outcome = await execute(postgres_forms, FORMS_TABLE.insert().values(values))
    assert outcome.kind == "failed", "it was stored"
    assert await postgres_forms.rows("select id from exact_forms where id in ('1', '2')") == []


async def test_constructs_store_what_fits(postgres_forms: GuardDatabase) -> None:
    values = {"id": "fits", "a": Decimal("1.25"), "e": [Decimal("1.5")], "v": "abcde", "ar": ["abcde"]}
    assert (await execute(postgres_forms, FORMS_TABLE.insert().values([values]))).kind == "done"
    ((row),) = await postgres_forms.rows("select a, e, v, ar from exact_forms where id = 'fits'")
    assert tuple(row) == (Decimal("1.25"), [Decimal("1.50")], "abcde", ["abcde"])
