"""What `show`, `watch` and `list` tell of a saga whose worker is dead, wherever the saga was when it died."""

from __future__ import annotations

import re
from typing import Any

from tests.helpers.processes import WorkerProcess
from tests.integration.cli.conftest import Answer, Shell, fresh
from tests.integration.cli.test_start_and_show import until

UNANSWERED = r"not the whole story: no worker (answers on|polls) the task queue \S+, so the saga itself cannot be asked"


async def told(office: Shell, id: str) -> tuple[str, dict[str, Any]]:
    """What `show` prints, and its document; `list` says the same."""
    shown = await office.saga("show", id)
    document = (await office.saga("--json", "show", id)).json
    listed = await until(office, ("list",), lambda rows: id in [row["id"] for row in rows])
    row = next(row for row in listed if row["id"] == id)
    assert row["state"] == document["state"]
    for answer in (shown, await office.saga("list")):
        proper(answer)
    return shown.out, document


def proper(answer: Answer) -> None:
    """No placeholder is left in what a person reads."""
    for wrong in ("None", "no message", "{}", ": \n", "  :"):
        assert wrong not in answer.out, answer.out


async def test_before_its_first_task(office: Shell, worker: WorkerProcess) -> None:
    worker.kill()
    id = fresh("trip")
    await office.saga("start", "trip", "--id", id)
    text, document = await told(office, id)
    assert re.search(UNANSWERED, text)
    assert (document["state"], document["steps"]) == ("RUNNING", [])


async def test_in_the_middle_of_a_step(office: Shell, worker: WorkerProcess) -> None:
    id = fresh("trip")
    (office.folder / "down").touch()
    await office.saga("start", "trip", "--id", id, "--set", "mode=retry")
    await until(office, ("show", id), lambda story: any((one["attempts"] or 0) > 1 for one in story["steps"]))
    worker.kill()
    text, document = await told(office, id)
    assert re.search(UNANSWERED + r"; under way: flight \(attempt \d\)", text)
    assert document["state"] == "RUNNING"


async def test_while_it_is_undone(office: Shell, worker: WorkerProcess) -> None:
    id = fresh("ask")
    (office.folder / "undo-down").touch()
    await office.saga("start", "ask", "--id", id)
    await until(office, ("show", id), lambda story: story["steps"] and story["steps"][1]["state"] == "RUNNING")
    assert (await office.saga("cancel", id)).code == 0
    story = await until(office, ("show", id), lambda story: story["state"] == "COMPENSATING")
    assert story["reason"]["kind"] == "cancelled"
    await until(office, ("list",), lambda rows: rows[0]["state"] == "COMPENSATING")
    worker.kill()
    text, document = await told(office, id)
    assert "cancelled: who or what led to it is not known while the saga cannot be asked" in text
    assert re.search(UNANSWERED + r"; under way: the undo of hold", text)
    assert (document["state"], document["reason"]["kind"]) == ("COMPENSATING", "cancelled")
    watched = await office.saga("watch", id, "--timeout", "100ms")
    proper(watched)
    assert f"{id} COMPENSATING: cancelled: who or what" in watched.out
    assert re.search(UNANSWERED, watched.out)


async def test_parked(office: Shell, worker: WorkerProcess) -> None:
    id = fresh("trip")
    office.break_undo(True)
    await office.saga("start", "trip", "--id", id, "--set", "mode=reject", "--wait")
    worker.kill()
    text, document = await told(office, id)
    assert document["state"] == "PARKED"
    assert re.search(UNANSWERED + r"; parked at (car|hotel)", text)


async def test_terminated(office: Shell, worker: WorkerProcess) -> None:
    id = fresh("ask")
    await office.saga("start", "ask", "--id", id)
    await until(office, ("show", id), lambda story: story["steps"] and story["steps"][1]["state"] == "RUNNING")
    worker.kill()
    await office.client.temporal.get_workflow_handle(id).terminate(reason="by mistake")
    text, document = await told(office, id)
    assert "by mistake" in text
    assert "nothing was undone, and nobody will undo it" in text
    assert re.search(UNANSWERED, text)
    assert document["state"] == "TERMINATED"
    stuck = await until(office, ("list", "--stuck"), lambda rows: id in [row["id"] for row in rows])
    [reasons] = [row["stuck"] for row in stuck if row["id"] == id]
    assert reasons[0].startswith("terminated with effects nobody knows: no worker")


async def test_after_its_end(office: Shell, worker: WorkerProcess) -> None:
    id = fresh("trip")
    assert (await office.saga("start", "trip", "--id", id, "--set", "mode=reject", "--wait")).code == 3
    worker.kill()
    text, document = await told(office, id)
    assert "incomplete" not in document
    assert "rejected at flight: card declined" in text
