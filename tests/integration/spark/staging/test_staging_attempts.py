"""Several attempts of one Spark step against one ledger: which deletes what, and which may still write."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa

from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.tables import guard_table
from saga_spark import output_records
from saga_spark.job.job_spec import Output
from saga_spark.manifest import Target
from saga_spark.output_records import FencedOut, OutputRow
from saga_spark.sinks.parquet import parquet_pointer
from saga_spark.sinks.parquet.parquet_pointer import PointerFolder
from saga_spark.staged_input import read_staged_files
from saga_spark.staging import stage_clean_up
from saga_spark.staging.publishing import OutputPublisher
from saga_spark.staging.stage_area import StageArea
from saga_spark.staging.staging_attempt import transaction
from sagas.errors import InfrastructureError
from tests.integration.spark.staged_outputs import stage
from tests.integration.spark.staging.staging_environment import FakeRunner, StagingEnvironment, clock, open_staging


@pytest_asyncio.fixture
async def staging(tmp_path: Path) -> AsyncIterator[StagingEnvironment]:
    opened = await open_staging(tmp_path, f"sqlite:///{tmp_path / 'day_close.db'}")
    yield opened
    await opened.databases.close()


@pytest.mark.asyncio
async def test_a_superseded_attempt_keeps_the_files_of_its_successor(
    staging: StagingEnvironment,
) -> None:
    """The first has staged and is in its audit; the second reuses the staged files; then the first fails."""
    second = staging.attempt()

    async def overtaken() -> None:
        await second.run()
        raise InfrastructureError("the runner is gone")

    first = staging.attempt(FakeRunner(staging.settings, staging.saga, during={"audit": overtaken}))
    with pytest.raises(InfrastructureError):
        await first.run()
    [manifest] = second.manifests.values()
    assert manifest.epoch == 1  # the first one's
    assert StageArea(staging.settings.stage).is_complete(manifest)


@pytest.mark.asyncio
@pytest.mark.parametrize("state", ["STAGED", "PUBLISHED", "REVERTED", "DISCARDED"])
async def test_an_attempt_after_the_decision_changes_nothing(
    staging: StagingEnvironment, state: output_records.OutputState
) -> None:
    """The attempt queried the guard earlier, was frozen, and resumes: the row is already linked to the sink's data."""
    await staging.done()
    async with transaction(staging.guard.engine) as connection:
        await connection.execute(output_records.set_state(Target(staging.saga, "facts", 1), state))
    before = await staging.row()
    late = FakeRunner(staging.settings, staging.saga)
    with pytest.raises(FencedOut):
        await staging.attempt(late).run()
    assert (await staging.row(), late.tasks) == (before, [])


@pytest.mark.asyncio
async def test_files_written_after_the_clean_up_are_cleaned_up(staging: StagingEnvironment) -> None:
    """The saga ended without it, and its attempt was only slow."""

    async def ended() -> None:
        await staging.clean()

    await staging.attempt(FakeRunner(staging.settings, staging.saga, during={"stage": ended})).run()
    await staging.clean()
    assert staging.files() == []


@pytest.mark.asyncio
async def test_rows_that_must_stay_do_not_block_the_clean_up(
    staging: StagingEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_clean_up, "CLEAN_UP_BATCH", 3)
    for number in range(8):
        await replace(staging, saga=f"terminated-{number}").done()
    await replace(staging, saga="over").done()
    async with transaction(staging.guard.engine) as connection:
        await connection.execute(output_records.set_state(Target("over", "facts", 1), "PUBLISHED"))

    async def life_of(saga_id: str) -> stage_clean_up.SagaLiveness:
        return "over" if saga_id == "over" else "terminated"

    cleared = await stage_clean_up.clean_up_stage(staging.guard.engine, staging.settings, life_of)
    assert [row.target.saga_id for row in cleared] == ["over"]


@pytest.mark.asyncio
async def test_deleting_one_generation_leaves_the_next(staging: StagingEnvironment) -> None:
    """The folder of both generations is deleted with the last of them."""
    for generation in (1, 2):
        await staging.done(generation)
    area, targets = StageArea(staging.settings.stage), [Target(staging.saga, "facts", number) for number in (1, 2)]
    area.remove_generation(targets[0])
    assert area.is_complete(_manifest(await staging.row(2)))
    area.remove_generation(targets[1])
    area.remove_generation(targets[1])
    assert staging.keys() == []


@pytest.mark.asyncio
async def test_staged_files_of_an_earlier_run_are_not_read(staging: StagingEnvironment) -> None:
    """`--again` after an operator has closed the first run with its staged output still present."""
    await staging.done(generation=1)
    await staging.done(generation=2)
    staged_files = await read_staged_files(staging.guard.engine, staging.saga, "facts", None)
    assert staged_files["files"] == [file.uri for file in _manifest(await staging.row(2)).files]


@pytest.mark.asyncio
async def test_staged_files_of_an_earlier_run_are_not_published(
    staging: StagingEnvironment,
) -> None:
    for generation in (1, 2):
        await _stage_together(staging, "facts", generation)
    publishing = OutputPublisher(
        staging.settings, staging.guard.engine, staging.invocation("confirm", 2, together=True)
    )
    rows = await publishing._load_rows(("STAGED", "PUBLISHED"))
    assert [row.target.generation for row in rows] == [2]


