"""Several attempts of one Spark step against one ledger: who deletes what, and who may still write."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa

from saga_activities.guard.tables import EntryKey, guard_table
from saga_spark import ledger
from saga_spark.job.job_spec import Output
from saga_spark.ledger import FencedOut, OutputRow, read_staged_files
from saga_spark.manifest import Target
from saga_spark.sinks.parquet import parquet_pointer
from saga_spark.sinks.parquet.parquet_pointer import PointerFolder
from saga_spark.staging import stage_area
from saga_spark.staging.publishing import OutputPublisher
from saga_spark.staging.stage_area import StageArea
from saga_spark.staging.staging_attempt import transaction
from sagas.errors import InfrastructureError
from tests.integration.spark.staged_outputs import stage
from tests.integration.spark.staging.staging_environment import Desk, Played, clock, open_desk


@pytest_asyncio.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    opened = await open_desk(tmp_path, f"sqlite:///{tmp_path / 'books.db'}")
    yield opened
    await opened.databases.close()


@pytest.mark.asyncio
async def test_an_attempt_that_was_overtaken_leaves_the_files_that_the_next_one_took_over(desk: Desk) -> None:
    """The first has staged and stands in its audit; the second reuses what is staged; then the first fails."""
    second = desk.attempt()

    async def overtaken() -> None:
        await second.run()
        raise InfrastructureError("the runner is gone")

    first = desk.attempt(Played(desk.settings, desk.saga, during={"audit": overtaken}))
    with pytest.raises(InfrastructureError):
        await first.run()
    [manifest] = second.manifests.values()
    assert manifest.epoch == 1  # the first one's
    assert StageArea(desk.settings.stage).is_complete(manifest)


@pytest.mark.asyncio
@pytest.mark.parametrize("state", ["STAGED", "PUBLISHED", "RETRACTED", "DISCARDED"])
async def test_an_attempt_that_begins_when_all_is_decided_changes_nothing(
    desk: Desk, state: ledger.OutputState
) -> None:
    """It has asked the guard long ago, was frozen, and wakes up: the row belongs to the sink's data by now."""
    await desk.done()
    async with transaction(desk.guard.engine) as connection:
        await connection.execute(ledger.set_state(Target(desk.saga, "facts", 1), state))
    before = await desk.row()
    late = Played(desk.settings, desk.saga)
    with pytest.raises(FencedOut):
        await desk.attempt(late).run()
    assert (await desk.row(), late.tasks) == (before, [])


@pytest.mark.asyncio
async def test_what_an_attempt_writes_after_the_clean_up_is_cleaned_up_too(desk: Desk) -> None:
    """The saga ended without it, and its attempt was only slow."""

    async def ended() -> None:
        await desk.clean()

    await desk.attempt(Played(desk.settings, desk.saga, during={"stage": ended})).run()
    await desk.clean()
    assert desk.files() == []


@pytest.mark.asyncio
async def test_rows_that_nothing_may_be_done_about_do_not_hold_up_the_clean_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_area, "CLEAN_UP_BATCH", 3)
    for number in range(8):
        await replace(desk, saga=f"terminated-{number}").done()
    await replace(desk, saga="over").done()
    async with transaction(desk.guard.engine) as connection:
        await connection.execute(ledger.set_state(Target("over", "facts", 1), "PUBLISHED"))

    async def life_of(saga_id: str) -> stage_area.SagaLiveness:
        return "over" if saga_id == "over" else "terminated"

    cleared = await stage_area.clean_up_stage(desk.guard.engine, desk.settings, life_of)
    assert [row.target.saga_id for row in cleared] == ["over"]


@pytest.mark.asyncio
async def test_deleting_one_generation_leaves_the_next(desk: Desk) -> None:
    """And the folder of both goes with the last of them."""
    for generation in (1, 2):
        await desk.done(generation)
    area, targets = StageArea(desk.settings.stage), [Target(desk.saga, "facts", number) for number in (1, 2)]
    area.remove_generation(targets[0])
    assert area.is_complete(_manifest(await desk.row(2)))
    area.remove_generation(targets[1])
    area.remove_generation(targets[1])
    assert desk.keys() == []


@pytest.mark.asyncio
async def test_what_an_earlier_run_left_staged_is_not_read_by_the_next(desk: Desk) -> None:
    """`--again` after a person has closed the first run with its staged output still there."""
    await desk.done(generation=1)
    await desk.done(generation=2)
    found = await read_staged_files(desk.guard.engine, desk.saga, "facts", None)
    assert found["files"] == [one.uri for one in _manifest(await desk.row(2)).files]


@pytest.mark.asyncio
async def test_what_an_earlier_run_left_staged_is_not_published_together_with_the_next(desk: Desk) -> None:
    for generation in (1, 2):
        await _stage_together(desk, "facts", generation)
    publishing = OutputPublisher(desk.settings, desk.guard.engine, desk.invocation("confirm", 2, together=True))
    rows = await publishing._load_rows(("STAGED", "PUBLISHED"))
    assert [row.target.generation for row in rows] == [2]


