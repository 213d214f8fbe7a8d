"""Errors of statements on SQLite in each phase of a saga; the action counts its attempts, which are not rows."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_workers.client import Client
from sagas import Step, action
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.sampling import every_nth
from tests.helpers.waiting import until
from tests.integration.engine.environment import GRACE, resolve, row
from tests.integration.engine.error_causes import SQLITE, Cause

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


def saga_of(phase: str, cause: Cause) -> str:
    return f"sqlite-{phase}-{cause.name}".replace("_", "-")


def definition(phase: str, cause: Cause) -> str:
    with_ = f'{{statement: "{cause.statement}"}}'
    steps = PHASES[phase].replace("WITH", with_).replace("\n", "\n  ")
    return (
        f"saga: {saga_of(phase, cause)}\ndefaults: {{retry: {{initial_interval: 20ms, max_interval: 200ms}}}}\n"
        f"steps:\n  {steps}\n"
    )


@pytest.mark.slow
async def test_each_cause_in_each_phase(patient_heartbeats: None, temporal: TemporalServer, tmp_path: Path) -> None:
    file, attempts = tmp_path / "shop.db", Counter[str]()
    engine = open_engine("owner", f"sqlite:///{file}", 1)
    await create_tables(engine)
    await engine.dispose()
    owner = sqlite3.connect(file)
    owner.execute("create table effect (saga text primary key)")
    for cause in SQLITE:
        owner.executescript(";".join(cause.tables))

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

    cells = every_nth(3, [(phase, cause) for phase in PHASES for cause in SQLITE])
    project = make_project(
        tmp_path / "project",
        {saga_of(phase, cause): definition(phase, cause) for phase, cause in cells},
        [note, forget, refuse, bad, bad_undo],
        address=temporal.address,
        connections={"shop": f"sqlite:///{file}"},
    )

    def effects(id: str) -> int:
        return owner.execute("select count(*) from effect where saga = ?", [id]).fetchone()[0]

    async def play(client: Client, phase: str, cause: Cause) -> dict[str, Any]:
        id = saga_of(phase, cause)
        await client.start(id, {}, id=id)
        return await finished(client, id)

    async with running_worker(project, grace=GRACE) as client:
        stories = await asyncio.gather(*(play(client, *cell) for cell in cells))
        for (phase, cause), story in zip(cells, stories, strict=True):
            id, parks = story["id"], phase in PARKS
            assert (id, story["state"], attempts[id], effects(id)) == (
                id,
                "PARKED" if parks else "COMPENSATED",
                cause.attempts,
                int(parks),
            )
            assert [parked_step["step"] for parked_step in story["parked"]] == (["bad"] if parks else [])
            operation = {"undo": "compensation", "confirm": "confirmation"}.get(phase)
            error = (row(story, "bad")[operation] if operation else row(story, "bad"))["error"]
            assert error["details"]["statement"] == cause.statement
        for cause in SQLITE:
            owner.executescript(";".join(cause.repair))
        parked = [cell for cell in cells if cell[0] in PARKS]
        ended = await asyncio.gather(*(resolve(client, saga_of(*cell), "bad", "retry") for cell in parked))
        for (phase, cause), story in zip(parked, ended, strict=True):
            backward = phase == "undo"
            assert (cause, story["state"], effects(story["id"])) == (
                cause,
                "COMPENSATED" if backward else "COMPLETED",
                int(not backward),
            )
            assert attempts[story["id"]] == cause.attempts + 1
    owner.close()


BUSY = """
saga: SAGA
defaults: {retry: {initial_interval: 20ms, max_interval: 100ms, max_attempts: 2}, timeout: TIME}
steps: [{id: bad, uses: phases.note, compensate: phases.forget}]
"""


async def has_failed(client: Client, saga_id: str) -> bool:
    return row(await client.show(saga_id), "bad").get("outcome") == "failed"


@pytest.mark.slow
async def test_a_locked_file_is_waited_for_and_nothing_happens(temporal: TemporalServer, tmp_path: Path) -> None:
    """Another process writes: within the attempt it is waited for; afterwards the step has failed."""
    file = tmp_path / "shop.db"
    engine = open_engine("owner", f"sqlite:///{file}", 1)
    await create_tables(engine)
    await engine.dispose()
    owner = sqlite3.connect(file, isolation_level=None)
    owner.execute("create table effect (saga text primary key)")

    @action("phases.note", connection="shop")
    async def note(step: Step) -> None:
        await step.sql.execute("insert into effect values (:saga)", saga=step.saga_id)

    @action("phases.forget", connection="shop")
    async def forget(step: Step) -> None:
        await step.sql.execute("delete from effect where saga = :saga", saga=step.saga_id)

    project = make_project(
        tmp_path / "project",
        {
            name: BUSY.replace("SAGA", name).replace("TIME", time)
            for name, time in (("busy-short", "30s"), ("busy-long", "6s"))
        },
        [note, forget],
        address=temporal.address,
        connections={"shop": f"sqlite:///{file}"},
    )

    async with running_worker(project, grace=GRACE) as client:
        owner.execute("begin immediate")
        await client.start("busy-short", {}, id="busy-short")
        await asyncio.sleep(0.4)
        owner.execute("commit")
        story = await finished(client, "busy-short")
        assert (story["state"], row(story, "bad")["attempts"]) == ("COMPLETED", 1)

        owner.execute("begin immediate")
        await client.start("busy-long", {}, id="busy-long")
        await until(lambda: has_failed(client, "busy-long"))
        owner.execute("commit")
        story = await finished(client, "busy-long")
        bad = row(story, "bad")
        assert (story["state"], story["parked"]) == ("COMPENSATED", [])
        assert (bad["outcome"], bad["attempts"], bad["error"] is not None) == ("failed", 2, True)
    assert owner.execute("select saga from effect").fetchall() == [("busy-short",)]
    owner.close()
