"""Cancels, decisions and signals while the worker of a saga is dead: a real process that was killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from saga_cli import wait
from saga_workers import interventions
from saga_workers.client import Client
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.processes import TemporalServer, WorkerProcess
from tests.integration.cli.conftest import CommandLine, fresh, write_project
from tests.integration.cli.test_start_and_show import state_of, until_shown


@pytest.fixture
def worker(temporal: TemporalServer, tmp_path: Path) -> Iterator[WorkerProcess]:
    write_project(tmp_path / "project", temporal)
    with WorkerProcess("worker", tmp_path / "project") as process:
        yield process


@pytest.fixture
async def cli(worker: WorkerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    project = Project(load_settings(config=str(tmp_path / "project" / "saga.toml")))
    return CommandLine(tmp_path / "project", capsys, await Client.connect(project))


async def start_and_kill_worker(cli: CommandLine, worker: WorkerProcess, count: int = 1) -> list[str]:
    """Waiting sagas whose worker was just killed: Temporal still lists it as a poller."""
    ids = [fresh("ask") for _ in range(count)]
    for id in ids:
        await cli.saga("start", "ask", "--id", id)
    for id in ids:
        await until_shown(cli, ("show", id), lambda story: state_of(story, 1) == "RUNNING")
    worker.kill()
    return ids


@contextmanager
def short_timeouts(monkeypatch: pytest.MonkeyPatch, seconds: float = 1.0) -> Iterator[None]:
    """Shorten the timeouts while no worker can answer."""
    with monkeypatch.context() as patch:
        patch.setattr(interventions, "UPDATE_TIMEOUT", seconds)
        patch.setattr(interventions, "CANCEL_TIMEOUT", seconds)
        yield


@pytest.mark.slow
async def test_a_cancel_of_a_saga_whose_worker_is_dead_is_requested(
    cli: CommandLine, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    [id] = await start_and_kill_worker(cli, worker)
    with short_timeouts(monkeypatch):
        for _ in range(2):
            answer = await cli.saga("--json", "cancel", id, "--reason", "not wanted", "--as", "ben")
            assert (answer.code, answer.json["response"]) == (0, "requested"), answer
            assert "no worker has answered yet" in answer.json["note"]
    story = (await cli.saga("--json", "show", id)).json
    assert (story["cancel_requested"], bool(story["incomplete"])) == (True, True)
    monkeypatch.setattr(wait, "_SILENCE", 0.1)
    with short_timeouts(monkeypatch):
        waited = await cli.saga("cancel", id, "--wait", "--timeout", "1s")
    assert waited.code == 7, waited
    told = "no worker has answered the cancel yet; waiting: after 1 s it is recorded in Temporal, and the next worker"
    assert told in waited.err
    assert waited.err.count(f"waiting for {id}: no worker answers on the task queue") == 1
    worker.start()
    waited = await cli.saga("--json", "watch", id, "--timeout", "60s")
    assert (waited.code, waited.json["state"], waited.json["reason"]["kind"]) == (6, "COMPENSATED", "cancelled")
    # The worker takes Temporal's own cancel, or the update, whichever comes first.
    assert waited.json["reason"]["message"] in ("not wanted", "ben (unverified): not wanted")


async def test_a_watch_after_a_pause_that_nobody_answers_says_so(
    cli: CommandLine, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    [id] = await start_and_kill_worker(cli, worker)
    monkeypatch.setattr(wait, "_SILENCE", 0.1)
    with short_timeouts(monkeypatch):
        paused = await cli.saga("pause", id)
    assert paused.code == 1, paused
    assert "no worker has answered the pause yet; waiting: it has no effect unless a worker answers\n" in paused.err
    watched = await cli.saga("watch", id, "--timeout", "1s")
    assert watched.code == 7, watched
    assert (
        watched.err.count(
            "no worker has answered the query yet; waiting: without an answer, what Temporal knows is shown\n"
        )
        == 1
    )
    assert "incomplete: no worker answers on the task queue" in watched.out


@pytest.mark.slow
async def test_a_cancel_accepted_before_the_worker_died_is_recorded(cli: CommandLine, worker: WorkerProcess) -> None:
    id = fresh("order")
    await cli.saga("start", "order", "--set", f'number="{id}"')
    await until_shown(cli, ("show", id), lambda story: story["state"] == "COMMITTED")
    assert (await cli.saga("cancel", id)).code == 9
    cli.break_undo(True)
    parked = fresh("ask")
    await cli.saga("start", "ask", "--id", parked)
    await until_shown(cli, ("show", parked), lambda story: state_of(story, 1) == "RUNNING")
    taken = await cli.saga("--json", "cancel", parked, "--wait", "--timeout", "60s")
    assert (taken.code, taken.json["state"]) == (4, "PARKED"), taken
    worker.kill()
    assert (await cli.saga("--json", "show", parked)).json["cancel_requested"] is True
    assert (await cli.saga("--json", "show", id)).json["cancel_requested"] is False, "it was refused"


@pytest.mark.slow
async def test_a_cancel_past_the_commit_point_has_no_later_effect(
    cli: CommandLine, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = fresh("order")
    await cli.saga("start", "order", "--set", f'number="{id}"')
    await until_shown(cli, ("show", id), lambda story: story["state"] == "COMMITTED")
    worker.kill()
    with short_timeouts(monkeypatch):
        answer = await cli.saga("--json", "cancel", id)
    assert (answer.code, answer.json["response"]) == (0, "requested"), answer
    worker.start()
    again = await cli.saga("cancel", id)
    assert again.code == 9, again
    assert "past the point of no return" in again.err
    await cli.saga("signal", id, "delivered")
    assert (await cli.saga("watch", id, "--timeout", "60s")).code == 0


@pytest.mark.slow
async def test_a_decision_without_a_worker_is_reported_as_not_recorded(
    cli: CommandLine, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    [id] = await start_and_kill_worker(cli, worker)
    monkeypatch.setattr(wait, "_SILENCE", 0.1)
    with short_timeouts(monkeypatch):
        decided = await cli.saga("resolve", id, "approval", "retry", "--reason", "x")
        rehearsed = await cli.saga("resolve", id, "approval", "retry", "--reason", "x", "--dry-run")
    assert decided.code == 1, decided
    assert "no worker has answered the decision yet; waiting: it has no effect unless a worker answers\n" in decided.err
    assert "it is not recorded" in decided.err
    assert rehearsed.code == 1, rehearsed
    sent = await cli.saga("signal", id, "approve", "--as", "ada")
    assert sent.code == 0, sent
    assert "not checked whether" in sent.err
    worker.start()
    ended = await cli.saga("--json", "watch", id, "--timeout", "60s")
    assert (ended.code, ended.json["output"]) == (0, {"by": "ada"})


@pytest.mark.slow
async def test_a_requested_cancel_survives_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with TemporalServer(tmp_path / "temporal") as server:
        folder = tmp_path / "project"
        cli = CommandLine(folder, capsys, await Client.connect(write_project(folder, server)))
        with WorkerProcess("worker", folder) as worker:
            [id] = await start_and_kill_worker(cli, worker)
            with short_timeouts(monkeypatch):
                assert (await cli.saga("--json", "cancel", id)).json["response"] == "requested"
            server.kill()
            server.start()
            worker.start()
            assert (await cli.saga("watch", id, "--timeout", "90s")).code == 6


@pytest.mark.slow
async def test_a_bulk_cancel_reaches_every_saga(
    cli: CommandLine, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await start_and_kill_worker(cli, worker, 20)
    where = "WorkflowType = 'ask'"
    await until_shown(cli, ("list",), lambda rows: len(rows) == len(ids))
    monkeypatch.setattr(wait, "_SILENCE", 0.1)
    began = time.monotonic()
    with short_timeouts(monkeypatch, 3.0):
        answer = await cli.saga("--json", "cancel", "--where", where, "--yes")
    assert "no worker has answered for 20 sagas yet; waiting: a cancel is recorded in Temporal then" in answer.err
    took = time.monotonic() - began
    assert {row["id"]: row["response"] for row in answer.json} == dict.fromkeys(ids, "requested")
    assert answer.code == 0, answer
    assert took < len(ids) * 3.0 / 2, "they are asked at the same time"
    worker.start()
    for id in ids:
        assert (await cli.saga("watch", id, "--timeout", "60s")).code == 6
