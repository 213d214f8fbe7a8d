"""Errors of statements outside the steps of one saga on PostgreSQL, counted by a sequence or by the action.

These are bulk, checks, probes and notifications, SQLite, and the decisions of operators.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from saga_activities.ledger.schema import create_ledger
from saga_workers.client import Client
from saga_workers.start.start_requests import BulkRow
from sagas import Step, action
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.new_databases import new_url
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import LIMIT
from tests.integration.engine.environment import GRACE, resolve, row
from tests.integration.engine.error_causes import ANYWHERE, SERVERS, Cause, refused_confirms
from tests.integration.engine.test_error_phases import (
    DEFAULTS,
    PARKS,
    Shop,
    counter_of,
    definition,
    effects,
    problems,
    repair,
    run,
    run_batch,
    saga_of,
)

pytestmark = pytest.mark.slow

BULK = """
saga: many
defaults: {retry: {initial_interval: 20ms, max_interval: 200ms}}
input: {type: object, required: [statement, counter], properties: {statement: {type: string}, counter: {type: string}}}
steps:
  - id: first
    uses: sql
    with: {connection: shop, run: "insert into effect values (:key)", params: {key: "${{ saga.id }}"}}
    compensate:
      uses: sql
      with: {connection: shop, run: "delete from effect where saga = :key", params: {key: "${{ saga.id }}"}}
  - id: bad
    uses: ACTION
    with: {count: "${{ 'select nextval(' + input.counter + ')' }}", statement: "${{ input.statement }}"}
    compensate: {uses: sql, with: {connection: shop, run: "delete from effect where 1 = 0"}}
