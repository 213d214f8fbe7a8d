"""Unguarded results that exceed the budget of a saga are never data, whatever a database is told to do with them."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from sagas import Step, action
from sagas.machine import state_budget
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.new_databases import new_url
from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import GRACE

FULL = "".join(f"  - {{id: r{n}, uses: omitted.rows, effect: none}}\n" for n in (1, 2, 3))
BOOK = """  - id: book
    uses: sql
    with:
      connection: shop
      run: insert into omitted_sum values (:id, :n)
      params: {{id: "${{{{ saga.id }}}}", n: {n}}}
    pivot: true
"""
TAKE = """  - id: take
    uses: sql
    with: {connection: shop, run: "insert into omitted_sum values (:id, 1)", params: {id: "${{ saga.id }}/take"}}
    compensate: {uses: sql, with: {connection: shop, run: "delete from omitted_sum where id = :id",
      params: {id: "${{ saga.id }}/take"}}}
"""
USES = {
    "whole": '"${{ string(size(steps.p3.result)) }}"',
    "default": '"${{ default(steps.p3.result[0].total, 0) }}"',
    "has": '"${{ has(steps.p3.result[0].error) ? 1 : 0 }}"',
}


HASHES = [hashlib.sha256(str(number).encode()).hexdigest()[:32] for number in range(1, 601)]


@action("omitted.rows")
async def rows_of_hashes(step: Step) -> list[dict[str, Any]]:
    return [{"h": text} for text in HASHES]


@action("omitted.price")
async def price_with_hashes(step: Step) -> list[dict[str, Any]]:
    return [{"total": 125, "error": "x", "h": "".join(HASHES)}]


def definition(name: str, uses: str) -> str:
    price = "  - {id: p3, uses: omitted.price, effect: none}\n"
    return f"saga: omitted-{name}\nsteps:\n{TAKE}{FULL}{price}{BOOK.format(n=uses)}"


CHILD = f'saga: omitted-child\nsteps:\n{FULL}{BOOK.format(n=7)}output: "${{{{ steps.r3.result }}}}"\n'
PARENT = """saga: omitted-parent
steps:
  - {id: nested, uses: saga, with: {name: omitted-child}, pivot: true}
  - {id: go, uses: pass, with: {result: "${{ default(steps.nested.result[0].h, 'none') }}"}}
"""


async def test_no_effect_is_made_with_a_result_that_was_not_kept(
    temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_budget, "STATE_BUDGET", 20_000)  # megabytes take half a minute
    url = await new_url("postgresql", request, tmp_path)
    engine = open_engine("owner", url, 2)
    await create_tables(engine)
    async with engine.begin() as connection:
        await connection.exec_driver_sql("create table omitted_sum (id varchar(99), n numeric)")
    definitions = {f"omitted-{name}": definition(name, uses) for name, uses in USES.items()}
    definitions |= {"omitted-child": CHILD, "omitted-parent": PARENT}
    project = make_project(
        tmp_path / "project",
        definitions,
        [rows_of_hashes, price_with_hashes],
        address=temporal.address,
        connections={"shop": url},
    )
    async with running_worker(project, grace=GRACE) as client:
        sagas = [await client.start(f"omitted-{name}", {}, id=f"omitted-result-{name}") for name in (*USES, "parent")]
        *stories, parent = await asyncio.gather(*(finished(client, saga.id) for saga in sagas))
    for story in stories:
        assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "definition"), story
        message = story["reason"]["message"]
        assert "book.with.run[0].params.n: the result of p3 was not kept: it has 19,2" in message
        assert "bytes as JSON, and with it the results of the saga would pass" in message
        assert [row["id"] for row in story["steps"] if row.get("result_kept") is False] == ["r2", "r3", "p3"]
    (waits,) = parent["children"][0]["waits"]
    assert (waits["step"], parent["steps"][1]["state"]) == ("output", "PENDING"), parent
    async with engine.connect() as connection:
        rows = await connection.exec_driver_sql("select id, n::text from omitted_sum")
        assert [tuple(row) for row in rows] == [("omitted-result-parent/nested", "7")]
    await engine.dispose()
