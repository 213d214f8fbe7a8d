"""The built-in actions `spark` and `reconcile` as a worker runs them."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from saga_activities.attempt_context import ActionBody, AttemptContext
from saga_activities.connections import DatabaseConnections
from saga_activities.guard.sql_session import SqlSession
from saga_spark import output_records
from saga_spark.job.job_spec import Input
from saga_spark.output_records import FencedOut
from saga_spark.reconcile.reconcile_spec import ComparisonSpec
from saga_spark.runner.runner_client import RunnerClient
from saga_spark.settings import SparkSettings
from saga_spark.staged_input import read_staged_files
from saga_spark.staging.publishing import OutputPublisher
from saga_spark.staging.stage_area import StageArea
from saga_spark.staging.staging_attempt import JobRunner, ProgressReporter, StagingAttempt
from sagas.builtins.spark import PUBLISH, RECONCILE, REVERT, SPARK
from sagas.builtins.sql_places import check_sql
from sagas.errors import Rejected, Unequipped
from sagas.protocol.payloads import RECORD_RESULT, Invocation


class SparkSteps:
    """Prepares Spark steps (a :class:`~saga_activities.dispatcher.PreparedAction`). The first job starts the runner."""

    def __init__(self, settings: SparkSettings, databases: DatabaseConnections) -> None:
        self._settings = settings
        self._databases = databases
        self._runner = RunnerClient(settings)

    async def prepare(self, action: str, invocation: Invocation, attempt: AttemptContext) -> ActionBody:
        if invocation.guard is None:
            raise Unequipped(f"{action} needs a database for its output records; set [spark] ledger in saga.toml")
        engine = self._databases.engine(invocation.guard.connection)
        if action == SPARK:
            staging_attempt = StagingAttempt(self._settings, engine, self._runner, invocation, attempt)
            await staging_attempt.run()
            return _record_staged(staging_attempt)
        publisher = OutputPublisher(self._settings, engine, invocation)
        if action == RECORD_RESULT:
            return await publisher.close(invocation.arguments["closes"]["decision"])
        ProgressReporter(attempt).begin_phase("publishing" if action == PUBLISH else "reverting")
        if action == PUBLISH:
            return await publisher.publish()
        return await publisher.revert(confirmed=action == REVERT)

    async def read(self, invocation: Invocation, attempt: AttemptContext) -> Any:

        async def staged(step: str, output: str | None) -> Mapping[str, Any]:
            if self._settings.ledger is None:
                raise Unequipped("staged output is found by its output records; set [spark] ledger in saga.toml")
            engine = self._databases.engine(self._settings.ledger)
            return await read_staged_files(engine, invocation.saga_id, step, output)

        return await reconcile_step(self._runner, self._settings, invocation.arguments, attempt, staged, invocation.key)

    async def close(self) -> None:
        await self._runner.close()


def _record_staged(staging: StagingAttempt) -> ActionBody:
    """The body that records the manifests in the transaction of the guard's `do` row, if the epoch is still current."""

    async def body(sql: SqlSession | None) -> dict[str, Any]:
        assert sql is not None
        for name, row in staging.rows.items():
            if await sql.execute(output_records.set_staged(row.target, row.epoch, staging.manifests[name])) != 1:
                raise FencedOut(f"another attempt has taken over the output {name} of {row.target.step}")
        return staging.result

    return body


# `uses: reconcile`: a step that is rejected when its two sides differ.
SIDES = ("left", "right")

SHOWN_SAMPLES = 3
"""Maximum number of differences whose values a rejection shows."""

StagedOutputReader = Callable[[str, str | None], Awaitable[Mapping[str, Any]]]
"""The files of a step's staged output: (step, output) → ``{"files": […]}``."""


async def reconcile_step(
    runner: JobRunner,
    settings: SparkSettings,
    arguments: Mapping[str, Any],
    attempt: AttemptContext,
    read_staged: StagedOutputReader | None = None,
    key: str = "",
) -> dict[str, Any]:
    """Returns the result of the step: verdict, counts, fingerprints and samples. ``key`` is the same for all attempts.

    Raises Rejected when the sides differ, unless ``severity`` is ``warn``; UsageError for invalid arguments.
    """
    ComparisonSpec.parse(arguments)
    check_sql(RECONCILE, arguments)
    sides = {name: Input.parse(name, arguments[name]) for name in SIDES}
    values: dict[str, Any] = {}
    for name, side in sides.items():
        if side.kind == "step" and read_staged is not None:
            values[name] = await read_staged(side.options["step"], side.options.get("output"))
    folder = f"{settings.stage}/reconcile/{uuid.uuid4().hex}"
    request = {
        "inputs": {name: {"kind": side.kind, "values": dict(side.options)} for name, side in sides.items()},
        "folder": folder,
        "known": values,
        "arguments": dict(arguments),
    }
    progress = ProgressReporter(attempt)
    progress.begin_phase("comparing")
    tag = f"reconcile-{hashlib.sha256(key.encode()).hexdigest()[:32]}-e{uuid.uuid4().int}"
    try:
        comparison = await runner.run("reconcile", request, tag=tag, on_progress=progress.update)
    finally:
        await asyncio.to_thread(StageArea(settings.stage).remove_folder, folder)
    if comparison["verdict"] == "different" and arguments.get("severity", "error") == "error":
        raise Rejected(
            comparison["message"], counts=comparison["counts"], samples=comparison["samples"][:SHOWN_SAMPLES]
        )
    return comparison