"""


@pytest.mark.parametrize("uses", ["phases.run", pytest.param("phases.batch", marks=pytest.mark.slow)])
async def test_a_failing_saga_of_a_chunk_does_not_affect_its_neighbours(
    uses: str, request: pytest.FixtureRequest, temporal: TemporalServer, tmp_path: Path
) -> None:
    url = await new_url("postgresql", request, tmp_path)
    shop, cells = Shop("postgresql", url), [(cause, "bulk") for cause in ANYWHERE]
    await shop.prepare(cells)
    await create_ledger(shop.owner)
    await shop.run(
        "create sequence count_good",
        "grant usage on sequence count_good to limited",
        "grant select, insert, update, delete on all tables in schema public to limited",
        "grant usage, select on all sequences in schema public to limited",
        "revoke all on forbidden from limited",
    )
    project = make_project(
        tmp_path / "project",
        {"many": BULK.replace("ACTION", uses)},
        [run, run_batch],
        address=temporal.address,
        connections={"shop": shop.url},
        outbox="shop",
        ledger="shop",
    )
    good = {f"{uses}-good-{n}": {"statement": "select 1", "counter": "'count_good'"} for n in range(16)}
    bad = {
        f"{uses}-{cause.name}": {"statement": cause.statement, "counter": f"'{counter_of(cause, phase)}'"}
        for cause, phase in cells
    }
    inputs = dict(sorted({**good, **bad}.items(), key=lambda pair: pair[0][::-1]))  # mixed with each other
    async with running_worker(project, grace=GRACE) as client:
        starter = await client.starter("many")
        bulk = await starter.start_bulk([BulkRow(id, starter.make_request(input)) for id, input in inputs.items()])
        result = await bulk.result()
        assert result["counts"] == {"COMPLETED": len(good), "COMPENSATED": len(bad)}
        for cell in cells:
            story = (await client.view(f"{uses}-{cell[0].name}")).to_json()
            step = row(story, "bad")
            assert (step["outcome"], step["attempts"]) == ("failed", cell[0].attempts), cell[0].name
            assert story["reason"]["step"] == "bad"
            assert await shop.attempts(cell) >= cell[0].attempts
    assert {id for (id,) in await shop.rows("select saga from effect")} == good.keys()
    await shop.owner.dispose()


PLACES = {
    "check": "- {{id: first, uses: sql, with: {noted}, compensate: {forget}}}\n"
    "- {{id: bad, uses: sql, with: {harmless}, compensate: {nothing}, check: {{uses: phases.run, with: {python}}}}}",
    "notify": "- {{id: first, uses: sql, with: {noted}, compensate: {forget}}}",
    "probe": "- {{id: first, uses: sql, with: {noted}, compensate: {forget}}}\n"
    "- {{id: bad, uses: phases.lose, retry: {{max_attempts: 1}}, settle: 20ms, compensate: phases.nothing,"
    " probe: {{uses: phases.run, with: {python}}}}}",
}


@action("phases.lose")
async def lose(step: Step) -> None:
    raise ConnectionError("lost")


@action("phases.nothing")
async def nothing(step: Step) -> None: ...


def place_definition(cause: Cause, place: str) -> str:
    key = 'params: {key: "${{ saga.id }}"}'
    python = f"""{{count: "select nextval('{counter_of(cause, place)}')", statement: "{cause.statement}"}}"""
    python = python.replace(":counter", counter_of(cause, place))
    steps = PLACES[place].format(
        noted=f'{{connection: shop, run: "insert into effect values (:key)", {key}}}',
        forget=f'{{uses: sql, with: {{connection: shop, run: "delete from effect where saga = :key", {key}}}}}',
        harmless='{connection: shop, run: "delete from effect where 1 = 0"}',
        nothing='{uses: sql, with: {connection: shop, run: "delete from effect where 1 = 0"}}',
        python=python,
    )
    notify = f"notify: [{{when: completed, uses: phases.run, with: {python}, intervals: [20ms, 20ms, 20ms, 20ms]}}]\n"
    return (
        f"saga: {saga_of(cause, place)}\n{DEFAULTS.format(attempts=12)}"
        + (notify if place == "notify" else "")
        + "steps:\n  "
        + steps.replace("\n", "\n  ")
        + "\n"
    )


async def settled(client: Client, saga_id: str) -> dict[str, Any]:
    """The story when the saga is over or parked, and no notification is under way."""
    story = await finished(client, saga_id)
    async with asyncio.timeout(LIMIT):
        while any(notification["state"] == "PENDING" for notification in story["notifications"]):
            await asyncio.sleep(0.1)
            story = await client.show(saga_id)
    return story


async def test_checks_probes_and_notifications(
    request: pytest.FixtureRequest, temporal: TemporalServer, tmp_path: Path
) -> None:
    shop = Shop("postgresql", await new_url("postgresql", request, tmp_path))
    causes = [cause for cause in SERVERS["postgresql"] if not cause.deferred]
    cells = [(cause, place) for cause in causes for place in PLACES]
    await shop.prepare(cells)
    project = make_project(
        tmp_path / "project",
        {saga_of(*cell): place_definition(*cell) for cell in cells},
        [run, lose, nothing],
        address=temporal.address,
        connections={"shop": shop.url},
        outbox="shop",
    )

    async def play(client: Client, cell: tuple[Cause, str]) -> dict[str, Any]:
        await client.start(saga_of(*cell), {}, id=f"place-{saga_of(*cell)}")
        return await settled(client, f"place-{saga_of(*cell)}")

    wrong: list[Any] = []
    async with running_worker(project, grace=GRACE) as client:
        stories = await asyncio.gather(*(play(client, cell) for cell in cells))
        for cell, story in zip(cells, stories, strict=True):
            (cause, place), there = cell, await effects(shop, story["id"])
            seen: dict[str, Any] = {"attempts": await shop.attempts(cell), "effects": there, "state": story["state"]}
            wanted: dict[str, Any] = {"attempts": cause.attempts}
            if place == "notify":
                [told] = story["notifications"]
                seen |= {"told": told["state"], "message": "in `" in (told["error"] or {"message": ""})["message"]}
                wanted |= {"effects": 1, "state": "COMPLETED", "told": "DELIVERED" if cause.heals else "EXHAUSTED"}
                wanted["message"] = not cause.heals
            elif place == "check":
                completed = cause.heals
                wanted |= {"effects": int(completed), "state": "COMPLETED" if completed else "COMPENSATED"}
                if not completed:
                    seen |= {"reason": story["reason"]["step"], "do": row(story, "first")["state"]}
                    wanted |= {"reason": "bad", "do": "PENDING"}
            else:
                parks = cause.attempts == 1  # after conflicts a probe is inconclusive, and the step is undone
                seen["parked"] = [parked_step["step"] for parked_step in story["parked"]]
                wanted |= {"effects": int(parks), "state": "PARKED" if parks else "COMPENSATED"}
                wanted["parked"] = ["bad"] if parks else []
            if seen != wanted:
                wrong.append((saga_of(*cell), seen, wanted, story["parked"]))
    assert not wrong, "\n".join(str(row) for row in wrong)
    await shop.owner.dispose()


DECIDED = tuple(cause for cause in ANYWHERE if cause.name in ("missing_column", "right"))


@pytest.mark.parametrize("decision", ["done", "skip"])
async def test_a_decision_without_a_repair(
    decision: str, request: pytest.FixtureRequest, temporal: TemporalServer, tmp_path: Path
) -> None:
    """`done` after an operator has done by hand what the parked operation should do; `skip` leaves a residue."""
    shop = Shop("postgresql", await new_url("postgresql", request, tmp_path))
    phases = [phase for phase in PARKS if phase != "two_phase_confirm" and not phase.endswith("_once")]
    cells = [(cause, phase) for cause in DECIDED for phase in phases]
    cells += [(cause, "two_phase_confirm") for cause in refused_confirms("postgresql") if not cause.heals]
    await shop.prepare(cells)
    project = make_project(
        tmp_path / "project",
        {saga_of(*cell): definition("postgresql", *cell) for cell in cells},
        [run, run_batch],
        address=temporal.address,
        connections={"shop": shop.url},
        outbox="shop",
    )

    async def play(client: Client, cell: tuple[Cause, str]) -> list[str]:
        id, backward = f"{decision}-{saga_of(*cell)}", "undo" in cell[1]
        await client.start(saga_of(*cell), {}, id=id)
        wrong = await problems(shop, cell, await finished(client, id))
        if decision == "done" and backward:
            await shop.run(f"delete from effect where saga = '{id}'")
        elif decision == "done" and cell[1] == "two_phase_confirm":
            await repair(shop, [cell])  # the decision is recorded in the guard, which refused the row
        more = {"evidence": "the books"} if decision == "done" else {}
        story = await resolve(client, id, "bad", decision, **more)
        if decision == "skip":
            due: tuple[Any, ...] = ("RESIDUE", 1, ["bad"])
        else:
            due = ("COMPENSATED", 0, []) if backward else ("COMPLETED", 1, [])
        seen = (story["state"], await effects(shop, id), [left_effect["step"] for left_effect in story["residue"]])
        attempts = await shop.attempts(cell)
        return [*wrong, *([] if (seen, attempts) == (due, cell[0].attempts) else [f"{id}: {seen}, {attempts}"])]

    async with running_worker(project, grace=GRACE) as client:
        wrong = [line for lines in await asyncio.gather(*(play(client, cell) for cell in cells)) for line in lines]
    assert not wrong, "\n".join(wrong)
    assert await shop.rows("select gid from pg_prepared_xacts where database = current_database()") == []
    await shop.owner.dispose()


CLASSES = {
    "rejected": 'sql, with: {connection: shop, run: [{sql: COUNT}, {sql: "delete from effect where 1 = 0",'
    " expect_rows: 1, rejected: no}]}",
    "failed": 'sql, with: {connection: shop, run: [{sql: COUNT}, {sql: "insert into missing_table values (1)"}]}',
    "conflict": 'sql, with: {connection: shop, run: [{sql: COUNT}, {sql: "insert into single values (1)"}]}',
    "unknown": "phases.lose_counted, with: {counter: COUNTER}, settle: 20ms",
}
ATTEMPTS = {"rejected": 1, "failed": 1, "conflict": 3, "unknown": 2}
POSITIONS = ("before", "after")


def on_failure_saga(kind: str, choice: str, place: str) -> str:
    cause = Cause(kind, "")
    counter = counter_of(cause, f"{choice}_{place}")
    uses = CLASSES[kind].replace("COUNTER", counter).replace("COUNT", f"\"select nextval('{counter}')\"")
    retry = "{max_attempts: 2}" if kind == "unknown" else None
    key = 'params: {key: "${{ saga.id }}"}'
    first = f'uses: sql, with: {{connection: shop, run: "insert into effect values (:key)", {key}}}'
    forget = f'{{uses: sql, with: {{connection: shop, run: "delete from effect where saga = :key", {key}}}}}'
    undo = (
        "{uses: phases.nothing, with: {}}"
        if kind == "unknown"
        else '{uses: sql, with: {connection: shop, run: "delete from single"}}'
    )
    own = f"on_failure: {choice}" + (f", retry: {retry}" if retry else "")
    if place == "before":
        first, own = f"{first}, compensate: {forget}", f"{own}, compensate: {undo}"
    else:
        first = f"{first}, pivot: true"
    return (
        f"saga: {saga_of(cause, f'{choice}-{place}')}\n{DEFAULTS.format(attempts=12)}steps:\n"
        f"  - {{id: first, {first}}}\n  - {{id: bad, uses: {uses}, {own}}}\n"
        "  - {id: last, uses: require, with: {that: true, message: never}}\n"
    )


async def test_each_class_of_error_is_continued_or_parked(
    request: pytest.FixtureRequest, temporal: TemporalServer, tmp_path: Path
) -> None:
    """`continue`: what stands below runs, and after the commit point the step is named. `park`: nothing else moves."""
    shop = Shop("postgresql", await new_url("postgresql", request, tmp_path))
    cells = [(kind, choice, place) for kind in CLASSES for choice in ("continue", "park") for place in POSITIONS]
    counted = [(Cause(kind, ""), f"{choice}_{place}") for kind, choice, place in cells]
    await shop.prepare([*counted, *((cause, "on_failure") for cause in ANYWHERE)])

    @action("phases.lose_counted")
    async def lose_counted(step: Step, counter: str) -> None:
        await shop.rows(f"select nextval('{counter}')")
        raise ConnectionError("lost")

    project = make_project(
        tmp_path / "project",
        {
            saga_of(Cause(kind, ""), f"{choice}-{place}"): on_failure_saga(kind, choice, place)
            for kind, choice, place in cells
        },
        [lose_counted, nothing],
        address=temporal.address,
        connections={"shop": shop.url},
        outbox="shop",
    )
    wrong: list[Any] = []

    async def play(client: Client, kind: str, choice: str, place: str) -> None:
        name = saga_of(Cause(kind, ""), f"{choice}-{place}")
        await client.start(name, {}, id=f"on-failure-{name}")
        story = await finished(client, f"on-failure-{name}")
        bad, is_parked = row(story, "bad"), choice == "park"
        attempts, outcome = ATTEMPTS[kind], "failed" if kind == "conflict" else kind
        seen = {
            "state": story["state"],
            "parked": [entry["step"] for entry in story["parked"]],
            "not done": story["not_done"],
            "bad": (bad["outcome"], bad["attempts"], bad["result"]),
            "counted": await shop.attempts((Cause(kind, ""), f"{choice}_{place}")),
            "effects": await effects(shop, story["id"]),
            "last": row(story, "last")["state"],
        }
        due = {
            "state": "PARKED" if is_parked else "COMPLETED",
            "parked": ["bad"] if is_parked else [],
            "not done": ["bad"] if place == "after" and not is_parked else [],
            "bad": (outcome, attempts, None),
            "counted": attempts,
            "effects": 1,
            "last": "PENDING" if is_parked else "DONE",
        }
        if seen != due:
            wrong.append((name, seen, due))

    async with running_worker(project, grace=GRACE) as client:
        await asyncio.gather(*(play(client, *cell) for cell in cells))
    assert not wrong, "\n".join(str(entry) for entry in wrong)
    assert await shop.rows("select count(*) from single") == [(1,)]
    await shop.owner.dispose()
