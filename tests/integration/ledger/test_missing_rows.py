"""Ended sagas whose rows are missing in the ledger, or have an earlier state."""

from __future__ import annotations

import time

from saga_workers.reconcile.missing_rows import write_missing_rows
from sagas.protocol.payloads import UNDO_SUFFIX
from tests.helpers import eager_start
from tests.helpers.waiting import until
from tests.integration.cli.conftest import fresh
from tests.integration.ledger.conftest import Stay


async def test_rows_of_ended_sagas_are_written(stay: Stay) -> None:
    kept, lost, undone, parent = [await _ended(stay, saga) for saga in ("stay", "stay", "stay", "trip")]
    nested = f"{parent}/hotel"
    await stay.client.undo(undone, reason="a test", who="ada")
    await stay.wait_for_row(undone, "COMPENSATED")
    stay.query("delete from saga_run where saga_id = any(%s) returning 1", [lost, parent, nested])
    earlier = "set state = 'COMPLETED', updated_at = started_at"
    stay.query(f"update saga_run {earlier} where saga_id = %s returning 1", undone)
    expected = {**dict.fromkeys([kept, lost, parent, nested], "COMPLETED"), undone: "COMPENSATED"}

    async def are_written() -> bool:
        await _write(stay)
        return dict(stay.query("select saga_id, state from saga_run")) == expected  # pyright: ignore[reportArgumentType,reportCallIssue]

    await until(are_written)
    assert await _write(stay) == 0
    undo = await stay.later.saga("undo", lost, "--reason", "a test", "--yes")
    assert undo.code == 0, "its row has the state from which it is undone"
    await stay.wait_for_row(lost, "COMPENSATED")


async def test_rows_of_terminated_and_of_later_sagas_are_left_out(stay: Stay) -> None:
    before = time.time()
    (stay.folder / "broken").touch()
    terminated = await stay.client.start("outing", {"city": fresh("oslo")})
    await stay.wait_for_row(terminated.id, "PARKED")
    await stay.client.temporal.get_workflow_handle(terminated.id).terminate("a test")
    lost = await _ended(stay, "stay")
    stay.query("delete from saga_run where saga_id = %s returning 1", lost)
    assert await _write(stay, until=before) == 0
    await until(lambda: _write(stay))
    assert dict(stay.query("select saga_id, state from saga_run")) == {  # pyright: ignore[reportArgumentType,reportCallIssue]
        terminated.id: "PARKED",
        lost: "COMPLETED",
    }
    assert await _write(stay, since=time.time()) == 0


async def test_a_run_of_a_stranger_stops_no_row(stay: Stay) -> None:
    """The closed undo of a run that has answered a cancel with no value."""
    lost, id, temporal = await _ended(stay, "stay"), fresh("stay"), stay.client.temporal
    stay.query("delete from saga_run where saga_id = %s returning 1", lost)
    queue, input = stay.client.project.settings.temporal.task_queue, eager_start.json_payload({"city": "rome"})
    run = eager_start.KeptRun(temporal, id, queue)
    await run.complete_first_task(await eager_start.start(temporal, "stay", id, queue, input, {}, eager=True))
    await run.complete_update("cancel", [])
    undo = await eager_start.start(temporal, "stay", f"{id}{UNDO_SUFFIX}", queue, input, {}, eager=True)
    await eager_start.complete_first_task(temporal, undo, [eager_start.complete()])

    async def is_written() -> bool:
        await _write(stay)
        return stay.query("select saga_id, state from saga_run") == [(lost, "COMPLETED")]

    await until(is_written)
    await temporal.get_workflow_handle(id).terminate("the end of the test")


async def _ended(stay: Stay, saga: str) -> str:
    """The id of a saga that has completed and has its row."""
    run = await stay.client.start(saga, {"city": fresh("rome")})
    await stay.wait_for_row(run.id, "COMPLETED")
    return run.id


async def _write(stay: Stay, *, since: float = 0.0, until: float | None = None) -> int:
    queue = stay.client.project.settings.temporal.task_queue
    until = time.time() + 60.0 if until is None else until
    return await write_missing_rows(stay.client.locator, queue, since=since, until=until)
