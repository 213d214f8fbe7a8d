"""`rows: {change: …}` over the days of one saga: what each day is compared with, and how a jump is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from saga_activities.guard.entry_key import EntryKey
from saga_spark import output_records
from saga_spark.actions import _record_staged
from saga_spark.audit.checks import evaluate_metrics
from saga_spark.job.job_spec import Check
from saga_spark.output_records import OutputState
from saga_spark.staging.staging_attempt import transaction
from tests.integration.spark.staging.staging_environment import FakeRunner, clock, open_staging

DAYS: list[tuple[int, Any, int | None, bool, OutputState]] = [
    # rows, accept, compared with, passes, what becomes of it
    (100, None, None, True, "PUBLISHED"),
    (110, None, 100, True, "PUBLISHED"),
    (0, None, 110, False, "QUARANTINED"),
    (0, 0, 110, True, "PUBLISHED"),  # a holiday, accepted
    (0, 0, 110, True, "PUBLISHED"),
    (300, None, 110, False, "QUARANTINED"),  # compared with the last day that had rows
    (120, None, 110, True, "PUBLISHED"),
    (500, None, 120, False, "QUARANTINED"),
    (500, 480, 120, True, "PUBLISHED"),  # a wanted jump
    (510, None, 500, True, "REVERTED"),  # undone, so it counts no more
    (520, None, 500, True, "DISCARDED"),
    (480, "600", 500, True, "PUBLISHED"),  # compared with what was accepted only
    (700, None, 480, False, "QUARANTINED"),
    (500, None, 480, True, "PUBLISHED"),  # the accepted number holds for one run
]


@pytest.mark.asyncio
async def test_the_days_of_a_saga(tmp_path: Path) -> None:
    staging = await open_staging(tmp_path, f"sqlite:///{tmp_path / 'day_close.db'}")
    try:
        for day, (rows, accept, compared, passes, state) in enumerate(DAYS):
            staging.saga = f"day-{day}"
            runner = FakeRunner(staging.settings, staging.saga, rows=rows)
            attempt = staging.attempt(runner)
            await attempt.run()
            previous = runner.asked["audit"]["previous_rows"]["output"]
            assert previous == compared, f"day {day}"
            check = Check.parse(1, {"rows": {"change": "20%", "accept": accept}}, ["output"])
            result = evaluate_metrics(check, attempt.manifests["output"], previous)
            assert result.violated == (not passes), f"day {day}: {result.message}"
            if state != "QUARANTINED":
                key = EntryKey(staging.saga, "facts", 1)
                await staging.guard.do(key, None, _record_staged(attempt), **clock())
            row = await staging.row()
            async with transaction(staging.guard.engine) as connection:
                await connection.execute(output_records.set_state(row.target, state))
    finally:
        await staging.databases.close()
