"""Random tables and steps: the undo restores every byte, or the step was refused and has changed nothing.

Nobody else changes a row here, so a parked undo is a failure, and so is any difference.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError

from tests.helpers.sampling import every_nth, scaled
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import GuardDatabase, database_url, open_guard_database
from tests.integration.guard.generated_steps import KEYS, TYPES, GeneratedStep, generate

KINDS = ("postgres", "mariadb", "sqlite")
SEEDS = scaled(range(25), range(2000))
RESTORED_SHARE = 0.3
"""Of all seeds; the other steps are refused, by the engine or by a constraint that the step itself violates."""


async def dump(tables: Tables) -> list[tuple[object, ...]]:
    """All bytes of all rows."""
    if tables.kind == "postgres":
        rows = await tables.sql("select t.ctid is null, t.*::text from @t t".replace("t.*::text", "t::text"))
    elif tables.kind == "sqlite":
        names = [row[0] for row in await tables.sql("select name from pragma_table_xinfo('@t')")]
        read = ", ".join(f"typeof({name}), quote({name})" for name in names)
        rows = await tables.sql(f"select {read} from @t")
    else:
        columns = await tables.sql("show columns from @t")
        rows = await tables.sql(
            f"select {', '.join(f'hex(cast({column[0]} as binary))' for column in columns)} from @t"
        )
    return sorted((tuple(row) for row in rows), key=repr)


@dataclass
class Databases:
    """One database: sessions that run the steps, and sessions that undo them, which begin with other settings."""

    doing: GuardDatabase
    undoing: GuardDatabase


_OTHER_SETTINGS = {
    "postgres": [
        f"alter role current_user set {name} = '{value}'"
        for name, value in {
            "timezone": "Europe/Berlin",
            "datestyle": "German, DMY",
            "intervalstyle": "sql_standard",
            "extra_float_digits": "-3",
            "bytea_output": "escape",
        }.items()
    ],
    "mariadb": ["set global time_zone = '+05:30'"],
    "sqlite": [],
}
_USUAL_SETTINGS = {
    "postgres": ["alter role current_user reset all"],
    "mariadb": ["set global time_zone = 'SYSTEM'"],
    "sqlite": [],
}


@asynccontextmanager
async def opened(kind: str, url: str) -> AsyncIterator[Databases]:
    """The sessions of the second pool begin after the settings of new sessions were changed."""
    doing = await open_guard_database(kind, url)
    await Tables(doing).sql(*_OTHER_SETTINGS[kind])
    undoing = await open_guard_database(kind, url)
    try:
        await Tables(undoing).sql("select 1")
        yield Databases(doing, undoing)
    finally:
        await Tables(doing).sql(*_USUAL_SETTINGS[kind])
        await doing.connections.close()
        await undoing.connections.close()


async def run(databases: Databases, step: GeneratedStep) -> str:
    """Run the step and undo it; returns how it ended."""
    tables, later = Tables(databases.doing), Tables(databases.undoing)
    tables.id = later.id = f"{step.seed}"
    if step.kind == "postgres":
        await tables.sql(*TYPES)
    try:
        await tables.sql(*step.create)
        for row in step.rows:
            try:
                await tables.sql(row)
            except DBAPIError:
                continue  # its key exists, or its parent does not
        await tables.sql(*step.after_rows, "select 1")
        return await _play(tables, later, step)
    except DBAPIError as error:
        raise AssertionError(f"seed {step.seed}: {error}\n{step}") from error
    finally:
        await tables.drop()
        if step.kind == "postgres":
            await tables.sql("drop type @mood", "drop domain @amount", "drop type @pair")


async def _play(tables: Tables, later: Tables, step: GeneratedStep) -> str:
    before = await dump(tables)
    done = await tables.do(step.statements)
    if done.kind != "done":
        assert await dump(tables) == before, f"seed {step.seed}: a refused step has changed rows: {done}\n{step}"
        assert done.failure is not None
        return "refused" if done.failure.type == "definition" else "failed"
    changed = await dump(tables) != before
    undone = await later.undo()
    assert undone.kind == "done", f"seed {step.seed}: {undone.park_reason or undone}\n{step}"
    after = await dump(tables)
    assert after == before, f"seed {step.seed}: {set(after) ^ set(before)}\n{step}"
    return "restored" if changed else "unchanged"


async def run_all(kind: str, seeds: range, request: pytest.FixtureRequest, folder: Path) -> Counter[str]:
    ends: Counter[str] = Counter()
    async with opened(kind, database_url(kind, request, folder)) as databases:
        for seed in seeds:
            ends[await run(databases, generate(kind, seed))] += 1
    return ends


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("kind", KINDS)
async def test_generated_steps_are_restored_or_refused(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    ends = await run_all(kind, SEEDS, request, tmp_path)
    print(kind, dict(ends))
    assert ends["restored"] >= RESTORED_SHARE * len(SEEDS), ends


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("kind", KINDS)
async def test_two_sagas_with_two_spellings_take_turns(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """At the same time, on a row of each type: one of them changes it, and the other one is told to wait."""
    database = await open_guard_database(kind, database_url(kind, request, tmp_path))
    for number, (type, values) in enumerate(every_nth(2, KEYS[kind].items())):
        if type in ("mood", "amount", "pair"):
            continue
        tables = Tables(database)
        spellings = max(values, key=len)
        spelling, other = spellings[0], spellings[-1]
        await tables.sql(
            f"create table @t (k {type} not null, n int, primary key (k))", f"insert into @t values ({spelling}, 0)"
        )
        cast = "cast({} as " + type + ")" if kind == "postgres" else "{}"
        outcomes = await asyncio.gather(
            *(
                tables.do([f"update @t set n = n + 1 where k = {cast.format(value)}"], saga=f"saga{at}")
                for at, value in enumerate((spelling, other))
            )
        )
        kinds = [outcome.kind for outcome in outcomes]
        assert kinds.count("done") == 1, (number, type, outcomes)
        assert [row[0] for row in await tables.sql("select n from @t")] == [1]
        await tables.drop()
    await database.connections.close()
