"""Errors of statements in each phase of a saga, counted by the database: one attempt, three, or as many as it takes.

A sequence counts the attempts, because it is not rolled back. After the ends are checked, what caused the errors is
repaired, and an operator's `retry` ends each parked saga.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_workers.client import Client
from sagas import BatchStep, Item, Step, action
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.new_databases import new_url
from tests.helpers.processes import TemporalServer
from tests.helpers.sampling import every_nth, is_long
from tests.integration.engine.environment import GRACE, resolve, row
from tests.integration.engine.error_causes import MARIADB_ONLY, SERVERS, UNPREPARABLE, Cause, refused_confirms

PHASES: dict[str, str] = {
    "before": "- {{id: first, uses: sql, with: {noted}, compensate: {forget}}}\n"
    "- {{id: bad, uses: sql, with: {bad}, compensate: {nothing}}}",
    "pivot": "- {{id: first, uses: sql, with: {noted}, compensate: {forget}}}\n"
    "- {{id: bad, uses: sql, with: {bad}, pivot: true}}",
    "after": "- {{id: first, uses: sql, with: {noted}, pivot: true}}\n- {{id: bad, uses: sql, with: {bad}}}",
    "undo": "- {{id: bad, uses: sql, with: {noted}, compensate: {{uses: sql, with: {bad_undo}}}}}\n"
    "- {{id: no, uses: sql, with: {never}, compensate: {nothing}}}",
    "confirm": "- {{id: bad, uses: sql, with: {noted}, compensate: {forget}, confirm: {{uses: sql, with: {bad}}}}}",
    "python": "- {{id: first, uses: sql, with: {noted}, compensate: {forget}}}\n"
    "- {{id: bad, uses: phases.run, with: {python}, compensate: {nothing}}}",
    "python_undo": "- {{id: bad, uses: sql, with: {noted}, compensate: {{uses: phases.run, with: {python_undo}}}}}\n"
    "- {{id: no, uses: sql, with: {never}, compensate: {nothing}}}",
    "two_phase": "- {{id: first, uses: sql, with: {noted}, compensate: {forget}}}\n"
    "- {{id: bad, uses: sql, with: {prepared}}}",
    "two_phase_confirm": "- {{id: bad, uses: sql, with: {noted_prepared}}}",
    "batch": "- {{id: first, uses: sql, with: {noted}, compensate: {forget}}}\n"
    "- {{id: bad, uses: phases.batch, with: {python}, compensate: {nothing}}}",
}
ONCE = {f"{phase}_once": PHASES[phase] for phase in ("before", "pivot", "after", "undo", "confirm")}
"""The same with one attempt by default."""
PHASES |= ONCE
PARKS = ("after", "two_phase_confirm", "undo", "confirm", "python_undo", "after_once", "undo_once", "confirm_once")
BACKWARD = ("undo", "python_undo", "undo_once")
OPERATION: dict[str, str] = {
    **dict.fromkeys(BACKWARD, "compensation"),
    **dict.fromkeys(("confirm", "two_phase_confirm", "confirm_once"), "confirmation"),
}


def counter_of(cause: Cause, phase: str) -> str:
    return f"count_{phase}_{cause.name}".lower()


def saga_of(cause: Cause, phase: str) -> str:
    return f"{phase}-{cause.name}".replace("_", "-").lower()


def definition(kind: str, cause: Cause, phase: str) -> str:
    counter = counter_of(cause, phase)
    count = f"select nextval('{counter}')" if kind == "postgresql" else f"select nextval({counter})"
    statement = cause.statement.replace(":counter", counter)
    parts = {
        "noted": '{connection: shop, run: "insert into effect values (:key)", params: {key: "${{ saga.id }}"}}',
        "forget": '{uses: sql, with: {connection: shop, run: "delete from effect where saga = :key",'
        ' params: {key: "${{ saga.id }}"}}}',
        "nothing": '{uses: sql, with: {connection: shop, run: "delete from effect where 1 = 0"}}',
        "never": '{connection: shop, run: "delete from effect where 1 = 0", expect_rows: 1, rejected: no}',
        "bad": f'{{connection: shop, run: [{{sql: "{count}"}}, {{sql: "{statement}"}}]}}',
        "bad_undo": f'{{connection: shop, run: [{{sql: "{count}"}}, {{sql: "{statement}"}},'
        ' {sql: "delete from effect where saga = :key", params: {key: "${{ saga.id }}"}}]}',
        "python_undo": f'{{count: "{count}", statement: "{statement}", forget: "${{{{ saga.id }}}}"}}',
        "noted_prepared": '{connection: shop, two_phase: true, run: "insert into effect values (:key)",'
        ' params: {key: "${{ saga.id }}"}}',
        "prepared": f'{{connection: shop, two_phase: true, run: [{{sql: "{count}"}}, {{sql: "{statement}"}}]}}',
        "python": f'{{count: "{count}", statement: "{statement}"}}',
    }
    steps = PHASES[phase].format(**parts).replace("\n", "\n  ")
    attempts = 1 if phase in ONCE else 12
    return f"saga: {saga_of(cause, phase)}\n{DEFAULTS.format(attempts=attempts)}steps:\n  {steps}\n"


DEFAULTS = "defaults: {{retry: {{initial_interval: 20ms, max_interval: 200ms, max_attempts: {attempts}}}}}\n"
"""A default is not the step's own `retry`, so conflicts keep their three attempts."""


