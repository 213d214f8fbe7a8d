"""One forward attempt of a `spark` step: take over, freeze the inputs, stage, audit, prepare the sinks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from decimal import Decimal
from typing import Any, Protocol

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.attempt_context import AttemptContext
from saga_activities.guard.database_errors import message_of
from saga_spark import output_records
from saga_spark.job.job_spec import Input, Job, comparison_input, comparison_input_name
from saga_spark.manifest import CommitTag, Manifest, Target
from saga_spark.output_records import OutputRow
from saga_spark.settings import SparkSettings
from saga_spark.sinks.sink import Publication, sink_for, validate_together
from saga_spark.staged_input import read_staged_files
from saga_spark.staging.stage_area import StageArea
from sagas.errors import Rejected
from sagas.protocol.payloads import Invocation
from sagas.text.shortening import counted


class JobRunner(Protocol):
    """The part of the runner that an attempt needs."""

    async def run(
        self, task: str, request: Mapping[str, Any], *, tag: str, on_progress: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any]: ...


class StagingAttempt:
    """Performs one attempt; afterwards ``manifests`` are complete and ``result`` is the result of the step."""

    def __init__(
        self,
        settings: SparkSettings,
        engine: AsyncEngine,
        runner: JobRunner,
        invocation: Invocation,
        attempt: AttemptContext,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._runner = runner
        self._invocation = invocation
        self._attempt = attempt
        self._area = StageArea(settings.stage)
        self._job = Job.parse(invocation.arguments)
        self._progress = ProgressReporter(attempt)
        self.rows: dict[str, OutputRow] = {}
        self.manifests: dict[str, Manifest] = {}
        self.result: dict[str, Any] = {}

    async def run(self) -> None:
        """Raises Rejected (by the audit), UsageError (Unequipped: this machine lacks something), InfrastructureError,
        JobFailed, FencedOut.
        """
        for output in self._job.outputs.values():
            sink_for(output.kind, self._settings).validate(output)
        if self._job.together:
            await asyncio.to_thread(validate_together, list(self._job.outputs.values()), self._settings)
        self.rows = await self._take_over()
        try:
            inputs = await self._freeze_inputs()
            await self._stage(inputs)
            report = await self._audit(inputs)
            await asyncio.to_thread(self._prepare_sinks)
            await self._check_not_fenced_out()
        except BaseException:
            try:
                await self._delete_unreferenced_files()
            except (SQLAlchemyError, OSError) as error:
                self._attempt.logger.warning("staged files not deleted, left to the clean-up: %s", message_of(error))
            raise
        self.result = step_result(self.manifests, report)

    # ── phases, in order ────────────────────────────────────────────────────────────────────────────────────────

    async def _take_over(self) -> dict[str, OutputRow]:
        rows = {}
        async with transaction(self._engine) as connection:
            for name, output in self._job.outputs.items():
                rows[name] = await output_records.take_over(
                    connection,
                    self._target(name),
                    saga=self._attempt.saga,
                    place=destination_label(output.connection, output.destination),
                    spec=self._invocation.arguments["outputs"][name],
                    together=self._job.together,
                )
        return rows

    async def _freeze_inputs(self) -> Mapping[str, Any]:
        """The inputs as resolved by the first attempt that got this far; a retry reads the same rows."""
        first = next(iter(self.rows.values()))
        to_freeze = inputs_to_freeze(self._job)
        if first.inputs is not None or not to_freeze:
            return first.inputs or {}
        self._progress.begin_phase("reading the inputs")
        manifests = {}
        for name, source in to_freeze.items():
            if source.kind == "step":
                manifests[name] = await read_staged_files(
                    self._engine, self._invocation.saga_id, source.options["step"], source.options.get("output")
                )
        request = {
            "inputs": {
                name: {"kind": source.kind, "values": dict(source.options)} for name, source in to_freeze.items()
            },
            "folder": self._area.inputs_folder(first.target, first.epoch),
            "known": manifests,
        }
        inputs = (await self._run_task("freeze", request))["inputs"]
        async with transaction(self._engine) as connection:
            await output_records.update_row(connection, first.target, first.epoch, inputs=inputs)
        return inputs

    async def _stage(self, inputs: Mapping[str, Any]) -> None:
        """Run the job, unless an earlier attempt has staged everything already."""
        published = {name: row.manifest for name, row in self.rows.items()}
        if all(manifest is not None for manifest in published.values()):
            manifests = {name: manifest for name, manifest in published.items() if manifest is not None}
            if all([await asyncio.to_thread(self._area.is_complete, manifest) for manifest in manifests.values()]):
                self._progress.begin_phase("reusing the output staged by an earlier attempt")
                self.manifests = manifests
                return
        self._progress.begin_phase("running the job")
        request = {
            "arguments": dict(self._invocation.arguments),
            "inputs": {name: inputs[name] for name in self._job.inputs},  # without those that only the audit reads
            "targets": {
                name: {
                    "folder": self._area.attempt_folder(row.target, row.epoch),
                    "key": row.target.publish_key,
                    "generation": row.target.generation,
                    "epoch": row.epoch,
                }
                for name, row in self.rows.items()
            },
        }
        answer = await self._run_task("stage", request)
        self.manifests = {name: Manifest.from_json(manifest) for name, manifest in answer["manifests"].items()}
        async with transaction(self._engine) as connection:
            for name, row in self.rows.items():
                manifest = self.manifests[name].to_json()
                await output_records.update_row(
                    connection, row.target, row.epoch, manifest=manifest, staged_epoch=row.epoch
                )

    async def _audit(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The report. A failed check rejects the output, whose files stay in the stage area for inspection."""
        problems = await asyncio.to_thread(self._sink_problems)
        first = next(iter(self.rows.values()))
        self._progress.begin_phase("auditing")
        report = await self._run_task(
            "audit",
            {
                "arguments": dict(self._invocation.arguments),
                "manifests": {name: manifest.to_json() for name, manifest in self.manifests.items()},
                "inputs": inputs,
                "previous_rows": await self._previous_rows(),
                "sink_problems": problems,
                "report_folder": self._area.report_folder(first.target, first.epoch),
                "saga": {"id": self._invocation.saga_id, "step": self._invocation.entry},
            },
        )
        if report["verdict"] != "fail":
            return report
        async with transaction(self._engine) as connection:
            for row in self.rows.values():
                await output_records.update_row(
                    connection, row.target, row.epoch, state="QUARANTINED", report=report["report"]["html"]
                )
        message, details = audit_rejection(report)
        raise Rejected(message, **details)

    def _sink_problems(self) -> list[str]:
        problems = []
        for publication in self.publications():
            problems += sink_for(publication.output.kind, self._settings).check(publication)
        return problems

    async def _previous_rows(self) -> dict[str, int | None]:
        previous: dict[str, int | None] = {}
        async with self._engine.connect() as connection:
            for name, row in self.rows.items():
                previous[name] = (await connection.execute(output_records.select_last_row_count(row))).scalar()
        return previous

    def _prepare_sinks(self) -> None:
        for publication in self.publications():
            self._progress.begin_phase("preparing the destination")
            sink_for(publication.output.kind, self._settings).prepare(publication)

    async def _check_not_fenced_out(self) -> None:
        """Raises FencedOut. The row is marked for clean-up again, even if a clean-up has run in the meantime."""
        async with transaction(self._engine) as connection:
            for row in self.rows.values():
                await output_records.update_row(connection, row.target, row.epoch)

    async def _delete_unreferenced_files(self) -> None:
        """Delete what only this attempt has written.

        What is recorded as staged stays: rejected output is kept for inspection, and a later attempt that has
        taken over continues with these files.
        """
        invocation = self._invocation
        query = output_records.select_outputs_of_step(invocation.saga_id, invocation.entry, invocation.generation)
        async with self._engine.connect() as connection:
            current_rows = [OutputRow.from_row(current) for current in (await connection.execute(query)).mappings()]
        for row in self.rows.values():
            if not any(current.target == row.target and _references(current, row.epoch) for current in current_rows):
                await asyncio.to_thread(self._area.remove_folder, self._area.attempt_folder(row.target, row.epoch))

    # ── helpers ─────────────────────────────────────────────────────────────────────────────────────────────────

    def publications(self) -> list[Publication]:
        """The publications of this attempt, as the sinks take them."""
        return [
            Publication(
                self._job.outputs[name],
                manifest,
                CommitTag(self._target(name), manifest.epoch, manifest.sha, self._attempt.saga),
            )
            for name, manifest in self.manifests.items()
        ]

    def _target(self, output: str) -> Target:
        return Target(self._invocation.saga_id, self._invocation.entry, self._invocation.generation, output)

    async def _run_task(self, task: str, request: Mapping[str, Any]) -> dict[str, Any]:
        first = next(iter(self.rows.values()))
        tag = f"{first.target.name}-e{first.epoch}"
        return await self._runner.run(task, request, tag=tag, on_progress=self._progress.update)


