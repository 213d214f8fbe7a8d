"""Errors of statements on SQLite in each phase of a saga; the action counts its attempts, which are no rows."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_workers.client import Client
from sagas import Step, action
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import GRACE, resolve, row

SCHEMA = """
create table effect (saga text primary key);
create table narrow (n integer) strict;
create table single (n integer unique);
insert into single values (1);
create table parent (n integer primary key);
create table child (n integer references parent);
create table positive (n integer not null check (n > 0));
"""
CAUSES = {
    "missing-table": ("insert into missing_table values (1)", 1, "create table missing_table (n)"),
    "missing-column": ("insert into narrow (n, m) values (1, 2)", 1, "alter table narrow add column m integer"),
    "value": ("insert into narrow (n) values ('x')", 1, "drop table narrow; create table narrow (n any, m any) strict"),
    "check": ("insert into positive values (-1)", 1, "drop table positive; create table positive (n integer)"),
    "null": ("insert into positive values (null)", 1, ""),
    "unique": ("insert into single values (1)", 3, "drop table single; create table single (n integer)"),
    "foreign-key": ("insert into child values (1)", 3, "insert into parent values (1)"),
}
"""Statement, attempts, and what removes the cause."""
NOTED = "{uses: phases.note, compensate: phases.forget, id: first"
PHASES = {
    "before": f"- {NOTED}}}\n"
    "- {id: bad, uses: phases.bad, with: WITH, compensate: {uses: phases.forget, with: {}}}",
    "pivot": f"- {NOTED}}}\n- {{id: bad, uses: phases.bad, with: WITH, pivot: true}}",
    "after": "- {id: first, uses: phases.note, pivot: true}\n- {id: bad, uses: phases.bad, with: WITH}",
    "undo": "- {id: bad, uses: phases.note, compensate: {uses: phases.bad_undo, with: WITH}}\n"
    "- {id: no, uses: phases.refuse, compensate: phases.forget}",
    "confirm": "- {id: bad, uses: phases.note, compensate: phases.forget, confirm: {uses: phases.bad, with: WITH}}",
}
PARKS = ("after", "undo", "confirm")


def definition(phase: str, cause: str) -> str:
    with_ = f'{{statement: "{CAUSES[cause][0]}"}}'
    steps = PHASES[phase].replace("WITH", with_).replace("\n", "\n  ")
    return (
        f"saga: sqlite-{phase}-{cause}\ndefaults: {{retry: {{initial_interval: 20ms, max_interval: 200ms}}}}\n"
        f"steps:\n  {steps}\n"
    )


async def test_each_cause_in_each_phase(temporal: TemporalServer, tmp_path: Path) -> None:
    file, attempts = tmp_path / "shop.db", Counter[str]()
    engine = open_engine("owner", f"sqlite:///{file}", 1)
    await create_tables(engine)
    await engine.dispose()
    owner = sqlite3.connect(file)
    owner.executescript(SCHEMA)

    @action("phases.note", connection="shop")
    async def note(step: Step) -> None:
        await step.sql.execute("insert into effect values (:saga)", saga=step.saga_id)

    @action("phases.forget", connection="shop")
    async def forget(step: Step) -> None:
        await step.sql.execute("delete from effect where saga = :saga", saga=step.saga_id)

    @action("phases.refuse", connection="shop")
    async def refuse(step: Step) -> None:
        await step.sql.execute("select nothing from nowhere")

    @action("phases.bad", connection="shop")
    async def bad(step: Step, statement: str) -> None:
        attempts[step.saga_id] += 1
        await step.sql.execute(statement)

    @action("phases.bad_undo", connection="shop")
    async def bad_undo(step: Step, statement: str) -> None:
        attempts[step.saga_id] += 1
        await step.sql.execute("delete from effect where saga = :saga", saga=step.saga_id)
        await step.sql.execute(statement)

    cells = [(phase, cause) for phase in PHASES for cause in CAUSES]
    project = make_project(
        tmp_path / "project",
        {f"sqlite-{phase}-{cause}": definition(phase, cause) for phase, cause in cells},
        [note, forget, refuse, bad, bad_undo],
        address=temporal.address,
        connections={"shop": f"sqlite:///{file}"},
    )

    def effects(id: str) -> int:
        return owner.execute("select count(*) from effect where saga = ?", [id]).fetchone()[0]

    async def play(client: Client, phase: str, cause: str) -> dict[str, Any]:
        id = f"sqlite-{phase}-{cause}"
        await client.start(id, {}, id=id)
        return await finished(client, id)

    async with running_worker(project, grace=GRACE) as client:
        stories = await asyncio.gather(*(play(client, *cell) for cell in cells))
        for (phase, cause), story in zip(cells, stories, strict=True):
            id, parks = story["id"], phase in PARKS
            assert (id, story["state"], attempts[id], effects(id)) == (
                id,
                "PARKED" if parks else "COMPENSATED",
                CAUSES[cause][1],
                int(parks),
            )
            assert [one["step"] for one in story["parked"]] == (["bad"] if parks else [])
            operation = {"undo": "compensation", "confirm": "confirmation"}.get(phase)
            error = (row(story, "bad")[operation] if operation else row(story, "bad"))["error"]
            assert error["details"]["statement"] == CAUSES[cause][0]
        owner.executescript(";".join(remedy for _, _, remedy in CAUSES.values()))
        parked = [cell for cell in cells if cell[0] in PARKS]
        ended = await asyncio.gather(
            *(resolve(client, f"sqlite-{phase}-{cause}", "bad", "retry") for phase, cause in parked)
        )
        for (phase, cause), story in zip(parked, ended, strict=True):
            backward = phase == "undo"
            assert (cause, story["state"], effects(story["id"])) == (
                cause,
                "COMPENSATED" if backward else "COMPLETED",
                int(not backward),
            )
            assert attempts[story["id"]] == CAUSES[cause][1] + 1
    owner.close()
