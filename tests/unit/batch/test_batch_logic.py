"""Decisions of a batch without a server: how rows are cut, how starts are paced, and what its record believes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from saga_workers.batch.batch_view import group_failures
from saga_workers.batch.reporter import check_batch_id
from saga_workers.start.bulk_rows import bulk_size, cut_rows
from saga_workers.start.row_starts import StartRow
from saga_workers.start.start_gate import StartGate
from saga_workers.start.start_limits import MAX_BULK_INPUTS, RateLimit, StartLimits
from saga_workers.start.start_requests import StartRequest
from sagas.errors import UsageError
from sagas.presentation.batch_details import batch_details
from sagas.protocol.batch_record import MAX_TEXT, BatchRecord
from sagas.protocol.saga_view import ReasonView


def row(number: int, size: int = 10) -> StartRow:
    return StartRow(f"f:{number}", f"r-{number}", StartRequest("x" * size, None, {}))


def test_rows_are_cut_by_number_and_by_size() -> None:
    assert [len(part) for part in cut_rows([row(n) for n in range(11)], 4)] == [4, 4, 3]
    half = MAX_BULK_INPUTS // 2
    assert [len(part) for part in cut_rows([row(n, half) for n in range(3)], 500)] == [1, 1, 1]
    assert [len(part) for part in cut_rows([row(1, 2 * MAX_BULK_INPUTS), row(2)], 500)] == [1, 1]
    assert list(cut_rows([], 4)) == []


@pytest.mark.parametrize(
    ("size", "limits", "expected"),
    [
        (500, StartLimits(concurrency=2000), 500),
        (5000, StartLimits(concurrency=20_000), 2000),
        (500, StartLimits(rate=20, concurrency=2000), 20),
        (500, StartLimits(rate=0.1, concurrency=2000), 1),
        (500, StartLimits(concurrency=30), 30),
    ],
)
def test_a_bulk_workflow_exceeds_neither_the_rate_nor_the_concurrency(
    size: int, limits: StartLimits, expected: int
) -> None:
    assert bulk_size(size, limits) == expected


async def test_a_pause_is_not_made_up_for() -> None:
    gate, pacer = StartGate(), RateLimit(20)
    gate.pause(True)
    starting = asyncio.create_task(_starts(pacer, gate, 6))
    await asyncio.sleep(0.3)
    assert not starting.done()
    gate.pause(False)
    began = time.monotonic()
    await starting
    assert time.monotonic() - began >= 0.2


async def test_a_stop_ends_every_wait() -> None:
    gate, pacer = StartGate(), RateLimit(0.001)
    starting = asyncio.create_task(_starts(pacer, gate, 3))
    await asyncio.sleep(0.05)
    gate.pause(True)
    gate.stop("cancelled")
    gate.stop("asked")
    async with asyncio.timeout(1):
        await starting
        await gate.wait_open()
    assert gate.why == "cancelled"


async def _starts(pacer: RateLimit, gate: StartGate, count: int) -> None:
    for _ in range(count):
        await pacer.wait(gate)


def report(client: str, **values: Any) -> dict[str, Any]:
    return {**BatchRecord("b", saga="trip", client=client).to_json(), **values}


def test_only_the_newest_command_reports() -> None:
    record = BatchRecord.from_json("b", report("one", total=10))
    record = record.reported(report("one", total=10, started=4))
    record = record.asked("PAUSED", "mia")
    record = record.opened(report("two", total=10))
    assert (record.client, record.state, record.by, record.started) == ("two", "PAUSED", "mia", 0)
    assert record.reported(report("one", total=10, started=9)) == record
    record = record.asked("STARTING", None).reported(report("two", total=10, started=6, existing=4))
    assert record.closed().state == "STARTED"
    assert record.reported(report("two", total=10, started=6)).closed().state == "STOPPED"


def test_what_is_cancelled_stays_cancelled() -> None:
    record = BatchRecord.from_json("b", report("one", total=1)).asked("CANCELLED", "mia")
    assert record.asked("STARTING", "eve").state == "CANCELLED"
    assert record.reported(report("one", total=1, started=1)).closed().state == "CANCELLED"


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "text",
        {"total": -1, "started": 1e300, "existing": True, "refused": "3", "seconds": float("nan")},
        {"ended": {"NONSENSE": 1, "COMPLETED": -5, 3: 4}, "saga": 7, "state": ["x"], "client": {}},
        {"ended": [1], "stopped": "x" * 10**6, "saga": "|<script>" * 10**5, "by": 5},
    ],
)
def test_a_record_that_somebody_made_up_is_bounded(value: Any) -> None:
    record = BatchRecord.from_json("b", value)
    assert record.state == "STARTING"
    assert (record.total, record.started, record.existing, record.refused, record.seconds) == (0, 0, 0, 0, 0.0)
    assert set(record.ended.values()) <= {0}
    assert len(record.saga) <= MAX_TEXT
    assert "<script>" not in batch_details(record)


def test_failures_are_grouped_by_reason() -> None:
    no_money = ReasonView(kind="rejected", step="debit", message="no money")
    items = [ReasonView(kind="rejected", step=f"pick#{n}", message="sold out") for n in range(3)]
    groups = group_failures(
        [("a", "COMPENSATED", no_money), ("b", "TERMINATED", None)] + [(f"p{n}", "RESIDUE", items[n]) for n in range(3)]
    )
    assert [(group.count, group.state, group.step, group.kind, group.example) for group in groups] == [
        (3, "RESIDUE", "pick", "rejected", "p0"),
        (1, "COMPENSATED", "debit", "rejected", "a"),
        (1, "TERMINATED", None, "unknown", "b"),
    ]


@pytest.mark.parametrize("id", ["", "  ", "a\nb", "a\x1b[2J", "\ud800", "x" * 3000])
def test_ids_that_no_batch_may_have(id: str) -> None:
    with pytest.raises(UsageError):
        check_batch_id(id)
