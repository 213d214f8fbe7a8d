"""One forward attempt of a `spark` step: take over, freeze the inputs, stage, audit, place. Nothing is visible yet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.attempt import Attempt
from saga_spark import ledger
from saga_spark.audit.sides import other_side, side_name
from saga_spark.job import Input, Job
from saga_spark.keys import Mark, Target
from saga_spark.ledger import OutputRow
from saga_spark.manifest import Manifest
from saga_spark.progress import Progress
from saga_spark.results import refusal, step_result
from saga_spark.settings import SparkSettings
from saga_spark.sinks.registry import sink_for, validate_together
from saga_spark.sinks.sink import Publication
from saga_spark.stage_area import StageArea
from saga_spark.staged_files import staged_files
from sagas.errors import Rejected
from sagas.wire import Invocation


class Runs(Protocol):
    """The runner, as far as an attempt needs it."""

    async def run(
        self, task: str, request: Mapping[str, Any], *, tag: str, on_progress: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any]: ...


class StagingAttempt:
    """Does the work of one attempt; afterwards ``manifests`` are ready and ``result`` is what the step answers."""

    def __init__(
        self, settings: SparkSettings, engine: AsyncEngine, runner: Runs, invocation: Invocation, attempt: Attempt
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._runner = runner
        self._invocation = invocation
        self._attempt = attempt
        self._area = StageArea(settings.stage)
        self._job = Job.parse(invocation.arguments)
        self._progress = Progress(attempt)
        self.rows: dict[str, OutputRow] = {}
        self.manifests: dict[str, Manifest] = {}
        self.result: dict[str, Any] = {}

    async def run(self) -> None:
        """Raises Rejected (the audit), UsageError, Infrastructure, JobFailed, Overtaken."""
        for output in self._job.outputs.values():
            sink_for(output.kind, self._settings).validate(output)
        if self._job.together:
            await asyncio.to_thread(validate_together, list(self._job.outputs.values()), self._settings)
        self.rows = await self._take_over()
        try:
            inputs = await self._inputs()
            await self._stage(inputs)
            report = await self._audit(inputs)
            await asyncio.to_thread(self._place)
            await self._still_ours()
        except BaseException:
            try:
                await self._leave_nothing()
            except (SQLAlchemyError, OSError) as error:
                self._attempt.logger.warning("what the attempt staged is left to the clean-up: %s", error)
            raise
        self.result = step_result(self.manifests, report)

    # ── the parts, in order ─────────────────────────────────────────────────────────────────────────────────

    async def _take_over(self) -> dict[str, OutputRow]:
        rows = {}
        async with transaction(self._engine) as connection:
            for name, output in self._job.outputs.items():
                rows[name] = await ledger.take_over(
                    connection,
                    self._target(name),
                    saga=self._attempt.saga,
                    place=place_of(output.connection, output.place),
                    spec=self._invocation.arguments["outputs"][name],
                    together=self._job.together,
                )
        return rows

    async def _inputs(self) -> Mapping[str, Any]:
        """The inputs as they were resolved by the first attempt that got so far; a retry reads the same rows."""
        first = next(iter(self.rows.values()))
        wanted = all_inputs(self._job)
        if first.inputs is not None or not wanted:
            return first.inputs or {}
        self._progress.say("reading the inputs")
        known = {}
        for name, one in wanted.items():
            if one.kind == "step":
                known[name] = await staged_files(
                    self._engine, self._invocation.saga_id, one.values["step"], one.values.get("output")
                )
        request = {
            "inputs": {name: {"kind": one.kind, "values": dict(one.values)} for name, one in wanted.items()},
            "folder": self._area.inputs(first.target, first.epoch),
            "known": known,
        }
        inputs = (await self._run("freeze", request))["inputs"]
        async with transaction(self._engine) as connection:
            await ledger.note(connection, first.target, first.epoch, inputs=inputs)
        return inputs

    async def _stage(self, inputs: Mapping[str, Any]) -> None:
        """Run the job, unless an attempt before this one has staged everything already."""
        known = {name: row.manifest for name, row in self.rows.items()}
        if all(one is not None for one in known.values()):
            manifests = {name: one for name, one in known.items() if one is not None}
            if all([await asyncio.to_thread(self._area.is_whole, one) for one in manifests.values()]):
                self._progress.say("an earlier attempt has staged the output")
                self.manifests = manifests
                return
        self._progress.say("running the job")
        request = {
            "arguments": dict(self._invocation.arguments),
            "inputs": {name: inputs[name] for name in self._job.inputs},  # not what only the audit reads
            "targets": {
                name: {
                    "folder": self._area.folder(row.target, row.epoch),
                    "key": row.target.key,
                    "generation": row.target.generation,
                    "epoch": row.epoch,
                }
                for name, row in self.rows.items()
            },
        }
        answer = await self._run("stage", request)
        self.manifests = {name: Manifest.from_json(one) for name, one in answer["manifests"].items()}
        async with transaction(self._engine) as connection:
            for name, row in self.rows.items():
                manifest = self.manifests[name].to_json()
                await ledger.note(connection, row.target, row.epoch, manifest=manifest, staged_epoch=row.epoch)

    async def _audit(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The report; a failed check refuses the output, which stays in the stage for people to look at."""
        problems = await asyncio.to_thread(self._problems)
        first = next(iter(self.rows.values()))
        self._progress.say("auditing")
        report = await self._run(
            "audit",
            {
                "arguments": dict(self._invocation.arguments),
                "manifests": {name: one.to_json() for name, one in self.manifests.items()},
                "inputs": inputs,
                "previous_rows": await self._previous_rows(),
                "sink_problems": problems,
                "report_folder": self._area.report(first.target, first.epoch),
                "saga": {"id": self._invocation.saga_id, "step": self._invocation.step},
            },
        )
        if report["verdict"] != "fail":
            return report
        async with transaction(self._engine) as connection:
            for row in self.rows.values():
                await ledger.note(
                    connection, row.target, row.epoch, state="QUARANTINED", report=report["report"]["html"]
                )
        sentence, details = refusal(report)
        raise Rejected(sentence, **details)

    def _problems(self) -> list[str]:
        found = []
        for publication in self.publications():
            found += sink_for(publication.output.kind, self._settings).check(publication)
        return found

    async def _previous_rows(self) -> dict[str, int | None]:
        found: dict[str, int | None] = {}
        async with self._engine.connect() as connection:
            for name, row in self.rows.items():
                found[name] = (await connection.execute(ledger.last_published(row))).scalar()
        return found

    def _place(self) -> None:
        for publication in self.publications():
            self._progress.say("bringing the rows to where they will live")
            sink_for(publication.output.kind, self._settings).place(publication)

    async def _still_ours(self) -> None:
        """Raises Overtaken. What was placed is to be cleaned up, even if a clean-up has passed by meanwhile."""
        async with transaction(self._engine) as connection:
            for row in self.rows.values():
                await ledger.note(connection, row.target, row.epoch)

    async def _leave_nothing(self) -> None:
        """Delete what this attempt alone has written; what the ledger names as staged stays: a refusal is looked at,
        and a later attempt that has taken over goes on with these very files."""
        asked = self._invocation
        query = ledger.of_step(asked.saga_id, asked.step, asked.generation)
        async with self._engine.connect() as connection:
            now = [OutputRow.read(one) for one in (await connection.execute(query)).mappings()]
        for row in self.rows.values():
            if not any(one.target == row.target and _keeps(one, row.epoch) for one in now):
                await asyncio.to_thread(self._area.remove, self._area.folder(row.target, row.epoch))

    # ── small helpers ───────────────────────────────────────────────────────────────────────────────────────

    def publications(self) -> list[Publication]:
        """What the sinks are told about this attempt."""
        return [
            Publication(
                self._job.outputs[name],
                manifest,
                Mark(self._target(name), manifest.epoch, manifest.sha, self._attempt.saga),
            )
            for name, manifest in self.manifests.items()
        ]

    def _target(self, output: str) -> Target:
        return Target(self._invocation.saga_id, self._invocation.step, self._invocation.generation, output)

    async def _run(self, task: str, request: Mapping[str, Any]) -> dict[str, Any]:
        first = next(iter(self.rows.values()))
        tag = f"{first.target.name}-e{first.epoch}"
        return await self._runner.run(task, request, tag=tag, on_progress=self._progress.add)


def _keeps(row: OutputRow, epoch: int) -> bool:
    """Does the ledger still name what was staged under this epoch?"""
    return row.manifest is not None and row.manifest.epoch == epoch


def all_inputs(job: Job) -> dict[str, Input]:
    """The inputs of the job and the other sides of its checks: all are read at one time, and a retry reads the same."""
    found = dict(job.inputs)
    for check in job.audit:
        side = other_side(check)
        if side is not None:
            found[side_name(check)] = Input.parse(check.name, side)
    return found


def place_of(connection: str | None, place: str) -> str:
    """How the ledger names a sink: ``lake.sales.facts``, ``shop:facts``."""
    return (f"{connection}:{place}" if connection else place)[:255]


@contextlib.asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A short transaction on a pool whose connections are in autocommit mode otherwise."""
    level = "SERIALIZABLE" if engine.dialect.name == "sqlite" else "READ COMMITTED"
    async with engine.execution_options(isolation_level=level).begin() as connection:
        yield connection
