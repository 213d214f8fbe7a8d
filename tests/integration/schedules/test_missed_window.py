"""Temporal was down for longer than the catch-up window: what it missed is not made up for, and is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from sagas.protocol.schedule_order import slot_text
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.schedules.conftest import ScheduledProject


@pytest.fixture
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    """A server of this test, which it may kill."""
    with TemporalServer(tmp_path_factory.mktemp("killed-temporal")) as server:
        yield server


async def test_times_before_the_catchup_window_start_nothing(
    temporal: TemporalServer, scheduled: ScheduledProject
) -> None:
    scheduled.write("* * * * * * *", catchup_window="10s", overlap="allow_all")
    await scheduled.set_up()
    before = (await scheduled.last())[0]
    killed_at = datetime.now(UTC)
    temporal.kill()
    await asyncio.sleep(14)
    started_at = datetime.now(UTC)
    await asyncio.to_thread(temporal.start)

    async def missed() -> int:
        return (await scheduled.described()).info.num_actions_missed_catchup_window

    count = await until(missed, limit=60)
    await scheduled.schedule.pause()
    assert before["id"] is not None
    doctor = await scheduled.saga("doctor")
    assert "starts were missed while Temporal was unavailable" in doctor.out
    assert (await scheduled.shown())["missed"] >= count
    missed_slot = (killed_at + timedelta(seconds=2)).replace(microsecond=0)
    assert started_at - missed_slot > timedelta(seconds=10)
    assert await scheduled.state(scheduled.id(slot_text(missed_slot))) is None
    filled = await scheduled.saga(
        "backfill", scheduled.name, "--from", missed_slot.isoformat(), "--to", missed_slot.isoformat()
    )
    assert filled.code == 0, filled
    assert await scheduled.state(scheduled.id(slot_text(missed_slot))) == "COMPLETED"
