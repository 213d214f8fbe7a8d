"""A definition with a schedule, set up on a real server: each time starts one saga, by whatever way."""

from __future__ import annotations

import pytest

from tests.integration.schedules.conftest import WAITING, ScheduledProject


async def test_a_time_of_the_schedule_starts_a_saga_of_that_time(scheduled: ScheduledProject) -> None:
    scheduled.write("30 3 1 1 *", timezone="Europe/Berlin")
    assert f"schedule of {scheduled.name}" in (await scheduled.set_up()).out
    await scheduled.make_due("2026-01-01T00:00:00", "2026-01-01T23:00:00")
    await scheduled.wait_for(scheduled.id("2026-01-01T02:30:00Z"), "COMPLETED")
    document = (await scheduled.saga("show", scheduled.id("2026-01-01T02:30:00Z"), "--json")).json
    assert document["output"] == {"at": "2026-01-01T02:30:00Z", "day": "2026-01-01"}
    assert document["labels"] == {"scheduled_at": "2026-01-01T02:30:00Z"}
    [start] = await scheduled.last()
    assert (start["id"], start["failed"]) == (scheduled.id("2026-01-01T02:30:00Z"), False)
    listed = (await scheduled.saga("list", "-l", "scheduled_at=2026-01-01T02:30:00Z", "--json")).json
    assert [saga["saga"] for saga in listed] == [scheduled.name]


async def test_the_date_of_a_time_is_that_of_its_time_zone(scheduled: ScheduledProject) -> None:
    scheduled.write("30 0 1 7 *", timezone="Europe/Berlin", id=f'"{scheduled.name}-${{{{ trigger.scheduled_date }}}}"')
    await scheduled.set_up()
    await scheduled.make_due("2026-06-30T00:00:00", "2026-07-01T00:00:00")
    await scheduled.wait_for(scheduled.id("2026-07-01"), "COMPLETED")
    assert (await scheduled.cli.client.view(scheduled.id("2026-07-01"))).output["at"] == "2026-06-30T22:30:00Z"


async def test_a_time_starts_one_saga_whoever_starts_it_again(scheduled: ScheduledProject) -> None:
    scheduled.write("0 3 1,2,3 1 *")
    await scheduled.set_up()
    await scheduled.make_due("2026-01-02T00:00:00", "2026-01-02T12:00:00")
    await scheduled.last()
    scheduled.write("0 3 1,2,3 1 *", input='{at: "${{ trigger.scheduled_at }}", day: changed}')
    filled = (
        await scheduled.saga("backfill", scheduled.name, "--from", "2026-01-01", "--to", "2026-01-03", "--json")
    ).json
    assert (filled["total"], filled["started"], filled["existing"], filled["refused"]) == (3, 2, 1, 0)
    assert filled["ended"] == {"COMPLETED": 3}
    again = await scheduled.saga("backfill", scheduled.name, "--from", "2026-01-01", "--to", "2026-01-03", "--json")
    assert (again.code, again.json["started"], again.json["existing"]) == (0, 0, 3)
    await scheduled.set_up()
    await scheduled.make_due("2026-01-01T00:00:00", "2026-01-01T12:00:00")
    outcomes = [start["outcome"] for start in await scheduled.last(2)]
    assert outcomes == ["COMPLETED", "already started, COMPLETED"]
    assert (await scheduled.cli.client.view(scheduled.id("2026-01-02T03:00:00Z"))).output["day"] == "2026-01-02"


async def test_a_refused_start_is_shown_with_its_reason_and_made_up_for_by_a_backfill(
    scheduled: ScheduledProject,
) -> None:
    scheduled.write(input='{at: "${{ trigger.scheduled_at + \'-x\' }}", day: "${{ vars.missing }}"}')
    await scheduled.set_up()
    await scheduled.make_due("2026-01-01T00:00:00", "2026-01-01T12:00:00")
    [start] = await scheduled.last()
    assert start["failed"]
    assert "refused: the `input` of the schedule cannot be evaluated at 2026-01-01T03:00:00Z" in start["outcome"]
    doctor = await scheduled.saga("doctor")
    assert "its last start has failed, 2026-01-01T03:00:00Z: refused: the `input`" in doctor.out
    assert await scheduled.state(scheduled.id("2026-01-01T03:00:00Z")) is None
    scheduled.write()
    filled = await scheduled.saga("backfill", scheduled.name, "--from", "2026-01-01", "--to", "2026-01-01")
    assert (filled.code, await scheduled.state(scheduled.id("2026-01-01T03:00:00Z"))) == (0, "COMPLETED")


async def test_the_time_stays_that_of_the_schedule_when_the_saga_is_resumed(scheduled: ScheduledProject) -> None:
    id = scheduled.id("2026-01-01T03:00:00Z")
    scheduled.write(input=WAITING)
    await scheduled.set_up()
    await scheduled.make_due("2026-01-01T00:00:00", "2026-01-01T12:00:00")
    await scheduled.wait_for(id, "RUNNING")
    await scheduled.cli.client.pause(id)
    assert (await scheduled.saga("resume", id)).code == 0
    await scheduled.approve(id)
    assert (await scheduled.cli.client.view(id)).output["at"] == "2026-01-01T03:00:00Z"


@pytest.mark.parametrize(
    ("zone", "cron", "first", "last", "expected"),
    [
        # Half past two was skipped on the 29th.
        ("Europe/Berlin", "30 2 * 3 *", "2026-03-28T12:00:00", "2026-03-30T12:00:00", ["2026-03-30T00:30:00Z"]),
        # The hour from two was repeated on the 25th: of its four times Temporal has these two.
        (
            "Europe/Berlin",
            "0,30 1-3 * 10 *",
            "2026-10-24T12:00:00",
            "2026-10-25T12:00:00",
            [
                f"2026-10-{time}Z"
                for time in ("24T23:00:00", "24T23:30:00", "25T00:00:00", "25T01:30:00", "25T02:00:00", "25T02:30:00")
            ],
        ),
        # Half past one was twice on the 1st.
        (
            "America/New_York",
            "30 1 * 11 *",
            "2026-10-31T12:00:00",
            "2026-11-02T12:00:00",
            ["2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z", "2026-11-02T06:30:00Z"],
        ),
    ],
)
async def test_starts_and_a_backfill_have_these_times_where_clocks_change(
    scheduled: ScheduledProject, zone: str, cron: str, first: str, last: str, expected: list[str]
) -> None:
    scheduled.write(cron, timezone=zone, overlap="allow_all")
    await scheduled.set_up()
    await scheduled.make_due(first, last)
    listed = await scheduled.saga(
        "backfill", scheduled.name, "--from", f"{first}Z", "--to", f"{last}Z", "--dry-run", "--json"
    )
    assert [row["scheduled_at"] for row in listed.json] == expected
    assert [start["scheduled_at"] for start in await scheduled.last(len(expected))] == expected
    for scheduled_at in expected:  # each saga was told its own time, the repeated hour twice
        saga_id = scheduled.id(scheduled_at)
        await scheduled.wait_for(saga_id, "COMPLETED")
        assert (await scheduled.cli.client.view(saga_id)).output["at"] == scheduled_at