@pytest.mark.asyncio
async def test_undoing_one_step_leaves_what_another_one_has_staged(desk: Desk) -> None:
    """Both were to be published together; only one is undone."""
    await _stage_together(desk, "facts", 1)
    await _stage_together(desk, "totals", 1)
    publishing = OutputPublisher(
        desk.settings, desk.guard.engine, desk.invocation("undo", step="totals", together=True)
    )
    body = await publishing.unpublish(confirmed=False)
    outcome = await desk.guard.undo(EntryKey(desk.saga, "totals", 1), body, **clock())
    assert outcome.kind == "done", outcome
    facts = await desk.row(step="facts")
    assert (facts.state, (await desk.row(step="totals")).state) == ("STAGED", "DISCARDED")
    assert StageArea(desk.settings.stage).is_complete(_manifest(facts))


@pytest.mark.asyncio
async def test_what_an_undo_needs_is_kept_while_the_guard_remembers_the_saga(desk: Desk) -> None:
    """A saga may be open for months after it has published, and be undone then."""
    await desk.done()
    async with transaction(desk.guard.engine) as connection:
        await connection.execute(ledger.set_state(Target(desk.saga, "facts", 1), "PUBLISHED"))
    later = time.time() + 60
    assert await stage_area.drop_undo_data(desk.guard.engine, desk.settings, before=later) == []
    async with transaction(desk.guard.engine) as connection:
        await connection.execute(sa.delete(guard_table))
    assert len(await stage_area.drop_undo_data(desk.guard.engine, desk.settings, before=later)) == 1


@pytest.mark.asyncio
async def test_an_undo_that_others_hold_up_in_the_sink_is_not_given_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as trouble of the infrastructure, not as one of the attempts after which an undo parks."""
    monkeypatch.setattr(parquet_pointer, "LOCK_TIMEOUT", 0.1)
    await desk.done()
    address = EntryKey(desk.saga, "facts", 1)
    publish = await OutputPublisher(desk.settings, desk.guard.engine, desk.invocation("confirm")).publish()
    with PointerFolder(desk.place).locked():
        outcome = await desk.guard.confirm(address, publish, **clock())
        assert (outcome.kind, outcome.infrastructure, outcome.retryable) == ("failed", True, True)
    assert (await desk.guard.confirm(address, publish, **clock())).kind == "done"
    undoing = OutputPublisher(desk.settings, desk.guard.engine, desk.invocation("undo"))
    body = await undoing.unpublish(confirmed=True)
    with PointerFolder(desk.place).locked():
        outcome = await desk.guard.undo(address, None, confirmed_body=body, **clock())
        assert (outcome.kind, outcome.infrastructure, outcome.retryable) == ("failed", True, True)
    assert (await desk.guard.undo(address, None, confirmed_body=body, **clock())).kind == "done"
    assert (await desk.row()).state == "RETRACTED"


@pytest.mark.asyncio
async def test_an_item_is_compared_with_the_same_item_of_the_last_run(desk: Desk) -> None:
    async def run(saga: str, item: int, rows: int) -> int | None:
        runner = Played(desk.settings, saga, rows=rows)
        asked = replace(desk.invocation(step=f"facts#{item}"), saga_id=saga)
        attempt = desk.attempt(runner, invocation=asked)
        await attempt.run()
        target = Target(saga, f"facts#{item}", 1)
        for manifest in attempt.manifests.values():
            async with transaction(desk.guard.engine) as connection:
                await connection.execute(ledger.set_staged(target, 1, manifest))
                await connection.execute(ledger.set_state(target, "PUBLISHED"))
        return runner.asked["audit"]["previous_rows"]["output"]

    assert [await run("monday", item, rows) for item, rows in ((0, 3), (1, 7))] == [None, None]
    assert [await run("tuesday", item, rows) for item, rows in ((1, 8), (0, 2))] == [7, 3]
    assert [await run("wednesday", item, 1) for item in (0, 1, 2)] == [2, 8, None]


@pytest.mark.asyncio
async def test_a_job_does_not_see_what_only_the_audit_reads(desk: Desk) -> None:
    arguments = {
        **desk.invocation().arguments,
        "inputs": {"orders": {"parquet": "orders"}},
        "audit": [{"relationships": {"column": "id", "to": {"parquet": "products"}, "field": "id"}}],
    }
    runner = Played(desk.settings, desk.saga)
    await desk.attempt(runner, invocation=replace(desk.invocation(), arguments=arguments)).run()
    assert list(runner.asked["stage"]["inputs"]) == ["orders"]
    frozen = set(runner.asked["freeze"]["inputs"])
    assert len(frozen) == 2
    assert set(runner.asked["audit"]["inputs"]) == frozen


def _manifest(row: OutputRow) -> Any:
    assert row.manifest is not None
    return row.manifest


async def _stage_together(desk: Desk, step: str, generation: int) -> None:
    spec = {"parquet": f"out/{step}", "mode": "append"}
    made = stage(desk.settings, spec, [{"id": 1}], saga=f"{desk.saga}-{step}", generation=generation)
    target = Target(desk.saga, step, generation)

    async def body(sql: Any) -> None:
        await sql.execute(ledger.set_staged(target, 1, made.manifest))

    async with transaction(desk.guard.engine) as connection:
        place = Output.parse("output", spec).destination
        await ledger.take_over(connection, target, saga="day", place=place, spec=spec, together=True)
    outcome = await desk.guard.do(EntryKey(desk.saga, step, generation), None, body, **clock())
    assert outcome.kind == "done", outcome
