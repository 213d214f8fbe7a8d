"""Rule 9: no guarded effect is committed whose result its saga has no room for, however many calls share the room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_activities.ledger.schema import create_ledger
from sagas import Step, action
from sagas.machine import state_budget
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.new_databases import new_url
from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import GRACE

FILL = """insert into refused_results values (:id, :n) returning
          (select string_agg(md5((:n || '/' || i)::text), '') from generate_series(1, :size) i) as text"""
DO = """    uses: sql
    with:
      connection: shop
      run: |
          %s
      params: {id: "${{ saga.id }}", n: "${{ %s }}", size: "${{ input.size }}"}
"""
UNDO = """    compensate:
      uses: sql
      with: {connection: shop, run: "delete from refused_results where id = :id and n = :n",
        params: {id: "${{ saga.id }}", n: "${{ %s }}"}}
"""
ITEMS = f"""saga: refused-items
steps:
  - id: load
    for_each: ["0", "1", "2", "3", "4", "5", "6", "7"]
    max_parallel: 4
{DO % (FILL, "item")}{UNDO % "item"}"""
BRANCHES = f"""saga: refused-branches
steps:
  - id: left
    needs: []
{DO % (FILL, "'l'")}{UNDO % "'l'"}  - id: right
    needs: []
{DO % (FILL, "'r'")}{UNDO % "'r'"}"""
AFTER = f"""saga: refused-after
steps:
  - {{id: go, uses: pass, with: {{result: 1}}, pivot: true}}
  - id: load
{DO % (FILL, "'a'")}"""
PREPARED = f"""saga: refused-prepared
steps:
  - id: load
{DO % (FILL, "'p'")}      two_phase: true
"""
CHILD = f"""saga: refused-child
steps:
  - id: load
{DO % (FILL, "'c'")}{UNDO % "'c'"}"""
PARENT = """saga: refused-parent
steps:
  - {id: nested, uses: saga, with: {name: refused-child, input: {size: "${{ input.size }}"}}}
"""
PLAIN = """saga: refused-plain
steps:
  - {id: load, uses: refused.plain, with: {size: "${{ input.size }}"}, compensate: refused.nothing}
  - {id: book, uses: pass, with: {result: 7}}
"""
DEFINITIONS = {
    "items": ITEMS,
    "branches": BRANCHES,
    "after": AFTER,
    "prepared": PREPARED,
    "child": CHILD,
    "parent": PARENT,
    "plain": PLAIN,
}


@action("refused.plain")
async def plain(step: Step, size: int) -> str:
    return "".join(f"{n:x}" for n in range(size * 8))


@action("refused.nothing")
async def nothing(step: Step, size: int) -> None:
    pass


@pytest_asyncio.fixture
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[str, AsyncEngine]]:
    url = await new_url("postgresql", request, tmp_path)
    engine = open_engine("owner", url, 2)
    await create_tables(engine)
    await create_ledger(engine)
    async with engine.begin() as connection:
        await connection.exec_driver_sql("create table refused_results (id varchar(99), n text)")
    yield url, engine
    await engine.dispose()


async def rows(engine: AsyncEngine, saga_id: str) -> list[str]:
    async with engine.connect() as connection:
        statement = text("select n from refused_results where id = :id order by n")
        return list((await connection.execute(statement, {"id": saga_id})).scalars())


async def guarded(engine: AsyncEngine, saga_id: str) -> list[str]:
    """The entries of a saga whose effects were committed."""
    async with engine.connect() as connection:
        statement = text("select step from saga_guard where saga_id = :id and op = 'do' and reason = 'do'")
        return sorted((await connection.execute(statement, {"id": saga_id})).scalars())


async def test_a_result_beyond_the_budget_is_rolled_back(
    temporal: TemporalServer, tmp_path: Path, shop: tuple[str, AsyncEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_budget, "STATE_BUDGET", 20_000)  # megabytes take half a minute
    url, engine = shop
    definitions = {f"refused-{name}": definition for name, definition in DEFINITIONS.items()}
    project = make_project(
        tmp_path / "project", definitions, [plain, nothing], address=temporal.address, connections={"shop": url}
    )

    async def run(name: str, size: int, id: str = "") -> dict[str, Any]:
        saga = await client.start(f"refused-{name}", {"size": size}, id=f"{name}-{size}{id}")
        return await finished(client, saga.id)

    async with running_worker(project, grace=GRACE) as client:
        # Eight results of about 1,600 bytes compressed fit together, and none of them into its part at first.
        story = await run("items", 100)
        assert story["state"] == "COMPLETED", story
        assert len(await rows(engine, "items-100")) == 8
        assert all("result_kept" not in row for row in story["steps"])

        story = await run("items", 200)
        assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "failed"), story
        step, message = story["reason"]["step"], story["reason"]["message"]
        assert message.startswith(f"the result of {step} has 6,4")
        assert "left of the 20,000 that all its results share: return fewer columns or rows" in message
        assert step not in await guarded(engine, "items-200")
        assert 4 <= len(await guarded(engine, "items-200")) <= 6
        assert await rows(engine, "items-200") == []

        story = await run("branches", 600)
        assert (story["state"], len(await guarded(engine, "branches-600"))) == ("COMPENSATED", 1), story
        assert await rows(engine, "branches-600") == []

        story = await run("parent", 1_500)
        assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "failed"), story
        assert await rows(engine, "parent-1500/nested") == []

        story = await run("after", 1_500)
        (parked,) = story["parked"]
        assert (parked["step"], await guarded(engine, "after-1500")) == ("load", [])
        assert "return fewer columns or rows" in parked["why"]

        story = await run("prepared", 1_500)
        assert (story["state"], story["reason"]["kind"], await rows(engine, "prepared-1500")) == (
            "COMPENSATED",
            "failed",
            [],
        )
        story = await run("plain", 2_000)
        assert (story["state"], story["steps"][0]["result_kept"]) == ("COMPLETED", False)


async def test_it_is_the_same_for_the_members_of_a_bulk_workflow(
    temporal: TemporalServer, tmp_path: Path, shop: tuple[str, AsyncEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_budget, "STATE_BUDGET", 20_000)
    url, engine = shop
    definition = f"""saga: refused-bulk
id: "${{{{ input.id }}}}"
steps:
  - id: left
    needs: []
{DO % (FILL, "'l'")}{UNDO % "'l'"}  - id: right
    needs: []
{DO % (FILL, "'r'")}{UNDO % "'r'"}"""
    project = make_project(
        tmp_path / "project",
        {"refused-bulk": definition},
        [],
        address=temporal.address,
        connections={"shop": url},
        ledger="shop",
    )
    sizes = {"bulk-a": 10, "bulk-b": 600, "bulk-c": 100, "bulk-d": 1_500, "bulk-e": 10}
    async with running_worker(project, grace=GRACE) as client:
        await client.start_many("refused-bulk", [{"id": id, "size": size} for id, size in sizes.items()], bulk=True)
        stories = {id: await finished(client, id) for id in sizes}
    states = {id: story["state"] for id, story in stories.items()}
    assert states == {
        "bulk-a": "COMPLETED",
        "bulk-b": "COMPENSATED",
        "bulk-c": "COMPLETED",
        "bulk-d": "COMPENSATED",
        "bulk-e": "COMPLETED",
    }, stories
    assert [len(await rows(engine, id)) for id in sizes] == [2, 0, 2, 0, 2]
    assert len(await guarded(engine, "bulk-b")) == 1
    assert await guarded(engine, "bulk-d") == []
    for id in ("bulk-b", "bulk-d"):
        assert "return fewer columns or rows" in stories[id]["reason"]["message"]
