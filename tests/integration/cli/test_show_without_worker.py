"""Output of `show`, `watch` and `list` for a saga whose worker is dead, at each position of the saga."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.helpers.processes import WorkerProcess
from tests.integration.cli.conftest import CommandLine, CommandResult, fresh
from tests.integration.cli.test_start_and_show import state_of, until_shown

UNANSWERED = r"incomplete: no worker (answers on|polls) the task queue \S+, so the saga cannot be queried"


async def show_and_list(cli_with_worker_process: CommandLine, id: str) -> tuple[str, dict[str, Any]]:
    """Text and JSON document of `show`; `list` agrees with them."""
    shown = await cli_with_worker_process.saga("show", id)
    document = (await cli_with_worker_process.saga("--json", "show", id)).json
    listed = await until_shown(cli_with_worker_process, ("list",), lambda rows: id in [row["id"] for row in rows])
    row = next(row for row in listed if row["id"] == id)
    assert row["state"] == document["state"]
    for answer in (shown, await cli_with_worker_process.saga("list")):
        assert_readable(answer)
    return shown.out, document


def assert_readable(answer: CommandResult) -> None:
    """The text contains no placeholder."""
    for wrong in ("None", "no message", "{}", ": \n", "  :"):
        assert wrong not in answer.out, answer.out


@pytest.mark.slow
async def test_show_before_the_first_workflow_task(cli_with_worker_process: CommandLine, worker: WorkerProcess) -> None:
    worker.kill()
    id = fresh("trip")
    await cli_with_worker_process.saga("start", "trip", "--id", id)
    text, document = await show_and_list(cli_with_worker_process, id)
    assert re.search(UNANSWERED, text)
    assert (document["state"], document["steps"]) == ("RUNNING", [])


@pytest.mark.slow
async def test_show_during_a_step(cli_with_worker_process: CommandLine, worker: WorkerProcess) -> None:
    id = fresh("trip")
    (cli_with_worker_process.folder / "down").touch()
    await cli_with_worker_process.saga("start", "trip", "--id", id, "--set", "mode=retry")
    await until_shown(
        cli_with_worker_process, ("show", id), lambda story: any((step["attempts"] or 0) > 1 for step in story["steps"])
    )
    worker.kill()
    text, document = await show_and_list(cli_with_worker_process, id)
    assert re.search(UNANSWERED + r"; in flight: flight \(attempt \d\)", text)
    assert document["state"] == "RUNNING"


@pytest.mark.slow
async def test_show_during_compensation(cli_with_worker_process: CommandLine, worker: WorkerProcess) -> None:
    id = fresh("ask")
    (cli_with_worker_process.folder / "undo-down").touch()
    await cli_with_worker_process.saga("start", "ask", "--id", id)
    await until_shown(cli_with_worker_process, ("show", id), lambda story: state_of(story, 1) == "RUNNING")
    assert (await cli_with_worker_process.saga("cancel", id)).code == 0
    story = await until_shown(cli_with_worker_process, ("show", id), lambda story: story["state"] == "COMPENSATING")
    assert story["reason"]["kind"] == "cancelled"
    await until_shown(cli_with_worker_process, ("list",), lambda rows: rows[0]["state"] == "COMPENSATING")
    worker.kill()
    text, document = await show_and_list(cli_with_worker_process, id)
    assert "cancelled: the reason is unknown while the saga cannot be queried" in text
    assert re.search(UNANSWERED + r"; in flight: the undo of hold", text)
    assert (document["state"], document["reason"]["kind"]) == ("COMPENSATING", "cancelled")
    watched = await cli_with_worker_process.saga("watch", id, "--timeout", "100ms")
    assert_readable(watched)
    assert f"{id} COMPENSATING: cancelled: the reason is unknown" in watched.out
    assert re.search(UNANSWERED, watched.out)


@pytest.mark.slow
async def test_parked(cli_with_worker_process: CommandLine, worker: WorkerProcess) -> None:
    id = fresh("trip")
    cli_with_worker_process.break_undo(True)
    await cli_with_worker_process.saga("start", "trip", "--id", id, "--set", "mode=reject", "--wait")
    worker.kill()
    text, document = await show_and_list(cli_with_worker_process, id)
    assert document["state"] == "PARKED"
    assert re.search(UNANSWERED + r"; parked at (car|hotel)", text)


@pytest.mark.slow
async def test_terminated(cli_with_worker_process: CommandLine, worker: WorkerProcess) -> None:
    id = fresh("ask")
    await cli_with_worker_process.saga("start", "ask", "--id", id)
    await until_shown(cli_with_worker_process, ("show", id), lambda story: state_of(story, 1) == "RUNNING")
    worker.kill()
    await cli_with_worker_process.client.temporal.get_workflow_handle(id).terminate(reason="by mistake")
    text, document = await show_and_list(cli_with_worker_process, id)
    assert "by mistake" in text
    assert "nothing was undone, and nothing will be" in text
    assert re.search(UNANSWERED, text)
    assert document["state"] == "TERMINATED"
    stuck = await until_shown(
        cli_with_worker_process, ("list", "--stuck"), lambda rows: id in [row["id"] for row in rows]
    )
    [reasons] = [row["stuck"] for row in stuck if row["id"] == id]
    assert reasons[0].startswith("terminated with unknown effects: no worker")


async def test_after_its_end(cli_with_worker_process: CommandLine, worker: WorkerProcess) -> None:
    id = fresh("trip")
    assert (await cli_with_worker_process.saga("start", "trip", "--id", id, "--set", "mode=reject", "--wait")).code == 3
    worker.kill()
    text, document = await show_and_list(cli_with_worker_process, id)
    assert "incomplete" not in document
    assert "rejected at flight: card declined" in text
