"""Sagas, and sequences of what operators and faults do to them, drawn from seeds: no effect is doubled or left behind.

Run one seed alone, or many for hours, with `python -m tests.integration.engine.sequences.run_seeds FIRST COUNT`, and
with `--bulk` those of bulk workflows. The moments at which the actions meet the sagas differ from run to run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.processes import TemporalServer
from tests.helpers.sampling import scaled
from tests.integration.engine.sequences.bulk_sequence import run_bulk_sequence
from tests.integration.engine.sequences.drawn_sagas import DrawnSaga, DrawnStep
from tests.integration.engine.sequences.participants import Row
from tests.integration.engine.sequences.sequence import judge, run_sequence

QUICK = (312,)
MANY = range(20_000, 20_040)
QUICK_IN_BULK = (5,)
MANY_IN_BULK = range(40_000, 40_040)


@pytest.mark.parametrize("seed", scaled(QUICK, (*QUICK, *MANY)))
async def test_sequences_of_actions_leave_no_effect_behind(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path, seed: int
) -> None:
    report = await run_sequence(seed, tmp_path / "project", temporal.address, postgres_server)
    assert not report.faults, f"{report}\n{report.worker_logs}"


@pytest.mark.parametrize("seed", scaled(QUICK_IN_BULK, (*QUICK_IN_BULK, *MANY_IN_BULK)))
async def test_sequences_of_actions_on_bulk_workflows_leave_no_effect_behind(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path, seed: int
) -> None:
    report = await run_bulk_sequence(seed, tmp_path / "project", temporal.address, postgres_server)
    assert not report.faults, f"{report}\n{report.worker_logs}"


def _row(op: str, key: str = "s/a") -> Row:
    return Row(0.0, "a", key, op, by_hand=False)


@pytest.mark.parametrize(
    ("rows", "end", "fault"),
    [
        (["do"], "COMPLETED", None),
        (["do", "undo"], "COMPENSATED", None),
        (["do", "undo", "do"], "COMPLETED", None),
        (["do", "do"], "COMPLETED", "a is done twice"),
        (["do", "undo", "undo"], "COMPENSATED", "a is undone without an effect"),
        (["do"], "COMPENSATED", "COMPENSATED, and a is left"),
        (["do"], "TERMINATED", "TERMINATED, and a is left"),
        (["do", "undo"], "COMPLETED", "COMPLETED without a"),
        (["do"], "stuck", None),
    ],
)
def test_the_journal_tells_what_is_wrong(rows: list[str], end: str, fault: str | None) -> None:
    saga = DrawnSaga("outer", (DrawnStep("a", "sql"),))
    journal = [_row(op) for op in rows]
    faults = judge(saga, journal, {"a": rows.count("do") - rows.count("undo")}, end)
    assert (fault in faults) if fault else not faults
