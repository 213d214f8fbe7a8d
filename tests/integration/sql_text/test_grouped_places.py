"""A parameter in a query that compares its expressions: the statement does what it does with literals.

`saga doctor` prepares each statement as a run with text sends it, so its verdict is that of the run.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio
import yaml

from saga_workers.doctor.statement_checks import check_statements
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.integration.guard.conftest import GuardDatabase, open_guard_database
from tests.integration.guard.test_exact_sql_forms import execute

TABLES = """
create table grouped_source (id int, s text, z timestamptz, n int);
create table grouped_target (a text, n bigint, l text[], d date, z timestamptz);
insert into grouped_source values (1, 'a', '2027-01-01Z', 1), (2, null, '2025-01-01Z', 2), (3, 'a', null, 3),
 (4, 'b', null, 4)
"""
INTO = "insert into grouped_target (a, n) "
SELECTED = ("coalesce(s, :v)", "coalesce(g.s, :v)", "(COALESCE(S, (:v)))", "coalesce(s, :v) || 'x'")
GROUPED = (
    "coalesce(s, :v)", "(coalesce(s, :v))", "Coalesce(g.S, :v)", "rollup (coalesce(s, :v))", "cube (coalesce(s, :v))",
    "grouping sets ((coalesce(s, :v)), ())", "1", "key",
)  # fmt: skip
STATEMENTS = [
    *(
        f"{INTO}select {selected} as key, count(*) from grouped_source g group by {grouped}"
        for selected, grouped in product(SELECTED, GROUPED)
        if not (selected.endswith("'x'") and grouped in ("1", "key"))
    ),
    *(
        f"{INTO}select coalesce(s, :v), count(*) from grouped_source where {where} group by coalesce(s, :v)"
        for where in ("z > '2020-01-01'", "s is null", "coalesce(s, :v) > 'a'", ":v::text is not null", "s <> :v")
    ),
    f"{INTO}select coalesce(s, :v), 1 from grouped_source group by 1 having coalesce(s, :v) >= 'a'",
    f"{INTO}select coalesce(s, :v), 1 from grouped_source group by 1 order by (coalesce(s, :v)) limit 1",
    f"{INTO}select coalesce(s, :v), row_number() over (order by coalesce(s, :v)) from grouped_source group by"
    " coalesce(s, :v)",
    f"{INTO}select coalesce(s, :v), rank() over w from grouped_source group by 1 window w as"
    " (order by coalesce(s, :v))",
    f"{INTO}select distinct coalesce(s, :v), 1 from grouped_source order by coalesce(s, :v)",
    f"{INTO}select distinct coalesce(:v, 'x'), n from grouped_source order by coalesce(:v, 'x'), n",
    f"{INTO}select distinct on (coalesce(s, :v)) coalesce(s, :v), id from grouped_source order by coalesce(s, :v), id",
    "insert into grouped_target (l) select array_agg(distinct coalesce(s, :v) order by coalesce(s, :v))"
    " from grouped_source",
    f"{INTO}select (select max(coalesce(g.s, :v))), count(*) from grouped_source g group by coalesce(s, :v)",
    f"{INTO}select x, count(*) from (select coalesce(s, :v) as x from grouped_source group by (coalesce(s, :v))) q"
    " where x <= :v group by x",
    "with w as (select coalesce(s, :v) as x, count(*) as n from grouped_source g group by coalesce(g.s, :v))"
    f" {INTO}select x, n from w",
    f"{INTO}select coalesce(s, :v), 1 from grouped_source group by 1 union select :v, 2",
    "update grouped_target t set a = q.x from (select coalesce(s, :v) as x, count(*) from grouped_source"
    " group by (coalesce(s, :v))) q where t.a = 'old' and q.x <> 'b'",
    "update grouped_target set a = (select coalesce(s, :v) from grouped_source where s is null"
    " group by (coalesce(s, :v))), n = 7 where a <> :v",
    "update grouped_target set a = :v where :v::text is not null",
    f"{INTO}select :v::text, 1 where :v is not null",
    f"{INTO}values (:v::text, case when :v is null then 1 else 2 end)",
    "delete from grouped_target where a in (select coalesce(s, :v) from grouped_source group by (coalesce(s, :v)))",
    # Constants of a grouped query reach columns of other types.
    "insert into grouped_target (a, z, n) select :d, :d, n from grouped_source group by n",
    "insert into grouped_target (a, z, n) select :d, :d, count(*) from grouped_source group by coalesce(s, :d)",
    "insert into grouped_target (a, n) select coalesce(s, :d), count(*) from grouped_source where z > :d"
    " group by (coalesce(s, :d))",
]
WITHOUT_TYPE = "update grouped_target set a = :v where :v is not null"
VALUES = {":v": "none", ":d": "2026-05-01"}

KEYS = (
    "coalesce(s, :v)", "coalesce(g.s, :v)", "nullif(s, :v)", "case when s = :v then s else :v end", "left(s || :v, 2)",
    "greatest(s, :v)", "concat(s, :v::text)",
)  # fmt: skip
FORMS = ("{0}", "({0})", "rollup ({0})", "cube ({0}, n)", "grouping sets (({0}, n), ({0}))", "{0}, n", "1", "key")
ITEMS = ("{0}", "{0}", "coalesce({0}, :v)", "upper({0})", ":v", "coalesce(g.s, :v)")
NUMBERS = (
    "count(*)", "1", "row_number() over (order by coalesce(s, :v))", "sum(n) filter (where s <> :v)",
    "count(distinct coalesce(s, :v))", "length(string_agg(distinct coalesce(s, :v), ',' order by coalesce(s, :v)))",
)  # fmt: skip
TAILS = ("", "", " having {0} >= :v", " order by {0}", " having count(*) > 0 order by 1, ({0}) limit 3")
CONDITIONS = ("", " where s <> :v", " where z > :d", " where coalesce(s, :v) > 'a'")


@pytest_asyncio.fixture
async def grouped_database(postgres_server: DatabaseServer) -> AsyncIterator[GuardDatabase]:
    opened = await open_guard_database("postgres", new_database(postgres_server))
    async with opened.engine.connect() as connection:
        for statement in TABLES.split(";\n"):
            await connection.exec_driver_sql(statement)
    yield opened
    await opened.connections.close()


def _drawn(chance: random.Random) -> str:
    """A statement with a query that may group; PostgreSQL refuses some of them."""
    key = chance.choice(KEYS)
    item, number, form, tail = (chance.choice(each).format(key) for each in (ITEMS, NUMBERS, FORMS, TAILS))
    more, target = chance.choice([("", ""), ("", ""), (", :d", ", d"), (", :v", ", l")])
    more = more.replace(":v", "array[:v]")
    where, distinct = chance.choice(CONDITIONS), chance.choice(("", "", "distinct "))
    group = chance.choice((f" group by {form}", f" group by {form}", ""))
    query = f"select {distinct}{item} as key, {number}{more} from grouped_source g{where}{group}{tail}"
    if chance.random() < 0.3 and not more:
        return f"with w(x, m) as ({query}) {INTO}select x, m from w where x <> :v"
    return f"insert into grouped_target (a, n{target}) {query}"


def _with_literals(connection: psycopg.Connection, run: str) -> list[tuple[object, ...]]:
    """Raises psycopg.Error."""
    for name, value in VALUES.items():
        run = re.sub(f"(?<!:){name}\\b", f"'{value}'", run)
    connection.execute(run.encode())
    return _rows(connection)


def _rows(connection: psycopg.Connection) -> list[tuple[object, ...]]:
    return sorted(connection.execute("select * from grouped_target").fetchall(), key=repr)


def _fresh(connection: psycopg.Connection) -> None:
    connection.execute("delete from grouped_target")
    connection.execute("insert into grouped_target (a) values ('old')")


def _params(run: str) -> dict[str, str]:
    return {name[1:]: value for name, value in VALUES.items() if name in run.replace("::", "")}


async def test_a_statement_with_parameters_does_what_it_does_with_literals(grouped_database: GuardDatabase) -> None:
    with psycopg.connect(grouped_database.url, autocommit=True) as connection:
        for run in STATEMENTS:
            _fresh(connection)
            expected = _with_literals(connection, run)
            _fresh(connection)
            outcome = await execute(grouped_database, run, **_params(run))
            assert outcome.kind == "done", (run, outcome.failure)
            assert _rows(connection) == expected, run


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
async def test_drawn_queries_do_what_they_do_with_literals(grouped_database: GuardDatabase, seed: int) -> None:
    chance, done = random.Random(seed), 0
    with psycopg.connect(grouped_database.url, autocommit=True) as connection:
        for run in (_drawn(chance) for _ in range(150)):
            expected = None
            _fresh(connection)
            with contextlib.suppress(psycopg.Error):
                expected = _with_literals(connection, run)
            _fresh(connection)
            outcome = await execute(grouped_database, run, **_params(run))
            assert (outcome.kind == "done") == (expected is not None), (run, outcome.failure)
            assert expected in (None, _rows(connection)), run
            done += expected is not None
    assert done > 40


async def test_the_verdict_of_doctor_is_that_of_the_run(tmp_path: Path, grouped_database: GuardDatabase) -> None:
    refused = [
        "insert into grouped_target (a, d) select distinct :d, :d from grouped_source",
        f"{INTO}select (select max(q.x) from (select coalesce(g.s, :v) as x) q), count(*) from grouped_source g"
        " group by coalesce(s, :v)",
        f"{INTO}select s, count(*) from grouped_source group by coalesce(s, :v)",
        f"{INTO}select coalesce(s, :v), count(*) from grouped_source group by nullif(s, :v)",
        "insert into grouped_target (a, d) select :v, :v || 'x' from grouped_source group by s",
        f"{INTO}select distinct coalesce(s, :v), 1 from grouped_source order by nullif(s, :v)",
    ]
    runs = [*STATEMENTS, *refused, WITHOUT_TYPE]
    steps = [
        {"id": f"s{at}", "uses": "sql", "with": {"connection": "shop", "run": run, "params": _params(run)}}
        for at, run in enumerate(runs)
    ]
    saga = {"saga": "grouped", "recovery": "forward", "steps": steps}
    (tmp_path / "grouped.saga.yaml").write_text(yaml.safe_dump(saga, sort_keys=False, width=1000))
    url = grouped_database.url
    (tmp_path / "saga.toml").write_text(f'definitions = ["."]\n[connections.shop]\nurl = "{url}"\n')
    project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    assert [each for each in project.diagnostics if each.severity == "error"] == []
    good, *problems = await check_statements(project)
    assert good.message.startswith(f"shop: the database prepares {len(STATEMENTS)} of {len(runs)}"), [
        problem.message for problem in problems
    ]
    lines = (tmp_path / "grouped.saga.yaml").read_text().splitlines()
    for run, problem in zip([*refused, WITHOUT_TYPE], problems, strict=True):
        outcome = await execute(grouped_database, run, **_params(run))
        assert outcome.failure is not None, run
        line = next(at for at, line in enumerate(lines, 1) if line.strip() == f"run: {run}")
        assert f"grouped.saga.yaml:{line}:" in problem.message
        assert "v_1" not in problem.message, run
        assert problem.ok is (None if run == WITHOUT_TYPE else False), problem
