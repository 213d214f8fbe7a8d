"""Several outputs of one saga in one table: what was published last is reverted first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from saga_activities.guard.entry_key import EntryKey
from saga_spark import output_records
from saga_spark.manifest import Target
from saga_spark.staging.publishing import OutputPublisher
from saga_spark.staging.staging_attempt import transaction
from tests.helpers.database_servers import DatabaseServer
from tests.integration.spark.sinks.iceberg.iceberg_environment import Lake, open_lake, some
from tests.integration.spark.sinks.postgresql.warehouse import Warehouse, open_warehouse
from tests.integration.spark.staged_outputs import stage
from tests.integration.spark.staging.staging_environment import StagingEnvironment, clock, open_staging


@dataclass
class Places:
    """One ledger, and the tables to which its steps publish."""

    staging: StagingEnvironment
    warehouse: Warehouse
    lake: Lake

    async def publish(self, step: str, outputs: dict[str, dict[str, Any]]) -> None:
        """Stage and publish the outputs of a step; each has one row, whose id is its number from 1."""
        key = EntryKey(self.staging.saga, step, 1)
        staged = []
        for number, (name, spec) in enumerate(outputs.items(), 1):
            rows = [{"id": number, "p": name}] if "connection" in spec else some(number)
            made = stage(self.staging.settings, spec, rows, saga=f"{self.staging.saga}-{step}", name=name)
            target = Target(self.staging.saga, step, 1, name)
            staged.append((target, replace(made.manifest, key=target.publish_key)))
            async with transaction(self.staging.guard.engine) as connection:
                await output_records.take_over(connection, target, saga="day", place=name, spec=spec, together=False)

        async def body(sql: Any) -> None:
            for target, manifest in staged:
                await sql.execute(output_records.set_staged(target, 1, manifest))

        assert (await self.staging.guard.do(key, None, body, **clock())).kind == "done"
        publisher = OutputPublisher(
            self.staging.settings, self.staging.guard.engine, self.staging.invocation("confirm", step=step)
        )
        outcomes = []
        for _ in outputs:  # in an Iceberg table each attempt publishes one of them
            outcomes.append(await self.staging.guard.confirm(key, await publisher.publish(), **clock()))
        assert outcomes[-1].kind == "done", outcomes

    async def undo(self, step: str, undone_steps: Sequence[str] | None = None) -> Any:
        invocation = self.staging.invocation("undo", step=step)
        assert invocation.guard is not None
        guard = replace(invocation.guard, undone_steps=None if undone_steps is None else tuple(undone_steps))
        publisher = OutputPublisher(self.staging.settings, self.staging.guard.engine, replace(invocation, guard=guard))
        body = await publisher.revert(confirmed=True)
        return await self.staging.guard.undo(EntryKey(self.staging.saga, step, 1), None, confirmed_body=body, **clock())


@pytest.fixture
def lake(server: DatabaseServer, tmp_path: Path) -> Iterator[Lake]:
    with open_lake("sql", server, tmp_path / "lake") as opened:
        yield opened


@pytest_asyncio.fixture
async def places(server: DatabaseServer, tmp_path: Path, lake: Lake) -> AsyncIterator[Places]:
    warehouse = open_warehouse(server, tmp_path, "create table facts (id int, p text); insert into facts values (9)")
    staging = await open_staging(tmp_path, f"sqlite:///{tmp_path / 'day_close.db'}")
    more = {"catalogs": lake.settings.catalogs, "connections": warehouse.settings.connections}
    yield Places(replace(staging, settings=staging.settings.model_copy(update=more)), warehouse, lake)
    await staging.databases.close()


TABLE = {"connection": "shop", "table": "facts"}
LAKE = {"table": "lake.sales.facts"}


@pytest.mark.asyncio
async def test_the_outputs_of_one_step_are_reverted_in_reverse_order(places: Places) -> None:
    await places.publish("a", {"x": {**TABLE, "mode": "append"}, "y": {**TABLE, "mode": "overwrite"}})
    assert places.warehouse.rows("facts") == ["(2,y)"]
    assert (await places.undo("a")).kind == "done"
    assert places.warehouse.rows("facts") == ["(9,)"]


@pytest.mark.asyncio
async def test_the_outputs_of_one_step_in_an_iceberg_table(places: Places) -> None:
    places.lake.publish(places.lake.staged(some(9), saga="old"))
    await places.publish("a", {"x": {**LAKE, "mode": "append"}, "y": {**LAKE, "mode": "overwrite"}})
    assert places.lake.ids() == [2]
    assert (await places.undo("a")).kind == "done"
    assert places.lake.ids() == [9]


@pytest.mark.asyncio
@pytest.mark.parametrize("spec", [TABLE, pytest.param(LAKE, marks=pytest.mark.slow)])
async def test_the_undo_of_a_parallel_step_waits_for_that_of_a_later_one(places: Places, spec: dict[str, Any]) -> None:
    places.lake.publish(places.lake.staged(some(9), saga="old"))
    await places.publish("a", {"x": {**spec, "mode": "append"}})
    await places.publish("b", {"y": {**spec, "mode": "overwrite"}})
    early = await places.undo("a")
    assert (early.kind, early.infrastructure, early.retryable) == ("failed", True, True)
    assert "b has published to the same place later" in str(early.failure)
    assert (await places.undo("b")).kind == "done"
    assert (await places.undo("a")).kind == "done"
    assert (places.warehouse.rows("facts"), places.lake.ids()) == (["(9,)"], [9])


@pytest.mark.asyncio
async def test_the_undo_does_not_wait_for_a_step_that_stays(places: Places) -> None:
    await places.publish("a", {"x": {**TABLE, "mode": "append"}})
    await places.publish("b", {"y": {**TABLE, "mode": "overwrite"}})
    outcome = await places.undo("a", undone_steps=("a",))
    assert (outcome.kind, outcome.failure.type) == ("failed", "Parked")
    assert places.warehouse.rows("facts") == ["(1,y)"]