@action("phases.run", connection="shop")
async def run(step: Step, count: str, statement: str, forget: str | None = None) -> None:
    await step.sql.execute(count)
    await step.sql.execute(statement)
    if forget is not None:
        await step.sql.execute("delete from effect where saga = :saga", saga=forget)


@action("phases.batch", connection="shop", batch=True)
async def run_batch(step: BatchStep, items: list[Item]) -> list[None]:
    for item in items:
        await step.sql.execute(item["count"])
        await step.sql.execute(item["statement"])
    return [None] * len(items)


FUNCTIONS = {
    "postgresql": (
        "create extension if not exists btree_gist",
        "create function passing(counter text, code text) returns void language plpgsql as $$ begin"
        " if (select (pg_sequence_last_value(counter::regclass)) < 3) then"
        " if code = 'lost' then perform pg_terminate_backend(pg_backend_pid()); end if;"
        " raise exception 'it passes' using errcode = code; end if; end $$",
    ),
    "mariadb": tuple(
        f"create function passing_{code}(seen int) returns int begin if seen < 3 then"
        f" signal sqlstate '{state}' set mysql_errno = {code}, message_text = 'it passes'; end if; return 1; end"
        for code, state in ((1213, "40001"), (1205, "HY000"), (1226, "42000"), (1644, "45000"))
    ),
}
DIALECT = {
    "postgresql": {
        "alter_narrow": "alter table narrow alter column n type numeric(20,2)",
        "drop_not_null": "alter table filled alter column n drop not null",
        "drop_unique": "alter table single drop constraint only_one",
        "host": "",
        "db": "",
    },
    "mariadb": {
        "alter_narrow": "alter table narrow modify n numeric(20,2)",
        "drop_not_null": "alter table filled modify n int null",
        "drop_unique": "alter table single drop index only_one",
        "host": "@'%%'",
    },
}