@pytest.mark.asyncio
async def test_undoing_one_step_keeps_the_staged_files_of_another(staging: StagingEnvironment) -> None:
    """Both were to be published together; only one is undone."""
    await _stage_together(staging, "facts", 1)
    await _stage_together(staging, "totals", 1)
    publishing = OutputPublisher(
        staging.settings, staging.guard.engine, staging.invocation("undo", step="totals", together=True)
    )
    body = await publishing.revert(confirmed=False)
    outcome = await staging.guard.undo(EntryKey(staging.saga, "totals", 1), body, **clock())
    assert outcome.kind == "done", outcome
    facts = await staging.row(step="facts")
    assert (facts.state, (await staging.row(step="totals")).state) == ("STAGED", "DISCARDED")
    assert StageArea(staging.settings.stage).is_complete(_manifest(facts))


@pytest.mark.asyncio
async def test_undo_data_is_kept_while_the_guard_has_the_saga(staging: StagingEnvironment) -> None:
    """A saga may be open for months after it has published, and be undone then."""
    await staging.done()
    async with transaction(staging.guard.engine) as connection:
        await connection.execute(output_records.set_state(Target(staging.saga, "facts", 1), "PUBLISHED"))
    later = time.time() + 60
    assert await stage_clean_up.drop_undo_data(staging.guard.engine, staging.settings, before=later) == []
    async with transaction(staging.guard.engine) as connection:
        await connection.execute(sa.delete(guard_table))
    assert len(await stage_clean_up.drop_undo_data(staging.guard.engine, staging.settings, before=later)) == 1


@pytest.mark.asyncio
async def test_an_undo_blocked_in_the_sink_is_retried(
    staging: StagingEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blocked undo counts as an infrastructure failure, not as one of the attempts after which an undo parks."""
    monkeypatch.setattr(parquet_pointer, "LOCK_TIMEOUT", 0.1)
    await staging.done()
    address = EntryKey(staging.saga, "facts", 1)
    publish = await OutputPublisher(staging.settings, staging.guard.engine, staging.invocation("confirm")).publish()
    with PointerFolder(staging.place).locked():
        outcome = await staging.guard.confirm(address, publish, **clock())
        assert (outcome.kind, outcome.infrastructure, outcome.retryable) == ("failed", True, True)
    assert (await staging.guard.confirm(address, publish, **clock())).kind == "done"
    undoing = OutputPublisher(staging.settings, staging.guard.engine, staging.invocation("undo"))
    body = await undoing.revert(confirmed=True)
    with PointerFolder(staging.place).locked():
        outcome = await staging.guard.undo(address, None, confirmed_body=body, **clock())
        assert (outcome.kind, outcome.infrastructure, outcome.retryable) == ("failed", True, True)
    assert (await staging.guard.undo(address, None, confirmed_body=body, **clock())).kind == "done"
    assert (await staging.row()).state == "REVERTED"


@pytest.mark.asyncio
async def test_an_item_is_compared_with_the_same_item_of_the_last_run(staging: StagingEnvironment) -> None:
    async def run(saga: str, item: int, rows: int) -> int | None:
        runner = FakeRunner(staging.settings, saga, rows=rows)
        asked = replace(staging.invocation(step=f"facts#{item}"), saga_id=saga)
        attempt = staging.attempt(runner, invocation=asked)
        await attempt.run()
        target = Target(saga, f"facts#{item}", 1)
        for manifest in attempt.manifests.values():
            async with transaction(staging.guard.engine) as connection:
                await connection.execute(output_records.set_staged(target, 1, manifest))
                await connection.execute(output_records.set_state(target, "PUBLISHED"))
        return runner.asked["audit"]["previous_rows"]["output"]

    assert [await run("monday", item, rows) for item, rows in ((0, 3), (1, 7))] == [None, None]
    assert [await run("tuesday", item, rows) for item, rows in ((1, 8), (0, 2))] == [7, 3]
    assert [await run("wednesday", item, 1) for item in (0, 1, 2)] == [2, 8, None]
    assert [await run("thursday", item, 0) for item in (0, 3)] == [1, None]
    assert [await run("friday", item, 0) for item in (0, 3)] == [1, None], "empty publications are passed over"


@pytest.mark.asyncio
async def test_a_job_does_not_see_audit_only_inputs(staging: StagingEnvironment) -> None:
    arguments = {
        **staging.invocation().arguments,
        "inputs": {"orders": {"parquet": "orders"}},
        "audit": [{"relationships": {"column": "id", "to": {"parquet": "products"}, "field": "id"}}],
    }
    runner = FakeRunner(staging.settings, staging.saga)
    await staging.attempt(runner, invocation=replace(staging.invocation(), arguments=arguments)).run()
    assert list(runner.asked["stage"]["inputs"]) == ["orders"]
    frozen = set(runner.asked["freeze"]["inputs"])
    assert len(frozen) == 2
    assert set(runner.asked["audit"]["inputs"]) == frozen


def _manifest(row: OutputRow) -> Any:
    assert row.manifest is not None
    return row.manifest


async def _stage_together(staging: StagingEnvironment, step: str, generation: int) -> None:
    spec = {"parquet": f"out/{step}", "mode": "append"}
    made = stage(staging.settings, spec, [{"id": 1}], saga=f"{staging.saga}-{step}", generation=generation)
    target = Target(staging.saga, step, generation)

    async def body(sql: Any) -> None:
        await sql.execute(output_records.set_staged(target, 1, made.manifest))

    async with transaction(staging.guard.engine) as connection:
        place = Output.parse("output", spec).destination
        await output_records.take_over(connection, target, saga="day", place=place, spec=spec, together=True)
    outcome = await staging.guard.do(EntryKey(staging.saga, step, generation), None, body, **clock())
    assert outcome.kind == "done", outcome
