"""Arguments of the wrong shape: computed ones end a step with one sentence, an operator's are refused."""

from __future__ import annotations

import asyncio
import re
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest
from temporalio.client import WorkflowUpdateFailedError

from saga_workers.client import Client
from saga_workers.runtime.databases import set_up_database
from sagas.errors import RefusedError
from sagas.settings import HttpService
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import send_signed

ADD = "{connection: shop, run: 'insert into shapes values (:n)', "
STEPS = {
    "params": "uses: sql, with: " + ADD + 'params: "${{ input.x }}"}',
    "rows": "uses: sql, with: " + ADD + 'params: {n: 1}, expect_rows: "${{ input.x }}"}',
    "emit": "uses: sql, with: " + ADD + 'params: {n: 1}, emit: "${{ input.x }}"}',
    "outbox": 'uses: outbox.emit, with: {connection: shop, events: "${{ input.x }}"}',
    "publish": 'uses: kafka.publish, with: {topic: orders, value: 1, headers: "${{ input.x }}"}',
    "request": 'uses: kafka.request, with: {topic: orders, value: 1, headers: "${{ input.x }}"}',
    "call": 'uses: http, with: {connection: bank, path: /charges, query: "${{ input.x }}"}',
    "twophase": "uses: sql, with: " + ADD + 'params: "${{ input.x }}", two_phase: true}',
}
HEAD = "saga: shape-{name}\ninput: {{type: object, required: [x]}}\nsteps:\n"
STEP = "  - {{id: a, {step}, on_failure: park{undo}}}\n"
UNDO = ", compensate: {uses: sql, with: {connection: shop, run: delete from shapes}}"
MISTAKEN = """
saga: shape-divided
input: {type: object, required: [x]}
steps:
  - {id: a, uses: sql, on_failure: park, compensate: auto,
     with: {connection: shop, run: 'insert into shapes values (:n)', params: {n: "${{ 6 / input.x }}"}}}
"""
READ = """
saga: shape-read
input: {type: object, required: [x]}
steps:
  - {id: a, uses: sql, on_failure: park, compensate: {uses: sql, with: {connection: shop, run: delete from shapes}},
     with: {connection: shop, run: 'insert into shapes values (:n) returning n', params: "${{ input.x }}"}}
  - {id: b, uses: sql, pivot: true,
     with: {connection: shop, run: 'insert into shapes values (:n)', params: {n: "${{ steps.a.result[0].n }}"}}}
"""
DONE = """
saga: shape-done
input: {type: object, required: [x]}
steps:
  - {id: a, pivot: true, uses: sql, with: {connection: shop, run: select 1}}
"""


SENTENCES = {
    "params": "a: argument `run[0].params` of `sql`: expected a mapping, found 5",
    "rows": 'a: argument `run[0].expect_rows` of `sql`: expected a number of rows, as in `expect_rows: 1`, found "x"',
    "emit": "a: argument `emit[0]` of `sql`: `topic` is missing",
    "outbox": "a: argument `events` of `outbox.emit`: expected a list, found 5",
    "publish": "a: argument `events[0].headers` of `kafka.publish`: expected a mapping, found 5",
    "request": "a: argument `headers` of `kafka.request`: expected a mapping, found 5",
    "call": "a: argument `query` of `http`: expected a mapping, found 5",
    "twophase": "a: argument `run[0].params` of `sql`: expected a mapping, found 5",
    "divided": "a.with.run[0].params.n: division by zero, in `${{ 6 / input.x }}`",
}
INPUTS: dict[str, Any] = {"rows": "x", "emit": [{"value": 1}], "divided": 0}


