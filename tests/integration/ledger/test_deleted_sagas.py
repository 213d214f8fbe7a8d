"""The commands about a saga whose run was deleted: the ledger has its claim or its row, and the guard its effect."""

from __future__ import annotations

import asyncio

from saga_workers.location.traces import nested_sagas
from saga_workers.reconcile.ledger_check import write_row
from saga_workers.stuck import open_sagas
from saga_workers.temporal.run_history import start_of_run
from saga_workers.temporal.saga_input import first_input
from saga_workers.temporal.saga_runs import was_never_accepted
from saga_workers.temporal.temporal_runs import describe_run
from saga_workers.views.run_facts import close_reason
from tests.helpers.run_changes import delete_run
from tests.helpers.waiting import until
from tests.integration.cli.conftest import fresh
from tests.integration.ledger.conftest import Stay


async def test_each_command_leads_to_a_resume(stay: Stay, monkeypatch) -> None:
    monkeypatch.setattr(open_sagas, "MIN_CLAIM_AGE", 0.0)
    broken = stay.folder / "broken"
    broken.touch()
    city = fresh("lima")
    id = f"outing-{city}"
    assert (await stay.saga("start", "outing", "--set", f"city={city}")).code == 0

    async def parked() -> bool:
        return (await stay.client.show(id))["state"] == "PARKED"

    await until(parked)
    await stay.wait_for_row(id, "PARKED")
    await delete_run(stay.client.temporal, id)
    listed = await stay.saga("list", "--stuck")
    assert f"saga resume {id}" in " ".join(listed.out.split())
    doctor = await stay.saga("--json", "doctor")
    [stuck] = [result for result in doctor.json if result["check"] == "sagas"]
    assert (stuck["ok"], stuck["help"]) == (False, f"saga resume {id}")

    shown = await stay.saga("--json", "show", id)
    assert shown.json["state"] == "PARKED"
    assert f"saga resume {id}" in shown.json["stuck"][0]
    cancelled = await stay.saga("cancel", id)
    assert (cancelled.code, f"saga resume {id}" in cancelled.err) == (9, True)

    await asyncio.to_thread(broken.unlink)
    resumed = await stay.saga("--json", "resume", id)
    assert resumed.json == {"id": id, "response": "started again", "state": "RUNNING"}
    assert (await stay.saga("watch", id)).code == 0
    assert stay.query("select count(*) from rooms where city = %s", city) == [(1,)]
    assert (await stay.saga("--json", "show", id)).json["state"] == "COMPLETED"
    [stuck] = [result for result in (await stay.saga("--json", "doctor")).json if result["check"] == "sagas"]
    assert stuck["ok"] is True


async def test_a_terminated_saga_that_only_the_ledger_has_is_stuck(stay: Stay) -> None:
    broken = stay.folder / "broken"
    broken.touch()
    city = fresh("quito")
    id = f"outing-{city}"
    assert (await stay.saga("start", "outing", "--set", f"city={city}")).code == 0
    await stay.wait_for_row(id, "PARKED")
    await stay.client.temporal.get_workflow_handle(id).terminate("a test")
    assert await write_row(stay.client.locator, id) == "its row is written as TERMINATED"
    await delete_run(stay.client.temporal, id)
    # Younger rows than a minute may be those of a saga that ends in a moment.
    stay.query("update saga_guard set created_at = created_at - 120 where saga_id = %s returning 1", id)
    for command in (("show", id), ("list", "--stuck")):
        assert f"saga resume {id}" in " ".join((await stay.saga(*command)).out.split())
    await asyncio.to_thread(broken.unlink)
    assert (await stay.saga("--json", "resume", id)).json["response"] == "started again"
    assert (await stay.saga("watch", id)).code == 0


async def test_a_run_that_is_deleted_while_it_is_looked_at_has_no_events(stay: Stay) -> None:
    temporal, id = stay.client.temporal, f"outing-{fresh('oslo')}"
    await temporal.start_workflow("outing", id=id, task_queue="nobody-polls-it")
    await temporal.get_workflow_handle(id).terminate("a test")
    seen = await describe_run(temporal, id)
    assert seen is not None
    await delete_run(stay.client.temporal, id)
    assert not await was_never_accepted(temporal, seen.run)
    assert (await close_reason(temporal, seen.run)).kind == "terminated"
    assert await start_of_run(temporal, id, seen.run.run_id) is None
    assert await first_input(temporal, seen, None) is None


async def test_rows_of_own_participants_are_not_those_of_nested_sagas(stay: Stay) -> None:
    settings, nested = stay.client.project.settings, f"trip-{fresh('oslo')}"
    rows = "insert into saga_guard (saga_id, step, generation, op, reason, created_at)"
    commands = "select %s || '/' || n || '/do', '@shop', 1, 'do', 'do', 0 from generate_series(1, 200) n returning 1"
    stay.query(f"{rows} {commands}", nested)
    stay.query(f"{rows} values (%s, 'room', 1, 'do', 'do', 0) returning 1", f"{nested}/zoo")
    assert await nested_sagas(settings, nested) == [f"{nested}/zoo"]
