"""`pass`, `finish` and `always` over real servers, with a worker that ends in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from sagas import Rejected
from sagas.settings import HttpService
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished
from tests.helpers.new_databases import new_database
from tests.helpers.payment_server import PaymentServer
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, open_environment, row, states

EARLY = """
    saga: early
    input: {type: object, required: [n], properties: {n: {type: integer}}}
    steps:
      - id: told
        uses: pass
        compensate:
          uses: http
          with: {connection: crm, method: POST, path: /echo, json: {why: "${{ saga.reason.kind }}"}}
      - {id: total, uses: pass, with: {result: "input.n * 2"}}
      - {id: a, uses: book, with: {value: "${{ steps.total.result }}"}, compensate: unbook}
      - {id: end, uses: finish, with: {when: steps.total.result == 2, output: {a: "${{ steps.a.result.value }}"}}}
      - {id: gate, uses: wait, with: {signal: go}, needs: [a]}
      - {id: allowed, uses: require, with: {that: input.n < 3}, needs: [end, gate]}
      - {id: p, uses: book, pivot: true}
    output: {late: true}
"""

ALWAYS = """
    saga: always
    steps:
      - {id: a, uses: book, compensate: unbook}
      - id: b
        uses: book
        compensate:
          uses: sql
          with: {connection: shop, run: "insert into effects values ('closed b')"}
          always: true
          timeout: 3s
      - {id: c, uses: work, effect: none}
"""

BLOCKED = (
    "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    " and query like '%closed b%'"
)


@pytest.fixture
async def shop(
    temporal: TemporalServer, postgres_server: DatabaseServer, server: PaymentServer, tmp_path: Path
) -> AsyncIterator[Environment]:
    env = await open_environment(tmp_path, temporal.address, new_database(postgres_server))
    env.connections["crm"] = HttpService(name="crm", root=tmp_path, url_setting=server.url)
    yield env
    await env.engine.dispose()


async def test_an_early_end_survives_its_worker_and_a_pass_is_undone_last(
    shop: Environment, server: PaymentServer
) -> None:
    async with shop.serving(EARLY) as client:
        early = await begin(client, "early", {"n": 1})

        async def has_ended() -> bool:
            return row(await client.show(early), "end")["state"] == "DONE"

        await until(has_ended)
        assert await shop.effects() == ["a"]
    async with shop.again() as client:  # a new worker knows only the history
        await client.signal(early, "go")
        story = await finished(client, early)
        assert (story["state"], story["output"]) == ("COMPLETED", {"a": 2})
        assert {states(story)[id] for id in ("allowed", "p")} == {"SKIPPED"}
        assert shop.log() == ["do a"]
        async with shop.engine.begin() as connection:
            await connection.execute(text("delete from effects"))
        rejected = await begin(client, "early", {"n": 3})
        await client.signal(rejected, "go")
        story = await finished(client, rejected)
    assert (story["state"], states(story)["told"]) == ("COMPENSATED", "COMPENSATED")
    assert shop.log() == ["do a", "do a", "undo a"]
    [told] = [request for request in server.ledger()["requests"] if request["path"] == "/echo"]
    assert told["headers"]["idempotency-key"] == f"{rejected}/told/undo"


async def test_a_compensation_that_always_runs_happens_once_whatever_becomes_of_its_worker(shop: Environment) -> None:
    shop.plan["do b"] = [Rejected("no")]
    async with shop.engine.connect() as holder:
        await holder.execute(text("insert into effects values ('closed b')"))  # the compensation waits for this row

        async def is_blocked() -> bool:
            async with shop.engine.connect() as watcher:
                return bool((await watcher.execute(text(BLOCKED))).scalar())

        async with shop.serving(ALWAYS) as client:
            saga = await begin(client, "always")
            await until(is_blocked)
        await holder.rollback()
    async with shop.again() as client:
        story = await finished(client, saga)
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "rejected")
    b = row(story, "b")
    assert (b["state"], b["outcome"], b["compensation"]["state"]) == ("COMPENSATED", "rejected", "DONE")
    assert await shop.effects() == ["closed b"]
    assert shop.log() == ["do a", "do b", "undo a"]
    async with shop.engine.connect() as connection:
        rows = await connection.execute(text("select op from saga_guard where step = 'b' order by op"))
        assert list(rows.scalars()) == ["confirm", "do", "own_undo", "undo"]
