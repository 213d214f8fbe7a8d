"""`pass` and `finish` over real servers: the undo of a `pass` is a request, and an early end survives its worker."""

from __future__ import annotations

from pathlib import Path

from sagas.settings import HttpService
from tests.helpers.local_worker import finished
from tests.helpers.payment_server import PaymentServer
from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import begin, open_environment, row, states, until

DEFINITION = """
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


async def test_an_early_end_survives_its_worker_and_a_pass_is_undone_last(
    temporal: TemporalServer, server: PaymentServer, tmp_path: Path
) -> None:
    env = await open_environment(tmp_path, temporal.address)
    env.connections["crm"] = HttpService(name="crm", root=tmp_path, url=server.url)
    try:
        async with env.serving(DEFINITION) as client:
            early = await begin(client, "early", {"n": 1})

            async def has_ended() -> bool:
                return row(await client.show(early), "end")["state"] == "DONE"

            await until(has_ended)
            assert await env.effects() == ["a"]
        async with env.again() as client:  # a new worker knows only the history
            await client.signal(early, "go")
            story = await finished(client, early)
            assert (story["state"], story["output"]) == ("COMPLETED", {"a": 2})
            assert {states(story)[id] for id in ("allowed", "p")} == {"SKIPPED"}
            assert env.log() == ["do a"]
            async with env.engine.begin() as connection:
                await connection.exec_driver_sql("delete from effects")
            rejected = await begin(client, "early", {"n": 3})
            await client.signal(rejected, "go")
            story = await finished(client, rejected)
            assert (story["state"], states(story)["told"]) == ("COMPENSATED", "COMPENSATED")
            assert env.log() == ["do a", "do a", "undo a"]
            [told] = [request for request in server.ledger()["requests"] if request["path"] == "/echo"]
            assert told["headers"]["idempotency-key"] == f"{rejected}/told/undo"
    finally:
        await env.engine.dispose()
