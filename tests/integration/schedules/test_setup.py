"""`saga setup` and `saga doctor` keep the schedules of Temporal in line with the definitions of one project."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import ScheduleUpdate, ScheduleUpdateInput, WorkflowFailureError, WorkflowHandle
from temporalio.common import RawValue, SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from saga_workers.devstack.temporal_server import find_temporal
from sagas.protocol.payloads import SCHEDULE_WORKFLOW
from tests.helpers.processes import WorkerProcess
from tests.helpers.waiting import until
from tests.integration.schedules.conftest import LIMIT, ScheduledProject


def check_of(scheduled: ScheduledProject, text: str) -> list[str]:
    """The lines of `saga doctor` about the schedule."""
    return [line for line in text.splitlines() if f"schedule of {scheduled.name}" in line]


async def need(scheduled: ScheduledProject) -> str | None:
    return (await scheduled.shown())["need"]


async def edit(scheduled: ScheduledProject, **changes: object) -> None:
    """Change the times of the schedule, as the Web UI does."""

    def changed(current: ScheduleUpdateInput) -> ScheduleUpdate:
        schedule = current.description.schedule
        return ScheduleUpdate(replace(schedule, spec=replace(schedule.spec, **changes)))

    await scheduled.schedule.update(changed)


async def test_a_changed_definition_updates_the_schedule(scheduled: ScheduledProject) -> None:
    missing = await scheduled.saga("doctor")
    assert any("✖" in line and "it does not exist" in line for line in check_of(scheduled, missing.out))
    await scheduled.set_up()
    assert f"schedules of {scheduled.name}" in (await scheduled.set_up()).out
    await scheduled.schedule.pause(note="closed in winter")
    scheduled.write("15 4 1 1 *", timezone="Asia/Tokyo", overlap="allow_all")
    assert await need(scheduled) == "update"
    assert "the definition has changed since it was set up" in (await scheduled.set_up()).out
    described = await scheduled.described()
    assert described.schedule.spec.time_zone_name == "Asia/Tokyo"
    assert described.schedule.state.paused
    assert await need(scheduled) is None
    doctor = await scheduled.saga("doctor")
    assert any("it is paused: closed in winter" in line for line in check_of(scheduled, doctor.out))


async def test_an_edit_in_the_web_ui_is_found_and_set_back(scheduled: ScheduledProject) -> None:
    await scheduled.set_up()
    await edit(scheduled, cron_expressions=["* * * * *"], jitter=timedelta(minutes=1))
    view = await scheduled.shown()
    assert (view["need"], view["why"]) == ("update", "cron, jitter were changed outside of the definition")
    assert any(view["why"] in line for line in check_of(scheduled, (await scheduled.saga("doctor")).out))
    assert view["why"] in (await scheduled.set_up()).out
    assert await need(scheduled) is None


async def test_the_schedule_of_a_removed_trigger_starts_nothing_and_is_removed_when_confirmed(
    scheduled: ScheduledProject,
) -> None:
    await scheduled.set_up()
    scheduled.write_without_schedule()
    await scheduled.make_due("2026-01-01T00:00:00", "2026-01-01T12:00:00")
    [start] = await scheduled.last()
    assert "has no schedule" in start["outcome"]

    async def listed() -> bool:
        return scheduled.name in (await scheduled.saga("schedule", "list")).out

    await until(listed, limit=LIMIT)
    shown = (await scheduled.saga("schedule", "show", scheduled.name, "-o", "json")).json
    assert (shown["state"], shown["next"]) == ("removed", [])
    asked = await scheduled.saga("setup")
    assert (asked.code, f"removing the schedules of {scheduled.name} needs a confirmation" in asked.err) == (2, True)
    assert "each of their starts is refused" in asked.err
    assert "✔ search attributes" in asked.out  # the rest is done
    assert any("has no schedule any more" in line for line in check_of(scheduled, (await scheduled.saga("doctor")).out))
    printed = await scheduled.saga("setup", "--print", "--json")
    assert any("schedule delete" in command for command in printed.json["commands"])
    removed = await scheduled.saga("setup", "--yes")
    assert f"no schedule of {scheduled.name}" in removed.out
    gone = await scheduled.saga("schedule", "show", scheduled.name)
    assert (gone.code, "has no schedule" in gone.err) == (2, True)


async def test_definitions_with_errors_lose_no_schedule(scheduled: ScheduledProject) -> None:
    await scheduled.set_up()
    (scheduled.folder / "close.saga.yaml").write_text("saga: [\n")
    result = await scheduled.saga("setup", "--yes")
    assert "none is removed" in result.err
    await scheduled.described()


async def test_a_schedule_of_another_project_is_left_alone(scheduled: ScheduledProject) -> None:
    await scheduled.set_up()
    settings = scheduled.folder / "saga.toml"
    scheduled.write_without_schedule()
    own = settings.read_text()
    settings.write_text(f'{own}[worker]\ndefinition_key = "{"k" * 32}"\n')

    async def left_alone() -> bool:
        return "is left alone" in (await scheduled.saga("setup", "--yes")).err

    await until(left_alone, limit=LIMIT)
    settings.write_text(own.replace("schedules-", "other-"))
    assert (await scheduled.saga("schedule", "list", "--json")).json == []
    await scheduled.described()


async def test_a_new_key_signs_the_order_again(scheduled: ScheduledProject) -> None:
    await scheduled.set_up()
    settings = scheduled.folder / "saga.toml"
    old = (scheduled.folder / ".saga" / "definition.key").read_text().strip()
    settings.write_text(f'{settings.read_text()}[worker]\ndefinition_key = "{"k" * 32} {old}"\n')
    view = await scheduled.shown()
    assert (view["need"], view["why"]) == ("update", "it is signed with an older key of this project")
    await scheduled.set_up()
    assert await need(scheduled) is None


async def test_the_first_command_of_a_project_makes_the_key_of_its_orders(scheduled: ScheduledProject) -> None:
    (scheduled.folder / ".saga" / "definition.key").unlink()
    await scheduled.set_up()
    assert await need(scheduled) is None


async def test_an_order_that_the_project_has_not_signed_starts_nothing(scheduled: ScheduledProject) -> None:
    await scheduled.set_up()
    [order] = (await scheduled.described()).schedule.action.args  # pyright: ignore[reportAttributeAccessIssue]
    temporal, queue = scheduled.cli.client.temporal, scheduled.cli.client.project.settings.temporal.task_queue
    key_id = scheduled.cli.client.project.settings.signing_keys().ids[0]
    forged = {
        "schedule": scheduled.schedule.id,
        "saga": scheduled.name,
        "times": {},
        "signature": {"key": key_id, "hmac": "0" * 64},
    }
    key = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")
    future = datetime(2100, 1, 1, tzinfo=UTC)
    for argument, id, reason in (
        (forged, "2026-01-01T03:00:00Z", "not signed with a key of the project"),
        (RawValue(order), "2100-01-01T00:00:00Z", "which is in the future"),
        (RawValue(order), "2026-01-01T03:00:00Z", "is started by its schedule only"),
    ):
        handle = await temporal.start_workflow(
            SCHEDULE_WORKFLOW,
            argument,
            id=f"{scheduled.schedule.id}-{id}",
            task_queue=queue,
            search_attributes=TypedSearchAttributes([SearchAttributePair(key, future)]),
        )
        refused = await failure_of(handle)
        assert reason in refused
    assert await scheduled.state(scheduled.id("2026-01-01T03:00:00Z")) is None


async def failure_of(handle: WorkflowHandle[Any, Any]) -> str:
    try:
        await handle.result()
    except WorkflowFailureError as error:
        return str(error.cause)
    return ""


async def test_printed_commands_make_the_schedule_that_setup_wants(scheduled: ScheduledProject) -> None:
    scheduled.write("*/20 9-17 * * 1-5", timezone="Europe/Berlin", overlap="buffer_one", jitter="90s")
    printed = (await scheduled.saga("setup", "--print", "--json")).json["commands"]
    [command] = [line for line in printed if " schedule create " in line]
    address = scheduled.cli.client.project.settings.temporal.address
    words = [find_temporal(), *shlex.split(command)[1:], "--address", address or ""]
    await asyncio.to_thread(subprocess.run, words, check=True, capture_output=True)
    view = await scheduled.shown()
    assert (view["state"], view["why"]) == ("active", None)


async def test_a_worker_that_may_sets_up_its_schedules(scheduled: ScheduledProject) -> None:
    settings = scheduled.folder / "saga.toml"

    async def serve() -> None:
        """A worker from its start, before which it sets up the schedules, to its stop."""
        worker = WorkerProcess("worker", scheduled.folder)
        try:
            await asyncio.to_thread(worker.start)
            assert await asyncio.to_thread(worker.stop) == 0
        finally:
            worker.kill()

    await serve()
    assert await need(scheduled) == "create", "no worker may by default"
    settings.write_text(f"{settings.read_text()}[worker]\nschedules = true\n")
    await serve()
    assert await need(scheduled) is None
    scheduled.write("15 4 1 1 *")
    assert await need(scheduled) == "update"
    await serve()
    assert await need(scheduled) is None
    assert (await scheduled.shown())["cron"] == "15 4 1 1 *"


async def test_an_order_with_a_key_that_is_gone_is_refused_after_a_while(
    scheduled: ScheduledProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saga_workers.worker.worker_trust.KEY_WAIT", 0.0)
    settings = scheduled.folder / "saga.toml"
    settings.write_text(f'{settings.read_text()}[worker]\ndefinition_key = "{"k" * 32}"\n')
    await scheduled.set_up()
    await scheduled.make_due("2026-01-01T00:00:00", "2026-01-01T12:00:00")
    [start] = await scheduled.last()
    assert "not signed with a key of the project; `saga setup` signs it again" in start["outcome"]
    assert await scheduled.state(scheduled.id("2026-01-01T03:00:00Z")) is None


async def test_an_encrypted_order_is_compared_as_others_are(scheduled: ScheduledProject) -> None:
    settings = scheduled.folder / "saga.toml"
    clear = settings.read_text()

    def encrypt_with(*letters: str) -> None:
        keys = " ".join(letter * 64 for letter in letters)
        settings.write_text(f'{clear}[codec]\nkey = "{keys}"\n')

    encrypt_with("a")
    await scheduled.set_up()
    assert await need(scheduled) is None
    scheduled.write("15 4 1 1 *")
    assert "the definition has changed since it was set up" in (await scheduled.set_up()).out
    encrypt_with("b")
    assert "encrypted with the key" in (await scheduled.shown())["why"]
    encrypt_with("a", "b")
    assert await need(scheduled) is None
    encrypt_with("b", "a")
    assert "as the first key of [codec] would encrypt it" in (await scheduled.shown())["why"]
    assert "as the first key of [codec] would encrypt it" in (await scheduled.set_up()).out
    encrypt_with("b")
    assert await need(scheduled) is None
    scheduled.write_without_schedule()

    async def removed() -> bool:
        return f"no schedule of {scheduled.name}" in (await scheduled.saga("setup", "--yes")).out

    await until(removed, limit=LIMIT)