def _references(row: OutputRow, epoch: int) -> bool:
    """Return whether the output record still refers to what was staged under this epoch."""
    return row.manifest is not None and row.manifest.epoch == epoch


def inputs_to_freeze(job: Job) -> dict[str, Input]:
    """The inputs of the job and of its checks: all are read at one time, and a retry reads the same."""
    inputs = dict(job.inputs)
    for check in job.audit:
        side = comparison_input(check)
        if side is not None:
            inputs[comparison_input_name(check)] = Input.parse(check.name, side)
    return inputs


def destination_label(connection: str | None, destination: str) -> str:
    """The name of a destination in its output record: ``lake.sales.facts``, ``shop:facts``."""
    return (f"{connection}:{destination}" if connection else destination)[:255]


@contextlib.asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A short transaction on a pool whose connections are otherwise in autocommit mode."""
    level = "SERIALIZABLE" if engine.dialect.name == "sqlite" else "READ COMMITTED"
    async with engine.execution_options(isolation_level=level).begin() as connection:
        yield connection


# The result of a `spark` step: small numbers, never rows.
def step_result(manifests: Mapping[str, Manifest], report: Mapping[str, Any]) -> dict[str, Any]:
    """The result of the forward step. With a single output its fields are also at the top level: ``result.rows``."""
    outputs = {name: _output_summary(manifest) for name, manifest in manifests.items()}
    result: dict[str, Any] = {"outputs": outputs}
    if len(outputs) == 1:
        result.update(next(iter(outputs.values())))
    warnings = [check["message"] for check in report.get("checks", ()) if check["status"] == "warn"]
    result["audit"] = {"verdict": report.get("verdict", "pass"), "warnings": warnings[:20]}
    if report.get("report"):
        result["audit"]["report"] = report["report"]["html"]
    return result


def _output_summary(manifest: Manifest) -> dict[str, Any]:
    return {
        "rows": manifest.rows,
        "bytes": manifest.bytes,
        "files": len(manifest.files),
        "hash": manifest.hash,
        "columns": {
            column.name: {"nulls": column.nulls, **({} if column.sum is None else {"sum": Decimal(column.sum)})}
            for column in manifest.columns[:100]
        },
    }


MAX_NAMED_CHECKS = 3
"""Failed checks that the message of a rejection quotes; its details have more, and the report all."""


def _check_name(check: Mapping[str, Any]) -> str:
    return check["name"] if check["output"] == "output" else f"{check['name']} of {check['output']}"


def audit_rejection(report: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The message and the details of a rejection by the audit."""
    failed = [check for check in report["checks"] if check["status"] == "fail"]
    shown = [f"{check['message']} ({_check_name(check)})" for check in failed[:MAX_NAMED_CHECKS]]
    if len(failed) > MAX_NAMED_CHECKS:
        shown.append(f"and {counted(len(failed) - MAX_NAMED_CHECKS, 'more check')}")
    message = f"the audit rejected the output: {'; '.join(shown)}"
    details = {
        "checks": [
            {name: check[name] for name in ("name", "kind", "output", "message")} | {"samples": check["samples"][:3]}
            for check in failed[:10]
        ],
        "report": (report.get("report") or {}).get("html"),
    }
    return message, details


class ProgressReporter:
    """Reports the current phase of an attempt and the progress within it."""

    def __init__(self, attempt: AttemptContext) -> None:
        self._attempt = attempt
        self._values: dict[str, Any] = {}

    def begin_phase(self, phase: str) -> None:
        """Begin the next phase."""
        self._values = {"doing": phase}
        self._attempt.heartbeat(self._values)

    def update(self, values: Mapping[str, Any]) -> None:
        """Report progress within the phase."""
        self._values = {**self._values, **values}
        self._attempt.heartbeat(self._values)
