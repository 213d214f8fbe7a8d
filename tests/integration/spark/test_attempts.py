"""Several attempts of one Spark step against one ledger: who deletes what, and who may still write. The runner is
played by pyarrow: it writes the files a job would have written, and stands still where the test wants it."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa

from activities.attempt import Attempt
from activities.connections import Connections
from activities.guard import schema
from activities.guard.address import Address
from activities.guard.guard import Guard
from activities.guard.tables import guard
from sagas.errors import Infrastructure
from sagas.machine.commands import Guard as Asked
from sagas.wire import Invocation
from spark_steps import cleaning, ledger
from spark_steps.job import Output
from spark_steps.keys import Target
from spark_steps.ledger import OutputRow, Overtaken
from spark_steps.publishing import Publishing
from spark_steps.settings import SparkSettings
from spark_steps.sinks import parquet_folder
from spark_steps.sinks.parquet_folder import PointerFolder
from spark_steps.stage_area import StageArea
from spark_steps.staged_files import staged_files
from spark_steps.staging_attempt import StagingAttempt, transaction
from spark_steps.steps import _staged
from tests.integration.spark.staged import stage

Moment = Callable[[], Awaitable[None]]


@dataclass
class Played:
    """A runner: ``during`` is awaited when the task of that name begins."""

    settings: SparkSettings
    saga: str
    generation: int = 1
    during: Mapping[str, Moment] = field(default_factory=dict)
    rows: int = 1
    asked: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def tasks(self) -> list[str]:
        return list(self.asked)

    async def run(self, task: str, request: Mapping[str, Any], *, tag: str, on_progress: Any) -> dict[str, Any]:
        self.asked[task] = request
        answer: dict[str, Any] = {"verdict": "pass", "checks": [], "report": None}
        if task in self.during:
            await self.during[task]()
        if task == "freeze":
            answer = {"inputs": {name: {"format": "parquet", "files": []} for name in request["inputs"]}}
        if task == "stage":
            [(name, target)] = request["targets"].items()
            spec, rows = request["arguments"]["outputs"][name], [{"id": number} for number in range(self.rows)]
            epoch = target["epoch"]
            made = stage(self.settings, spec, rows, saga=self.saga, generation=self.generation, epoch=epoch)
            answer = {"manifests": {name: made.manifest.to_json()}}
        return answer


@dataclass
class Desk:
    """The ledger, the guard beside it, and a stage area."""

    settings: SparkSettings
    databases: Connections
    saga: str = "s1"

    @property
    def guard(self) -> Guard:
        return self.databases.guard("books")

    @property
    def place(self) -> Path:
        return self.settings.root / "out"

    def invocation(
        self, op: str = "do", generation: int = 1, step: str = "facts", together: bool = False
    ) -> Invocation:
        arguments: dict[str, Any] = {"job": "jobs:facts", "outputs": {"output": {"parquet": "out", "mode": "append"}}}
        if together:
            arguments["together"] = True
        guard = Asked("books")
        return Invocation("spark", arguments, f"{self.saga}/{step}", self.saga, step, op, generation, guard=guard)

    def attempt(
        self, runner: Played | None = None, generation: int = 1, invocation: Invocation | None = None
    ) -> StagingAttempt:
        now, quiet = time.time(), logging.getLogger("test")
        runner = runner or Played(self.settings, self.saga, generation)
        about = Attempt(1, now, now + 60, lambda _: None, quiet, saga="day")
        asked = invocation or self.invocation(generation=generation)
        return StagingAttempt(self.settings, self.guard.engine, runner, asked, about)

    async def done(self, generation: int = 1) -> None:
        """One whole attempt, with its `do` row."""
        attempt = self.attempt(generation=generation)
        await attempt.run()
        outcome = await self.guard.do(Address(self.saga, "facts", generation), None, _staged(attempt), **clock())
        assert outcome.kind == "done", outcome

    async def row(self, generation: int = 1, step: str = "facts") -> OutputRow:
        async with self.guard.engine.connect() as connection:
            found = (await connection.execute(ledger.of_step(self.saga, step, generation))).mappings().one()
        return OutputRow.read(found)

    async def clean(self, life: cleaning.Life = "over") -> list[OutputRow]:
        async def life_of(_: str) -> cleaning.Life:
            return life

        return await cleaning.clean(self.guard.engine, self.settings, life_of)

    def keys(self) -> list[Path]:
        """The folders of the stage area."""
        return list(Path(self.settings.stage.removeprefix("file://")).iterdir())

    def files(self) -> list[str]:
        """Everything in the stage area and below the place of the output."""
        folders = (Path(self.settings.stage.removeprefix("file://")), self.place)
        return [str(path) for folder in folders for path in folder.rglob("*.parquet")]


def clock() -> Any:
    return {"scheduled_at": time.time(), "deadline": time.time() + 60}


@pytest_asyncio.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    databases = Connections({"books": {"url": f"sqlite:///{tmp_path / 'books.db'}"}}, pool_size=5)
    await schema.create(databases.engine("books"))
    await ledger.create(databases.engine("books"))
    yield Desk(SparkSettings(tmp_path, stage=(tmp_path / "stage").as_uri(), ledger="books"), databases)
    await databases.close()


@pytest.mark.asyncio
async def test_an_attempt_that_was_overtaken_leaves_the_files_that_the_next_one_took_over(desk: Desk) -> None:
    """The first has staged and stands in its audit; the second reuses what is staged; then the first fails."""
    second = desk.attempt()

    async def overtaken() -> None:
        await second.run()
        raise Infrastructure("the runner is gone")

    first = desk.attempt(Played(desk.settings, desk.saga, during={"audit": overtaken}))
    with pytest.raises(Infrastructure):
        await first.run()
    [manifest] = second.manifests.values()
    assert manifest.epoch == 1  # the first one's
    assert StageArea(desk.settings.stage).is_whole(manifest)


@pytest.mark.asyncio
@pytest.mark.parametrize("state", ["STAGED", "PUBLISHED", "RETRACTED", "DISCARDED"])
async def test_an_attempt_that_begins_when_all_is_decided_changes_nothing(desk: Desk, state: ledger.State) -> None:
    """It has asked the guard long ago, was frozen, and wakes up: the row belongs to the sink's data by now."""
    await desk.done()
    async with transaction(desk.guard.engine) as connection:
        await connection.execute(ledger.settled(Target(desk.saga, "facts", 1), state))
    before = await desk.row()
    late = Played(desk.settings, desk.saga)
    with pytest.raises(Overtaken):
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
    monkeypatch.setattr(cleaning, "BATCH", 3)
    for number in range(8):
        await replace(desk, saga=f"terminated-{number}").done()
    await replace(desk, saga="over").done()
    async with transaction(desk.guard.engine) as connection:
        await connection.execute(ledger.settled(Target("over", "facts", 1), "PUBLISHED"))

    async def life_of(saga_id: str) -> cleaning.Life:
        return "over" if saga_id == "over" else "terminated"

    cleared = await cleaning.clean(desk.guard.engine, desk.settings, life_of)
    assert [row.target.saga_id for row in cleared] == ["over"]