async def test_wrong_shapes_are_one_sentence(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    url = new_database(postgres_server)
    sagas = {
        name: (HEAD + STEP).format(name=name, step=step, undo="" if name in ("twophase", "call") else UNDO)
        for name, step in STEPS.items()
    }
    project = make_project(
        tmp_path,
        {**sagas, "divided": MISTAKEN, "done": DONE, "read": READ},
        [],
        address=temporal.address,
        connections={"shop": url},
        options={"bank": HttpService(name="bank", root=tmp_path, url_setting="http://127.0.0.1:1")},
        outbox="shop",
    )
    await set_up_database(project.settings.sql_connection("shop"))

    async def run(name: str) -> dict[str, Any]:
        id = f"shape-{name}-{uuid.uuid4()}"
        await client.start(f"shape-{name}", {"x": INPUTS.get(name, 5)}, id=id)
        return await finished(client, id)

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as database:
        database.execute("create table shapes (n int not null)")
        async with running_worker(project) as client:
            stories = dict(zip(SENTENCES, await asyncio.gather(*map(run, SENTENCES)), strict=True))
            for name, sentence in SENTENCES.items():
                (parked,) = stories[name]["parked"]
                assert parked["why"] == f"definition: {sentence}", name
                assert stories[name]["steps"][0]["attempts"] in (None, 0, 1), name
                assert "--definition FILE" in "".join(parked["commands"][:2]), name
            assert database.execute("select count(*) from shapes").fetchone() == (0,)
            await refuses(client, stories["params"]["id"])
            new = {"run": "insert into shapes values (:n)", "params": {"n": 7}}
            await client.resolve(
                stories["params"]["id"],
                {"step": "a", "decision": "retry", "reason": "r", "who": "ada", "with": new},
            )
            story = await finished(client, stories["params"]["id"])
            assert (story["state"], story["operator"][-1]["arguments"]) == ("COMPLETED", new)
            assert database.execute("select n from shapes").fetchall() == [(7,)]
            await reads_the_result_that_was_given(client, (await run("read"))["id"])
            assert database.execute("select n from shapes").fetchall() == [(7,), (8,)]
            done = await run("done")
            with pytest.raises(RefusedError, match="cannot be undone: its pivot a is done"):
                await client.undo(done["id"], reason="r", who="ada")
            await client.close()


async def reads_the_result_that_was_given(client: Client, id: str) -> None:
    """A result of `sql` is a list of rows with the columns that the next step reads, or the decision is refused."""
    request = {"step": "a", "decision": "done", "reason": "r", "who": "ada"}
    for given, sentence in (
        (None, "--result is null, not a list, and step b reads: `steps.a.result[0].n`"),
        ({"n": 8}, "--result is an object, not a list, and step b reads: `steps.a.result[0].n`"),
        ([], "--result is an empty list, and step b reads: `steps.a.result[0].n`"),
        ([{"m": 8}], "--result lacks `[].n`, which step b reads: `steps.a.result[0].n`"),
    ):
        with pytest.raises(RefusedError, match=re.escape(sentence)):
            await client.resolve(id, {**request, "result": given})
    await client.resolve(id, {**request, "result": [{"n": 8}]})
    assert (await finished(client, id))["state"] == "COMPLETED"


async def refuses(client: Client, id: str) -> None:
    """The update and the client refuse the same arguments with the same sentence, and nothing is accepted."""
    for arguments, sentence in (
        ({"run": 5}, "argument `run` of `sql`: expected a string"),
        ({"run": "select 1", "connection": "nowhere"}, "`connection` is what the definition says and cannot change"),
        ({}, "`sql` needs the argument `run`"),
        (
            {"run": "insert into shapes values (:n)", "params": {"m": 7}},
            "`run`: the statement has the placeholder `:n`, and no parameter of this name is given; add `n` to the",
        ),
        (
            {"run": [{"sql": "delete from shapes", "params": {"m": 7}}]},
            "`run[0].sql`: the parameter `m` is given, and the statement has no placeholder `:m`",
        ),
    ):
        request = {"step": "a", "decision": "retry", "reason": "r", "who": "ada", "with": arguments}
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await send_signed(client, id, request)
        assert f"--with does not fit: {sentence}" in str(refused.value.cause)
        with pytest.raises(RefusedError, match=re.escape(f"--with does not fit: {sentence}")):
            await client.resolve(id, request)