class Shop:
    """The database, as its owner, and its URL for an account without the right of one table."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.owner = kind, open_engine("owner", url, 8)
        self.url = url.replace("://saga@", "://limited@").replace("://root@", "://limited@")
        self.words = {"db": url.rpartition("/")[2] + ".", **DIALECT[kind]}

    async def run(self, *statements: str) -> None:
        async with self.owner.connect() as connection:
            for statement in statements:
                await connection.exec_driver_sql(statement)
            await connection.commit()

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        async with self.owner.connect() as connection:
            return [tuple(values) for values in await connection.exec_driver_sql(statement)]

    async def prepare(self, cells: list[tuple[Cause, str]]) -> None:
        causes = {cause.name: cause for cause, _ in cells}
        await create_tables(self.owner)
        await self.run("create table effect (saga varchar(200) primary key)", *FUNCTIONS[self.kind])
        for cause in causes.values():
            await self.run(*cause.tables)
        await self.run(*(f"create sequence {counter_of(*cell)}" for cell in cells))
        if self.kind == "postgresql":
            await self.run(
                "do $$ begin create role limited login; exception when duplicate_object then null; end $$",
                "grant select, insert, update, delete on all tables in schema public to limited",
                "grant usage, select on all sequences in schema public to limited",
                "revoke all on forbidden from limited",
            )
            return
        await self.run("create user if not exists limited@'%%'")
        schema = self.words["db"].rstrip(".")
        await self.run(f"grant execute on {schema}.* to limited@'%%'")
        for (table,) in await self.rows(
            f"select table_name from information_schema.tables where table_schema = '{schema}'"
        ):
            if table != "forbidden":
                await self.run(f"grant select, insert, update, delete on {schema}.{table} to limited@'%%'")

    async def attempts(self, cell: tuple[Cause, str]) -> int:
        """How often the sequence of this cell was used."""
        counter = counter_of(*cell)
        if self.kind == "postgresql":
            [(count,)] = await self.rows(f"select case when is_called then last_value else 0 end from {counter}")
        else:
            [(count,)] = await self.rows(f"select nextval({counter}) - 1")
        return count


async def repair(shop: Shop, cells: list[tuple[Cause, str]]) -> None:
    for cause in {cause.name: cause for cause, _ in cells}.values():
        await shop.run(
            *(statement.format(**shop.words) if "$$" not in statement else statement for statement in cause.repair)
        )


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
async def test_each_cause_in_each_phase(
    kind: str,
    request: pytest.FixtureRequest,
    patient_heartbeats: None,
    temporal: TemporalServer,
    tmp_path: Path,
) -> None:
    shop = Shop(kind, await new_url(kind, request, tmp_path))
    cells = [
        (cause, phase)
        for cause in SERVERS[kind]
        for phase in PHASES
        if not phase.startswith("two_phase") and (phase not in ONCE or (cause.attempts == 3 and not cause.heals))
    ]
    cells += [(cause, "two_phase") for cause in (*SERVERS[kind], *UNPREPARABLE[kind])]
    if not is_long() and kind == "mariadb":
        cells = [(cause, phase) for cause, phase in cells if cause in MARIADB_ONLY and phase in ("before", "two_phase")]
    cells = every_nth(9 if kind == "postgresql" else 2, cells)  # no divisors: each phase meets several causes
    cells += [(cause, "two_phase_confirm") for cause in refused_confirms(kind)]
    await shop.prepare(cells)
    project = make_project(
        tmp_path / "project",
        {saga_of(*cell): definition(kind, *cell) for cell in cells},
        [run, run_batch],
        address=temporal.address,
        connections={"shop": shop.url},
        outbox="shop",
    )
    async with running_worker(project, grace=GRACE) as client:
        stories = await asyncio.gather(*(play(client, kind, cell) for cell in cells))
        wrong: list[str] = []
        for cell, story in zip(cells, stories, strict=True):
            wrong += [f"{saga_of(*cell)}: {problem}" for problem in await problems(shop, cell, story)]
        assert not wrong, "\n".join(wrong)
        await repair(shop, cells)
        parked = [(cell, story) for cell, story in zip(cells, stories, strict=True) if story["parked"]]
        ended = await asyncio.gather(*(resolve(client, story["id"], "bad", "retry") for _, story in parked))
        for (cell, _), story in zip(parked, ended, strict=True):
            end = "COMPENSATED" if cell[1] in BACKWARD else "COMPLETED"
            if (story["state"], await effects(shop, story["id"])) != (end, int(end == "COMPLETED")):
                wrong.append(f"{saga_of(*cell)} after a retry: {story['state']} {story['parked']}")
        assert not wrong, "\n".join(wrong)
    await shop.owner.dispose()


async def play(client: Client, prefix: str, cell: tuple[Cause, str]) -> dict[str, Any]:
    saga = await client.start(saga_of(*cell), {}, id=f"{prefix}-{saga_of(*cell)}")
    return await finished(client, saga.id)


async def effects(shop: Shop, saga_id: str) -> int:
    [(count,)] = await shop.rows(f"select count(*) from effect where saga = '{saga_id}'")
    return count


async def problems(shop: Shop, cell: tuple[Cause, str], story: dict[str, Any]) -> list[str]:
    cause, phase = cell
    bad, count, there = row(story, "bad"), await shop.attempts(cell), await effects(shop, story["id"])
    backward = phase in BACKWARD
    if cause.heals:
        state = "COMPENSATED" if backward else "COMPLETED"
    else:
        state = "PARKED" if phase in PARKS else "COMPENSATED"
    effect = int(state == "COMPLETED" or state == "PARKED")
    seen = [("state", story["state"], state), ("attempts", count, cause.attempts), ("effects", there, effect)]
    if not cause.heals:
        operation = OPERATION.get(phase)
        error = (bad[operation] if operation else bad)["error"] or {"details": {}}
        statement = error["details"].get("statement") or ""
        if cause.deferred:
            last = "PREPARE TRANSACTION" if phase == "two_phase" else "COMMIT"
            seen.append(("last statement", statement.startswith(last) and "deferred" in error["message"], True))
        else:
            seen.append(("statement", bool(statement), bool(cause.statement)))
        seen.append(("code", bool(error["details"].get("code")), True))
        seen.append(("counted", (bad[operation] if operation else bad)["attempts"], cause.attempts))
        seen.append(("outcome", bad["outcome"], "done" if operation else "failed"))
    if state == "PARKED":
        seen += [("parked", [parked_step["step"] for parked_step in story["parked"]], ["bad"])]
        seen += [
            (
                "command",
                any("retry" in command for command in story["parked"][0]["commands"]) if story["parked"] else None,
                True,
            )
        ]
    return [f"{name} {is_!r}, not {due!r}" for name, is_, due in seen if is_ != due]