@pytest.mark.asyncio
async def test_deleting_one_generation_leaves_the_next(desk: Desk) -> None:
    """And the folder of both goes with the last of them."""
    for generation in (1, 2):
        await desk.done(generation)
    area, targets = StageArea(desk.settings.stage), [Target(desk.saga, "facts", number) for number in (1, 2)]
    area.remove_generation(targets[0])
    assert area.is_whole(_manifest(await desk.row(2)))
    area.remove_generation(targets[1])
    area.remove_generation(targets[1])
    assert desk.keys() == []


@pytest.mark.asyncio
async def test_what_an_earlier_run_left_staged_is_not_read_by_the_next(desk: Desk) -> None:
    """`--again` after a person has closed the first run with its staged output still there."""
    await desk.done(generation=1)
    await desk.done(generation=2)
    found = await staged_files(desk.guard.engine, desk.saga, "facts", None)
    assert found["files"] == [one.uri for one in _manifest(await desk.row(2)).files]


@pytest.mark.asyncio
async def test_what_an_earlier_run_left_staged_is_not_published_together_with_the_next(desk: Desk) -> None:
    for generation in (1, 2):
        await _stage_together(desk, "facts", generation)
    publishing = Publishing(desk.settings, desk.guard.engine, desk.invocation("confirm", 2, together=True))
    rows = await publishing._rows(("STAGED", "PUBLISHED"))
    assert [row.target.generation for row in rows] == [2]


@pytest.mark.asyncio
async def test_undoing_one_step_leaves_what_another_one_has_staged(desk: Desk) -> None:
    """Both were to be published together; only one is undone."""
    await _stage_together(desk, "facts", 1)
    await _stage_together(desk, "totals", 1)
    publishing = Publishing(desk.settings, desk.guard.engine, desk.invocation("undo", step="totals", together=True))
    body = await publishing.take_back(confirmed=False)
    outcome = await desk.guard.undo(Address(desk.saga, "totals", 1), body, **clock())
    assert outcome.kind == "done", outcome
    facts = await desk.row(step="facts")
    assert (facts.state, (await desk.row(step="totals")).state) == ("STAGED", "DISCARDED")
    assert StageArea(desk.settings.stage).is_whole(_manifest(facts))


@pytest.mark.asyncio
async def test_what_an_undo_needs_is_kept_while_the_guard_remembers_the_saga(desk: Desk) -> None:
    """A saga may be open for months after it has published, and be undone then."""
    await desk.done()
    async with transaction(desk.guard.engine) as connection:
        await connection.execute(ledger.settled(Target(desk.saga, "facts", 1), "PUBLISHED"))
    later = time.time() + 60
    assert await cleaning.forget(desk.guard.engine, desk.settings, before=later) == []
    async with transaction(desk.guard.engine) as connection:
        await connection.execute(sa.delete(guard))
    assert len(await cleaning.forget(desk.guard.engine, desk.settings, before=later)) == 1


@pytest.mark.asyncio
async def test_an_undo_that_others_hold_up_in_the_sink_is_not_given_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as trouble of the infrastructure, not as one of the attempts after which an undo parks."""
    monkeypatch.setattr(parquet_folder, "LOCK_PATIENCE", 0.1)
    await desk.done()
    address = Address(desk.saga, "facts", 1)
    publish = await Publishing(desk.settings, desk.guard.engine, desk.invocation("confirm")).publish()
    with PointerFolder(desk.place).locked():
        outcome = await desk.guard.confirm(address, publish, **clock())
        assert (outcome.kind, outcome.infrastructure, outcome.retryable) == ("failed", True, True)
    assert (await desk.guard.confirm(address, publish, **clock())).kind == "done"
    undoing = Publishing(desk.settings, desk.guard.engine, desk.invocation("undo"))
    body = await undoing.take_back(confirmed=True)
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
                await connection.execute(ledger.staged(target, 1, manifest))
                await connection.execute(ledger.settled(target, "PUBLISHED"))
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
        await sql.execute(ledger.staged(target, 1, made.manifest))

    async with transaction(desk.guard.engine) as connection:
        place = Output.parse("output", spec).place
        await ledger.take_over(connection, target, saga="day", place=place, spec=spec, together=True)
    outcome = await desk.guard.do(Address(desk.saga, step, generation), None, body, **clock())
    assert outcome.kind == "done", outcome
