"""Automatic steps of one saga that run at the same time and change one row: which was last, only the database knows.

`part` completes, and is undone afterwards.
"""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import psycopg
import pytest

from saga_workers.client import Client
from saga_workers.runtime.databases import set_up_database
from sagas.project import Project
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.helpers.sampling import mostly_slow
from tests.helpers.waiting import LIMIT

TOGGLE = "update counter set n = 1 - n where id = :k"
COUNT = "update counter set n = n + 1 where id = :k"
HEAD = "saga: {name}\ninput: {{type: object, required: [k], properties: {{k: {{type: string}}}}}}\nsteps:\n"
ITEMS = """  - {{id: a, for_each: "${{{{ [1,2,3,4] }}}}", max_parallel: 4, uses: sql, compensate: auto,
     with: {{connection: shop, run: "{run}", params: {{k: "${{{{ input.k }}}}"}}}}}}
"""
FAILS = """  - {id: no, uses: require, with: {that: "false", message: "no"}}
"""
BRANCHES = """  - {{id: held, uses: sql, compensate: auto, needs: [],
     with: {{connection: shop, run: "{run}", params: {{k: "${{{{ input.k }}}}"}}}}}}
  - {{id: pause, uses: wait, with: {{for: 200ms}}, needs: []}}
  - {{id: free, uses: sql, compensate: auto, needs: [pause],
     with: {{connection: shop, run: "{run}", params: {{k: "${{{{ input.k }}}}"}}}}}}
  - {{id: no, uses: require, with: {{that: "false", message: "no"}}, needs: [held, free]}}
"""
CONFIRMED = """  - {id: b, uses: sql,
     with: {connection: shop, run: "update counter set n = n + 1 where id = :k", params: {k: "${{ input.k }}"}},
     confirm: {uses: sql, with: {connection: shop, run: "select 1"}},
     compensate: {uses: auto, confirmed: {uses: sql, with: {connection: shop,
       run: "update counter set n = n - 1 where id = :k", params: {k: "${{ input.k }}"}}}}}
"""
BEFORE_CONFIRMED = """  - {{id: early, uses: sql, compensate: auto, needs: [],
     with: {{connection: shop, run: "{run}", params: {{k: "${{{{ input.k }}}}"}}}}}}
  - {{id: pause, uses: wait, with: {{for: 1s}}, needs: []}}
  - {{id: late, uses: saga, with: {{name: confirmed, input: {{k: "${{{{ input.k }}}}"}}}}, needs: [pause]}}
  - {{id: held, uses: sql, needs: [late], with: {{connection: shop, run: "select 1"}},
     compensate: {{uses: sql, with: {{connection: shop, run: "select pg_sleep(1)"}}}}}}
  - {{id: no, uses: require, with: {{that: "false", message: "no"}}, needs: [early, held]}}
"""
SAVEPOINT = """  - {id: start, uses: require, with: {that: true, message: x}, savepoint: {attempts: 2}}
"""
BASKET = """  - {id: a, for_each: "${{ [3,2,1,0] }}", max_parallel: 4, uses: sql, compensate: auto,
     with: {connection: shop, run: [
     {sql: "select pg_sleep(:seconds)", params: {seconds: "${{ item / 5.0 }}"}},
     {sql: "insert into basket values (:k) on conflict do nothing", params: {k: "${{ input.k }}"}},
     {sql: "insert into line values (:k, :item)", params: {k: "${{ input.k }}", item: "${{ item }}"}}]}}
"""
SAGAS = {
    "toggled": HEAD.format(name="toggled") + ITEMS.format(run=TOGGLE) + FAILS,
    "counted": HEAD.format(name="counted") + ITEMS.format(run=COUNT) + FAILS,
    "branched": HEAD.format(name="branched") + BRANCHES.format(run=TOGGLE),
    "repeated": HEAD.format(name="repeated") + SAVEPOINT + ITEMS.format(run=COUNT) + FAILS,
    "basket": HEAD.format(name="basket") + BASKET + FAILS,
    "confirmed": HEAD.format(name="confirmed") + CONFIRMED,
    "before-confirmed": HEAD.format(name="before-confirmed") + BEFORE_CONFIRMED.format(run=COUNT),
    "part": HEAD.format(name="part") + ITEMS.format(run=TOGGLE),
    "nested": HEAD.format(name="nested")
    + """  - {id: parts, for_each: "${{ [1,2,3] }}", max_parallel: 3, uses: saga,
     with: {name: part, input: {k: "${{ input.k }}"}}}
"""
    + FAILS,
    "deleted": HEAD.format(name="deleted")
    + ITEMS.format(run="insert into counter values (:k, 7) on conflict (id) do update set n = counter.n + 2")
    + FAILS,
}
ROUNDS = 4


async def ended(client: Client, saga: str, key: str) -> str:
    run = await client.start(saga, {"k": key})
    async with asyncio.timeout(LIMIT):
        while True:
            view = await client.view(run.id)
            assert not view.parked, view.parked
            if view.ended_at is not None and view.state == "COMPLETED":
                await client.undo(run.id, reason="the test", who="the test")
            elif view.ended_at is not None:
                return view.state
            await asyncio.sleep(0.3)


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("saga", mostly_slow(SAGAS, {"toggled", "repeated", "basket", "before-confirmed", "nested"}))
async def test_the_row_is_as_before(
    saga: str, temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    url = new_database(postgres_server)
    project: Project = make_project(
        tmp_path / "project", SAGAS, [], address=temporal.address, connections={"shop": url},
    )  # fmt: skip
    await set_up_database(project.settings.sql_connection("shop"))
    keys = [f"{saga}-{uuid.uuid4().hex[:6]}" for _ in range(ROUNDS)]
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("create table counter (id text primary key, n int not null)")
        connection.execute("create table basket (id text primary key)")
        connection.execute("create table line (basket text references basket, n int, primary key (basket, n))")
        for key in keys:
            connection.execute("insert into counter values (%s, 0)", [key])
        async with running_worker(project) as client:
            states = await asyncio.gather(*(ended(client, saga, key) for key in keys))
            await client.close()
        assert set(states) == {"COMPENSATED"}
        assert connection.execute("select distinct n from counter").fetchall() == [(0,)]
        assert connection.execute("select id from basket union all select basket from line").fetchall() == []
