"""Temporal's overlap policies hold for the sagas: a start is open for as long as its saga."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.helpers.waiting import until
from tests.integration.schedules.conftest import LIMIT, WAITING, ScheduledProject

CRON = "0,1,2 3 1 1 *"


def ids_of(scheduled: ScheduledProject) -> tuple[str, str, str]:
    first, second, third = (scheduled.id(f"2026-01-01T03:0{minute}:00Z") for minute in range(3))
    return first, second, third


async def begin(scheduled: ScheduledProject, overlap: str) -> tuple[str, str, str]:
    """Three times are due, whose sagas wait; gives the ids of the sagas."""
    first, second, third = ids_of(scheduled)
    scheduled.write(CRON, input=WAITING, overlap=overlap)
    await scheduled.set_up()
    await scheduled.make_due("2026-01-01T03:00:00", "2026-01-01T03:02:00")
    await scheduled.wait_for(first, "RUNNING")
    return first, second, third


async def test_skip_starts_nothing_while_a_saga_runs(scheduled: ScheduledProject) -> None:
    first, second, third = await begin(scheduled, "skip")
    await until(lambda: skipped(scheduled, 2), limit=LIMIT)
    await scheduled.approve(first)
    await scheduled.last()
    assert [await scheduled.state(id) for id in (second, third)] == [None, None]
    assert "2 skipped because an earlier saga ran" in (await scheduled.saga("schedule", "show", scheduled.name)).out


async def test_buffer_one_keeps_one_time_until_the_saga_ends(scheduled: ScheduledProject) -> None:
    first, second, third = await begin(scheduled, "buffer_one")
    await until(lambda: skipped(scheduled, 1), limit=LIMIT)
    assert await scheduled.state(second) is None
    assert (
        "1 start waits for the end of an earlier saga" in (await scheduled.saga("schedule", "show", scheduled.name)).out
    )
    await scheduled.approve(first)
    await scheduled.wait_for(second, "RUNNING")
    await scheduled.approve(second)
    await scheduled.last(2)
    assert await scheduled.state(third) is None


async def test_buffer_all_keeps_every_time_in_its_order(scheduled: ScheduledProject) -> None:
    first, second, third = await begin(scheduled, "buffer_all")
    assert (await scheduled.shown())["waiting"] == 2
    for id, following in ((first, second), (second, third)):
        assert await scheduled.state(following) is None
        await scheduled.approve(id)
        await scheduled.wait_for(following, "RUNNING")
    await scheduled.approve(third)


async def test_allow_all_runs_sagas_side_by_side(scheduled: ScheduledProject) -> None:
    first, second, third = await begin(scheduled, "allow_all")
    for id in (second, third):
        await scheduled.wait_for(id, "RUNNING")
    assert await scheduled.state(first) == "RUNNING"
    await scheduled.approve(first)
    await scheduled.wait_for(first, "COMPLETED")
    outcomes = {start["id"]: start["outcome"] for start in (await scheduled.shown())["last"]}
    assert outcomes == {first: "COMPLETED", second: "running", third: "running"}


async def test_cancel_other_undoes_the_earlier_saga_first(scheduled: ScheduledProject) -> None:
    first, second, _ = ids_of(scheduled)
    scheduled.write(CRON, input=WAITING, overlap="cancel_other")
    await scheduled.set_up()
    await scheduled.make_due("2026-01-01T03:00:00", "2026-01-01T03:00:00")
    await scheduled.wait_for(first, "RUNNING")
    scheduled.cli.break_undo(True)
    await scheduled.make_due("2026-01-01T03:01:00", "2026-01-01T03:01:00")
    await scheduled.wait_for(first, "PARKED")
    assert await scheduled.state(second) is None
    scheduled.cli.break_undo(False)
    resolved = await scheduled.saga("resolve", first, "book", "retry", "--reason", "it works again")
    assert resolved.code == 0
    await scheduled.wait_for(first, "COMPENSATED")
    await scheduled.wait_for(second, "RUNNING")
    assert (await scheduled.last())[0]["outcome"] == "COMPENSATED"
    reason = (await scheduled.cli.client.view(first)).reason
    assert reason is not None
    assert (reason.kind, reason.details["who"]) == ("cancelled", f"the schedule of {scheduled.name} (unverified)")


async def skipped(scheduled: ScheduledProject, count: int) -> bool:
    return (await scheduled.described()).info.num_actions_skipped_overlap == count


async def test_jitter_delays_a_start_and_leaves_its_time_as_it_is(scheduled: ScheduledProject) -> None:
    scheduled.write(jitter="2h")
    await scheduled.set_up()
    assert (await scheduled.described()).schedule.spec.jitter == timedelta(hours=2)
    await scheduled.make_due("2026-01-01T00:00:00", "2026-01-01T12:00:00")
    [start] = await scheduled.last()
    assert (start["scheduled_at"], start["id"]) == ("2026-01-01T03:00:00Z", scheduled.id("2026-01-01T03:00:00Z"))
    [made] = (await scheduled.described()).info.recent_actions
    assert made.scheduled_at > datetime(2026, 1, 1, 3, tzinfo=UTC)
