"""`saga schedule` and `saga backfill`, as an operator uses them."""

from __future__ import annotations

import asyncio

import pytest

from saga_cli.commands.run import batch_run
from tests.helpers.command_processes import RunningCommand
from tests.integration.schedules.conftest import WAITING, ScheduledProject


async def test_a_schedule_is_listed_paused_and_resumed(scheduled: ScheduledProject) -> None:
    assert "missing" in (await scheduled.saga("schedule", "list")).out
    missing = await scheduled.saga("schedule", "pause", scheduled.name)
    assert (missing.code, "Temporal has no schedule of" in missing.err) == (2, True)
    await scheduled.set_up()
    paused = await scheduled.saga("schedule", "pause", scheduled.name, "--reason", "holidays", "--as", "mia")
    assert (paused.code, paused.out) == (0, f"{scheduled.name}: paused\n")
    view = await scheduled.shown()
    assert (view["state"], view["note"], view["next"]) == ("paused", "paused by mia: holidays", [])
    assert (await scheduled.saga("schedule", "resume", scheduled.name)).out == f"{scheduled.name}: active\n"
    listed = (await scheduled.saga("schedule", "list", "--json")).json
    assert [(row["saga"], row["state"], row["cron"]) for row in listed] == [(scheduled.name, "active", "0 3 1 1 *")]
    assert listed[0]["next"][0].endswith("-01-01T03:00:00Z")


async def test_run_starts_a_saga_now(scheduled: ScheduledProject) -> None:
    scheduled.write(input=WAITING)
    await scheduled.set_up()
    result = await scheduled.saga("schedule", "run", scheduled.name, "--json")
    assert (result.code, result.json["id"]) == (0, scheduled.id(result.json["scheduled_at"]))
    await scheduled.wait_for(result.json["id"], "RUNNING")
    again = await scheduled.saga("schedule", "run", scheduled.name, "--json")
    assert "skipped, because the saga of an earlier start has not ended" in again.json["outcome"]
    await scheduled.approve(result.json["id"])


async def test_run_tells_why_a_start_is_refused(scheduled: ScheduledProject) -> None:
    scheduled.write(input='{at: "${{ vars.missing }}"}')
    await scheduled.set_up()
    result = await scheduled.saga("schedule", "run", scheduled.name)
    assert result.code == 1
    assert "refused: the `input` of the schedule cannot be evaluated" in result.out


def report_often() -> None:
    setattr(batch_run, "_LINE_INTERVAL", 0.1)  # noqa: B010, it is private


async def test_a_backfill_tells_how_far_it_is_and_continues_after_ctrl_c(scheduled: ScheduledProject) -> None:
    scheduled.write("0 3 * 1 *", input=WAITING)
    words = ("backfill", scheduled.name, "--from", "2026-01-01", "--to", "2026-01-06")
    ids = [scheduled.id(f"2026-01-0{day}T03:00:00Z") for day in range(1, 7)]
    first = RunningCommand(scheduled.folder, *words, first=report_often)
    for saga_id in ids[:2]:
        await scheduled.wait_for(saga_id, "RUNNING")
        await scheduled.approve(saga_id)
    await scheduled.wait_for(ids[2], "RUNNING")
    await asyncio.sleep(1)
    first.interrupt()
    stopped = await first.ended()
    assert stopped.code == 130, stopped
    assert f"{scheduled.name}: 2 of 6 rows: 2 COMPLETED" in stopped.err
    assert "3 rows are not started; run the same command again to continue" in stopped.err
    assert [await scheduled.state(saga_id) for saga_id in ids[3:]] == [None] * 3
    second = RunningCommand(scheduled.folder, *words, first=report_often)
    for saga_id in ids[2:]:
        await scheduled.wait_for(saga_id, "RUNNING")
        await scheduled.approve(saga_id)
    ended = await second.ended()
    assert ended.code == 0, ended
    assert "6 rows: 3 started, 3 already existed, 0 refused" in ended.out
    runs = [run.id async for run in scheduled.cli.client.temporal.list_workflows(f"WorkflowType = '{scheduled.name}'")]
    assert sorted(runs) == ids, "each time has one saga"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--from", "2026-02-01", "--to", "2026-01-01"), "--to is before --from"),
        (("--from", "2090-02-01", "--to", "2090-02-02"), "is in the future"),
        (("--from", "yesterday", "--to", "2026-01-01"), "--from: yesterday is neither a date nor a timestamp"),
        (("--from", "2026-01-01", "--to", "\x1b[31m"), "--to: \\x1b[31m is neither"),
    ],
)
async def test_wrong_ends_of_a_backfill_are_refused(
    scheduled: ScheduledProject, words: tuple[str, ...], problem: str
) -> None:
    result = await scheduled.saga("backfill", scheduled.name, *words)
    assert (result.code, result.err.count("\n") <= 2) == (2, True)
    assert problem in result.err


async def test_a_backfill_of_no_times_and_of_too_many(
    scheduled: ScheduledProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = await scheduled.saga("backfill", scheduled.name, "--from", "2026-03-01", "--to", "2026-03-02")
    assert (none.code, none.out) == (0, f"the schedule of {scheduled.name} has no time in this range\n")
    scheduled.write("* * * * * * *")
    monkeypatch.setattr("saga_workers.schedules.matching_times.MAX_TIMES", 1500)
    many = await scheduled.saga("backfill", scheduled.name, "--from", "2026-03-01T00:00:00Z", "--to", "2026-03-02")
    assert (many.code, "more than 1,500 times" in many.err) == (2, True)


@pytest.mark.parametrize("begin", ["2026-10-25", "2026-10-25T02:30:00"])
async def test_a_backfill_includes_both_times_of_an_hour_that_clocks_repeat(
    scheduled: ScheduledProject, begin: str
) -> None:
    scheduled.write("30 2 * * *", timezone="Europe/Berlin")
    words = ("backfill", scheduled.name, "--from", begin, "--to", "2026-10-25T02:30:00", "--dry-run", "--json")
    day = ("backfill", scheduled.name, "--from", "2026-10-25", "--to", "2026-10-25", "--dry-run", "--json")
    [[row], [of_day]] = [(await scheduled.saga(*each)).json for each in (words, day)]
    assert row == of_day
    assert row["scheduled_at"][:11] == "2026-10-25T"


async def test_a_saga_without_a_schedule_has_nothing_to_fill(scheduled: ScheduledProject) -> None:
    scheduled.write_without_schedule()
    for words in (("backfill", scheduled.name, "--from", "2026-01-01", "--to", "2026-01-02"),):
        result = await scheduled.saga(*words)
        assert (result.code, "has no schedule" in result.err) == (2, True)
    shown = await scheduled.saga("schedule", "show", "nobody")
    assert (shown.code, "there is no saga named nobody" in shown.err) == (2, True)
