"""The built-in actions `spark` and `reconcile` on a worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from saga_activities.attempt import Attempt, Body
from saga_activities.connections import Connections
from saga_activities.guard.sql_handle import Sql
from saga_spark import ledger
from saga_spark.errors import Unequipped
from saga_spark.ledger import Overtaken
from saga_spark.progress import Progress
from saga_spark.publishing import Publishing
from saga_spark.runner.client import Runner
from saga_spark.settings import SparkSettings
from saga_spark.staged_files import staged_files
from saga_spark.staging_attempt import StagingAttempt
from sagas.builtins_spark import PUBLISH, SPARK, UNPUBLISH
from sagas.errors import Unavailable, UsageError
from sagas.wire import Invocation


class SparkSteps:
    """Performs Spark steps (see :class:`saga_activities.performer.Performer`). The runner starts with the first job."""

    def __init__(self, settings: SparkSettings, databases: Connections) -> None:
        self._settings = settings
        self._databases = databases
        self._runner = Runner(settings)

    async def prepare(self, action: str, invocation: Invocation, attempt: Attempt) -> Body:
        if invocation.guard is None:
            raise UsageError(f"{action} needs a ledger: say [spark] ledger in saga.toml")
        engine = self._databases.engine(invocation.guard.connection)
        if action == SPARK:
            staging = StagingAttempt(self._settings, engine, self._runner, invocation, attempt)
            with _another_worker_may():
                await staging.run()
            return _staged(staging)
        publishing = Publishing(self._settings, engine, invocation)
        Progress(attempt).say("publishing" if action == PUBLISH else "taking back")
        if action == PUBLISH:
            return await publishing.publish()
        return await publishing.take_back(confirmed=action == UNPUBLISH)

    async def read(self, invocation: Invocation, attempt: Attempt) -> Any:
        from saga_spark.reconcile.step import reconcile_step

        async def staged(step: str, output: str | None) -> Mapping[str, Any]:
            if self._settings.ledger is None:
                raise UsageError("to read what a step has staged needs a ledger: say [spark] ledger in saga.toml")
            engine = self._databases.engine(self._settings.ledger)
            return await staged_files(engine, invocation.saga_id, step, output)

        with _another_worker_may():
            return await reconcile_step(
                self._runner, self._settings, invocation.arguments, attempt, staged, invocation.key
            )

    async def close(self) -> None:
        await self._runner.close()


@contextlib.contextmanager
def _another_worker_may() -> Iterator[None]:
    """What this machine lacks is no mistake of the definition: the step waits for a machine that has it."""
    try:
        yield
    except Unequipped as error:
        raise Unavailable(f"{error.message}; {error.help}") from error


def _staged(staging: StagingAttempt) -> Body:
    """What makes the manifests count: in the transaction of the guard's `do` row, and only while the epoch is ours."""

    async def body(sql: Sql | None) -> dict[str, Any]:
        assert sql is not None
        for name, row in staging.rows.items():
            if await sql.execute(ledger.staged(row.target, row.epoch, staging.manifests[name])) != 1:
                raise Overtaken(f"another attempt has taken over the output {name} of {row.target.step}")
        return staging.result

    return body
