"""Notifications in the output of `saga show`, `watch`, `list` and `notify`, against a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer
from tests.integration.cli.conftest import CommandLine, fresh, write_project
from tests.integration.cli.test_start_and_show import until_shown

NOTIFYING_SAGA = """
saga: tells
steps:
  - {id: pay, uses: work, pivot: true}
notify:
  - {when: completed, uses: work}
  - {when: completed, uses: unwork, intervals: [10ms, 10ms]}
"""


@pytest.fixture
async def notifying_cli(
    temporal: TemporalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[CommandLine]:
    project = write_project(tmp_path / "project", temporal)
    (tmp_path / "project" / "tells.saga.yaml").write_text(NOTIFYING_SAGA)
    async with running_worker(project) as client:
        yield CommandLine(tmp_path / "project", capsys, client)


async def test_an_abandoned_notification_is_shown_and_can_be_resent(notifying_cli: CommandLine) -> None:
    id = fresh("told")
    notifying_cli.break_undo(True)  # now `unwork` always rejects
    assert (await notifying_cli.saga("start", "tells", "--id", id, "--wait")).code == 0
    rows = await until_shown(notifying_cli, ("notify", id), lambda rows: all(row["state"] != "PENDING" for row in rows))
    assert [(row["id"], row["state"], row["attempts"]) for row in rows] == [
        ("notify-0-completed", "DELIVERED", 1),
        ("notify-1-completed", "EXHAUSTED", 1),
    ]
    shown = (await notifying_cli.saga("show", id)).out
    assert "notify-0-completed  work  DELIVERED  1 attempt" in shown
    assert "notify-1-completed  unwork  EXHAUSTED  1 attempt" in shown
    assert "the other side says no" in shown
    assert f"saga notify {id} notify-1-completed --again" in shown
    assert (await notifying_cli.saga("--json", "show", id)).json["notifications"] == rows
    assert "  notify-1-completed EXHAUSTED, attempt 1" in (await notifying_cli.saga("watch", id)).out
    assert [row["id"] for row in (await notifying_cli.saga("--json", "list")).json] == [id]
    stuck = await until_shown(notifying_cli, ("list", "--stuck"), lambda rows: bool(rows))
    assert [row["id"] for row in stuck] == [id]
    assert stuck[0]["stuck"][0].startswith("notify-1-completed is EXHAUSTED after 1 attempt: the other side says no")

    notifying_cli.break_undo(False)
    again = await notifying_cli.saga("notify", id, "--again")
    assert (again.code, "notify-1-completed: sent again" in again.out) == (0, True), again
    await until_shown(notifying_cli, ("notify", id), lambda rows: {row["state"] for row in rows} == {"DELIVERED"})
    assert (await notifying_cli.saga("list", "--stuck")).out.strip() == "nothing is stuck"
    human = (await notifying_cli.saga("notify", id, "notify-0-completed")).out
    assert human.startswith("notify-0-completed  work  DELIVERED")


async def test_mistakes_give_a_one_line_error(notifying_cli: CommandLine) -> None:
    id = fresh("plain")
    assert (await notifying_cli.saga("start", "order", "--id", id, "--input", '{"number": "1"}')).code == 0
    assert f"{id} has no notifications" in (await notifying_cli.saga("notify", id)).out
    for again in ((), ("--again",)):
        unknown = await notifying_cli.saga("notify", id, "nosuch", *again)
        assert (unknown.code, f"{id} has no notification nosuch" in unknown.err) == (2, True), unknown
    refused = await notifying_cli.saga("notify", id, "--again")
    assert (refused.code, "is pending or exhausted" in refused.err) == (9, True), refused
    lost = await notifying_cli.saga("notify", "nobody-knows-it")
    assert (lost.code, "there is no saga with the id" in lost.err) == (2, True), lost
