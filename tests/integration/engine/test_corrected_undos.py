"""A step that was called with corrected arguments: its undo and its confirm, seen in the database."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_workers.interventions import preview_decision
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.new_databases import new_url
from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import GRACE, resolve

PARAMS = 'params: {n: "${{ input.n }}", a: "${{ input.acc }}"}'
CHANGE = "{uses: sql, with: {connection: shop, run: %s, " + PARAMS + "}}"
DEBIT = """  - id: debit
    uses: sql
    with: {connection: shop, run: "update corrected_account set free = free - :n where id = :a", %s, expect_rows: 1}
    on_failure: park
    compensate: %s
"""
BACK = CHANGE % '"update corrected_account set free = free + :n where id = :a"'
HOLD = CHANGE % '"update corrected_account set held = held + :n where id = :a"'
UNDO = f"saga: corrected-undo\nsteps:\n{DEBIT % (PARAMS, BACK)}  - {{id: no, uses: require, with: {{that: false}}}}\n"
CONFIRM = f"saga: corrected-confirm\nsteps:\n{DEBIT % (PARAMS, BACK)}    confirm: {HOLD}\n"
INPUT = {"n": 10, "acc": "X"}
RUN = "update corrected_account set free = free - :n where id = :a"
CORRECT = {"connection": "shop", "run": RUN, "params": {"n": 10, "a": "A"}, "expect_rows": 1}


async def test_the_account_that_was_changed_is_the_one_that_is_restored_and_confirmed(
    temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = await new_url("postgresql", request, tmp_path)
    engine = open_engine("owner", url, 2)
    await create_tables(engine)
    async with engine.begin() as connection:
        await connection.exec_driver_sql("create table corrected_account (id varchar(9), free numeric, held numeric)")
        await connection.exec_driver_sql("insert into corrected_account values ('A', 100, 0)")

    async def accounts() -> list[tuple[str, int, int]]:
        async with engine.connect() as connection:
            rows = await connection.exec_driver_sql("select id, free, held from corrected_account")
            return [(row["id"], int(row["free"]), int(row["held"])) for row in rows.mappings()]

    project = make_project(
        tmp_path / "project",
        {"corrected-undo": UNDO, "corrected-confirm": CONFIRM},
        [],
        address=temporal.address,
        connections={"shop": url},
    )
    async with running_worker(project, grace=GRACE) as client:
        for name, column, end in (("undo", "free + ", "COMPENSATED"), ("confirm", "held + ", "COMPLETED")):
            id = (await client.start(f"corrected-{name}", INPUT, id=f"corrected-step-{name}")).id
            assert (await finished(client, id))["parked"][0]["op"] == "do"
            decision = {"step": "debit", "decision": "retry", "reason": "wrong account", "who": "ada", "with": CORRECT}
            assert "of debit will not follow --with" in (await preview_decision(client.locator, id, decision))[-1]
            story = await resolve(client, id, "debit", "retry", **{"with": CORRECT})
            (parked,) = story["parked"]
            assert (story["state"], parked["op"]) == ("PARKED", name), story
            assert '"a": "A"' in parked["why"], parked
            assert '"a": "X"' in parked["why"], parked
            assert await accounts() == [("A", 90, 0)]
            run = f"update corrected_account set {column[:4]} = {column}:n where id = :a"
            other = {"connection": "shop", "run": run, "params": {"n": 10, "a": "A"}}
            story = await resolve(client, id, "debit", "retry", **{"with": other})
            assert story["state"] == end, story
            assert await accounts() == [("A", 100, 0) if name == "undo" else ("A", 90, 10)]
    await engine.dispose()
