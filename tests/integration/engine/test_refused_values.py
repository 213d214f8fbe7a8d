"""A value that the engine refuses, wherever it parks: the first command that is offered gives another value."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_workers.interventions import preview_decision
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.new_databases import new_url
from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import GRACE, resolve

PAY = 'connection: shop, run: "insert into fee values (:id, :n)", params: {id: "${{ saga.id }}", n: "12.505"}'
SQL = f"uses: sql, with: {{{PAY}}}"
DEFINITIONS = {
    "after": f"- {{id: first, uses: pass, with: {{result: 1}}, pivot: true}}\n  - {{id: bad, {SQL}}}",
    "undo": f"- {{id: bad, uses: sql, with: {{connection: shop, run: select 1 as a}}, compensate: {{{SQL}}}}}\n"
    "  - {id: no, uses: require, with: {that: false, message: no}}",
    "confirm": "- {id: bad, uses: sql, with: {connection: shop, run: select 1 as a},"
    f' compensate: {{uses: sql, with: {{connection: shop, run: "delete from fee where 1 = 0"}}}}, confirm: {{{SQL}}}}}',
    "computed": '- {id: first, uses: pass, with: {result: {n: "0"}}, pivot: true}\n'
    "  - id: bad\n    uses: sql\n    with:\n"
    "      connection: shop\n      run: insert into fee values (:id, :n)\n"
    "      params: {id: '${{ saga.id }}', n: '${{ 1 / int(steps.first.result.n) }}'}",
}
ENDS = {"undo": "COMPENSATED"}


CHILD = """saga: refused-child
input: {type: object, required: [n], properties: {n: {type: integer}}}
steps: [{id: a, uses: pass, with: {result: "${{ input.n }}"}}]
"""
PARENT = """saga: refused-parent
steps:
  - {id: first, uses: pass, with: {result: 1}, pivot: true}
  - {id: bad, uses: saga, with: {name: refused-child, input: {n: "${{ saga.id }}"}}}
output: 1
"""


async def test_the_retry_of_a_nested_saga_with_another_input_is_offered(
    temporal: TemporalServer, tmp_path: Path
) -> None:
    definitions = {"refused-child": CHILD, "refused-parent": PARENT}
    project = make_project(tmp_path / "project", definitions, [], address=temporal.address)
    async with running_worker(project, grace=GRACE) as client:
        story = await finished(client, (await client.start("refused-parent", {}, id="refused-value-parent")).id)
        assert story["state"] == "PARKED", story
        assert "--with" in story["parked"][0]["commands"][0], story
        corrected = {"name": "refused-child", "input": {"n": 5}}
        story = await resolve(client, "refused-value-parent", "bad", "retry", **{"with": corrected})
        assert (story["state"], story["steps"][1]["result"]) == ("COMPLETED", None), story


async def test_the_retry_with_another_value_is_offered(
    temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = await new_url("postgresql", request, tmp_path)
    engine = open_engine("owner", url, 2)
    await create_tables(engine)
    async with engine.connect() as connection:
        await connection.exec_driver_sql("create table fee (id varchar(99), n numeric(10, 2))")
        await connection.commit()
    project = make_project(
        tmp_path / "project",
        {f"refused-{name}": f"saga: refused-{name}\nsteps:\n  {steps}\n" for name, steps in DEFINITIONS.items()},
        [],
        address=temporal.address,
        connections={"shop": url},
    )
    async with running_worker(project, grace=GRACE) as client:
        sagas = [await client.start(f"refused-{name}", {}, id=f"refused-value-{name}") for name in DEFINITIONS]
        stories = await asyncio.gather(*(finished(client, saga.id) for saga in sagas))
        for name, story in zip(DEFINITIONS, stories, strict=True):
            assert story["state"] == "PARKED", (name, story)
            (parked,) = story["parked"]
            offered = [command.partition(" --reason ")[2] for command in parked["commands"][:3]]
            corrections = ["'…' --with '{…}'", "'…' --definition FILE", "'…'"]
            if name == "computed":
                assert "division by zero" in parked["why"]
                corrections = [corrections[1], corrections[0], corrections[2]]
            else:
                assert "12.505, and the column n of fee (numeric(10,2)) holds 2 digits" in parked["why"]
            assert offered == corrections, (name, parked)
        decision = {"step": "bad", "decision": "skip", "reason": "x", "who": "ada"}
        (seal, *missing), remains = [
            await preview_decision(client.locator, f"refused-value-{name}", decision) for name in ("after", "undo")
        ]
        assert seal == "bad is sealed in its database: if it has not happened already, it never will"
        assert any("the effect of bad in shop, key refused-value-after/bad, is missing" in line for line in missing), (
            missing
        )
        assert any("will end RESIDUE; by hand: sql {" in line and "12.505" in line for line in missing), missing
        assert any("the effect of bad in shop, key refused-value-undo/bad, stays: the saga" in line for line in remains)
        for name in DEFINITIONS:
            run = "insert into fee values (:id, :n)"
            corrected = {"connection": "shop", "run": run, "params": {"id": name, "n": "12.50"}}
            story = await resolve(client, f"refused-value-{name}", "bad", "retry", **{"with": corrected})
            assert story["state"] == ENDS.get(name, "COMPLETED"), story
    async with engine.connect() as connection:
        rows = await connection.exec_driver_sql("select id, n::text from fee order by id")
        assert [tuple(row) for row in rows] == [(name, "12.50") for name in sorted(DEFINITIONS)]
    await engine.dispose()
