"""One ledger with its guard and a stage area, and a fake runner with pyarrow: it writes the files a job would write,
and stops where a test wants it. No JVM."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saga_activities.attempt_context import AttemptContext
from saga_activities.connections import DatabaseConnections
from saga_activities.guard import schema
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.guard import Guard
from saga_spark import output_records
from saga_spark.actions import _record_staged
from saga_spark.output_records import OutputRow
from saga_spark.settings import SparkSettings
from saga_spark.staging import stage_clean_up
from saga_spark.staging.staging_attempt import StagingAttempt
from sagas.protocol.messages import GuardSpec as Asked
from sagas.protocol.payloads import Invocation
from sagas.settings import SqlConnection
from tests.integration.spark.staged_outputs import stage

Hook = Callable[[], Awaitable[None]]


@dataclass
class FakeRunner:
    """A runner: ``during`` is awaited when the task of that name begins."""

    settings: SparkSettings
    saga: str
    generation: int = 1
    during: Mapping[str, Hook] = field(default_factory=dict)
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
class StagingEnvironment:
    """The ledger, its guard, and a stage area."""

    settings: SparkSettings
    databases: DatabaseConnections
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
        self, runner: FakeRunner | None = None, generation: int = 1, invocation: Invocation | None = None
    ) -> StagingAttempt:
        now, quiet = time.time(), logging.getLogger("test")
        runner = runner or FakeRunner(self.settings, self.saga, generation)
        about = AttemptContext(1, now, now + 60, lambda _: None, quiet, saga="day")
        asked = invocation or self.invocation(generation=generation)
        return StagingAttempt(self.settings, self.guard.engine, runner, asked, about)

    async def done(self, generation: int = 1) -> None:
        """One whole attempt, with its `do` row."""
        attempt = self.attempt(generation=generation)
        await attempt.run()
        outcome = await self.guard.do(
            EntryKey(self.saga, "facts", generation), None, _record_staged(attempt), **clock()
        )
        assert outcome.kind == "done", outcome

    async def row(self, generation: int = 1, step: str = "facts") -> OutputRow:
        async with self.guard.engine.connect() as connection:
            record = (
                (await connection.execute(output_records.select_outputs_of_step(self.saga, step, generation)))
                .mappings()
                .one()
            )
        return OutputRow.from_row(record)

    async def clean(self, life: stage_clean_up.SagaLiveness = "over") -> list[OutputRow]:
        async def life_of(_: str) -> stage_clean_up.SagaLiveness:
            return life

        return await stage_clean_up.clean_up_stage(self.guard.engine, self.settings, life_of)

    def keys(self) -> list[Path]:
        """The folders of the stage area."""
        return list(Path(self.settings.stage.removeprefix("file://")).iterdir())

    def files(self) -> list[str]:
        """Everything in the stage area and below the location of the output."""
        folders = (Path(self.settings.stage.removeprefix("file://")), self.place)
        return [str(path) for folder in folders for path in folder.rglob("*.parquet")]


def clock() -> Any:
    return {"scheduled_at": time.time(), "deadline": time.time() + 60}


async def open_staging(folder: Path, url: str) -> StagingEnvironment:
    """Make the tables in the database of the URL, and a stage area in the folder."""
    databases = DatabaseConnections([SqlConnection(name="books", url_setting=url)], pool_size=5)
    await schema.create_tables(databases.engine("books"))
    await output_records.create_table(databases.engine("books"))
    return StagingEnvironment(SparkSettings(root=folder, stage=(folder / "stage").as_uri(), ledger="books"), databases)
