"""`saga start`, `show`, `list`, `watch`, `open`, `undo` against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saga_workers.stuck import stuck_view
from saga_workers.temporal.temporal_runs import describe_run
from tests.helpers.waiting import until
from tests.integration.cli.conftest import CommandLine, fresh


async def until_shown(cli: CommandLine, words: tuple[str, ...], holds: Callable[[Any], bool]) -> Any:
    """The JSON document of a command, as soon as ``holds`` is true of it: Temporal's visibility index lags."""

    async def shown() -> tuple[Any] | None:
        document = (await cli.saga("--json", *words)).json
        return (document,) if holds(document) else None

    [document] = await until(shown, f"{words} shows what is expected")
    return document


def state_of(story: Any, position: int) -> str | None:
    """The state of a step in a story; None while a busy worker does not tell the steps."""
    return story["steps"][position]["state"] if story["steps"] else None


async def test_start_waits_for_completion(cli: CommandLine) -> None:
    id = fresh("good")
    answer = await cli.saga("--json", "start", "trip", "--id", id, "--set", "nights=2", "--wait")
    assert answer.code == 0, answer
    assert answer.json["state"] == "COMPLETED"
    assert answer.json["input"] == {"mode": "ok", "nights": 2}
    assert answer.json["labels"] == {"mode": "ok"}
    assert [step["state"] for step in answer.json["steps"]] == ["DONE"] * 3


async def test_a_completed_saga_is_shown_although_a_database_is_silent(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database may know more than the run only of a saga that could have been undone."""
    monkeypatch.setattr(stuck_view, "EFFECTS_TIMEOUT", 0.5)
    done, final = fresh("good"), fresh("number")
    assert (await cli.saga("start", "trip", "--id", done, "--wait")).code == 0
    assert (await cli.saga("start", "numbered", "--id", final, "--set", "n=1", "--wait")).code == 0
    settings = cli.folder / "saga.toml"
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    text = settings.read_text()
    settings.write_text(f'{text}[connections.silent]\nurl = "postgresql://saga@127.0.0.1:{port}/x"\n')
    doubt = "a database does not answer, so an undo whose run was deleted would not be shown"
    for id, reason in ((done, doubt), (final, None)):
        shown = (await cli.saga("--json", "show", id)).json
        assert (shown["state"], shown.get("incomplete")) == ("COMPLETED", reason)
    server.close()
    await server.wait_closed()
    settings.write_text(f'{text}[connections.refusing]\nurl = "postgresql://saga@127.0.0.1:{port}/x"\n')
    assert (await cli.saga("--json", "show", done)).json["incomplete"] == doubt
    unknown = await cli.saga("show", "nobody-knows-it")
    assert (unknown.code, "it is unknown whether it has open effects: " in unknown.err) == (2, True), unknown


async def test_the_definition_travels_with_the_start(cli: CommandLine) -> None:
    """The header is sent: the run needs no `saga.load`, and --again could not work without."""
    id = fresh("header")
    await cli.saga("start", "trip", "--id", id, "--wait")
    events = [event async for event in cli.client.temporal.get_workflow_handle(id).fetch_history_events()]
    header = events[0].workflow_execution_started_event_attributes.header.fields
    assert "saga-definition" in header


async def test_a_compensated_saga_can_be_started_again(cli: CommandLine) -> None:
    id = fresh("again")
    words = ("start", "trip", "--id", id, "--set", "mode=reject", "--wait")
    answer = await cli.saga(*words)
    assert answer.code == 3
    assert "COMPENSATED" in answer.out
    assert "rejected at flight: card declined" in answer.out
    assert "↩ undone (unwork" in answer.out
    refused = await cli.saga(*words)
    assert refused.code == 9
    assert "--again" in refused.err
    again = await cli.saga("--json", *words, "--again")
    assert again.code == 3
    assert {step["generation"] for step in again.json["steps"]} == {2}


async def test_the_story_is_written_as_a_page(cli: CommandLine, tmp_path: Path) -> None:
    id, page = fresh("page"), tmp_path / "trip.html"
    await cli.saga("start", "trip", "--id", id, "--set", "mode=reject", "--wait")
    shown = await cli.saga("--json", "show", id, "--html", str(page))
    assert shown.json["state"] == "COMPENSATED"
    assert shown.err == f"written: {page}\n"
    assert "rejected at flight: </span>card declined" in page.read_text(encoding="utf-8")
    assert page.stat().st_mode & 0o777 == 0o600
    refused = await cli.saga("show", id, "--html", str(tmp_path / "nowhere" / "trip.html"))
    assert (refused.code, refused.out) == (2, "")
    assert "trip.html cannot be written: No such file or directory" in refused.err


async def test_a_second_start_with_the_same_id_is_refused(cli: CommandLine) -> None:
    id = fresh("one")
    assert (await cli.saga("--json", "start", "trip", "--id", id, "--wait")).code == 0
    second = await cli.saga("--json", "start", "trip", "--id", id)
    assert second.json["started"] is False
    told = f"already exists: {id}, with the same input; nothing was started"
    assert (await cli.saga("start", "trip", "--id", id)).out.splitlines()[0] == told
    waited = await cli.saga("--json", "start", "trip", "--id", id, "--wait")
    assert (waited.code, waited.json["state"]) == (0, "COMPLETED")
    assert told in waited.err.splitlines()
    other = await cli.saga("start", "trip", "--id", id, "--set", "nights=9")
    assert other.code == 9
    assert "another input" in other.err
    assert (await cli.saga("start", "ask", "--id", id)).code == 9


async def test_a_list_of_a_saga_that_the_project_has_not_says_so(cli: CommandLine) -> None:
    answer = await cli.saga("list", "--saga", "trp")
    assert (answer.code, answer.out) == (0, "no sagas\n")
    assert answer.err == "the project has no definition of a saga trp; did you mean trip?\n"
    assert (await cli.saga("list", "--saga", "trip", "--state", "RESIDUE")).err == ""


async def test_wait_ends_at_its_timeout(cli: CommandLine) -> None:
    id = fresh("slow")
    answer = await cli.saga("start", "ask", "--id", id, "--wait", "--timeout", "500ms")
    assert answer.code == 7
    assert "is still running" in answer.out
    assert (await cli.saga("signal", id, "approve")).code == 0


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize(("saga", "nested"), [("trip", ""), ("tour", "/leg")])
async def test_waiting_prints_each_failed_attempt_where_there_is_no_terminal(
    cli: CommandLine, saga: str, nested: str
) -> None:
    id = fresh("retry")
    down = cli.folder / "down"
    down.touch()
    answer = await cli.saga("--json", "start", saga, "--id", id, "--set", "mode=retry", "--wait", "--timeout", "3s")
    assert answer.code == 7
    watched = await cli.saga("watch", id, "--timeout", "1s")
    assert watched.code == 7
    assert re.search("the airline does not answer.*; the next attempt at 2", watched.out), watched
    for option in ("--json", "--jsonl"):
        watched = await cli.saga(option, "watch", id, "--timeout", "1s")
        documents = [watched.json] if option == "--json" else map(json.loads, watched.out.splitlines())
        assert {document["id"] for document in documents} == {id}
        assert re.search(f"{id}{nested}: flight: attempt .* does not answer.*; the next attempt at 2", watched.err), (
            watched
        )
    down.unlink()
    lines = [line for line in answer.err.splitlines() if "the airline does not answer" in line]
    assert lines[0].startswith(f"{id}{nested}: flight: attempt 1: ")
    assert "; the next attempt at 2" in lines[0]
    assert len(lines) == len(set(lines))
    told = (await cli.saga("--json", "show", f"{id}{nested}")).json
    assert told["steps"][2]["error"]["message"] == "the airline does not answer"
    assert (await cli.saga("watch", id)).code == 0


async def test_list_finds_by_state_saga_and_label(cli: CommandLine) -> None:
    good, bad = fresh("good"), fresh("bad")
    await cli.saga("start", "trip", "--id", good, "--wait")
    await cli.saga("start", "trip", "--id", bad, "--set", "mode=reject", "--wait")
    both = await until_shown(cli, ("list",), lambda rows: len(rows) == 2 and all(row["ended_at"] for row in rows))
    assert [(row["id"], row["state"]) for row in both] == [(bad, "COMPENSATED"), (good, "COMPLETED")], "latest first"
    assert all("steps" not in row for row in both)

    async def ids(*words: str) -> list[str]:
        return [row["id"] for row in (await cli.saga("--json", "list", *words)).json]

    assert await ids("--state", "completed") == [good]
    assert await ids("--state", "COMPENSATED") == [bad]
    assert await ids("-l", "mode=reject") == [bad]
    assert await ids("--saga", "order", "--where", f"TaskQueue = '{_queue(cli)}'") == []
    assert await ids("--since", "2099-01-01") == []
    assert len(await ids("--limit", "1")) == 1
    lines = (await cli.saga("list")).out.splitlines()
    assert any(good in line and "COMPLETED" in line for line in lines)


def _queue(cli: CommandLine) -> str:
    return cli.client.project.settings.temporal.task_queue


async def test_show_merges_the_undo_with_the_run(cli: CommandLine) -> None:
    id = fresh("undo")
    done = (await cli.saga("--json", "start", "trip", "--id", id, "--wait")).json
    assert (await cli.saga("undo", id, "--yes")).code == 2  # without a reason
    answer = await cli.saga("--json", "undo", id, "--reason", "the guest fell ill", "--yes")
    assert answer.code == 0, answer
    assert answer.json["state"] == "COMPENSATED"
    story = (await cli.saga("--json", "show", id)).json
    assert (story["id"], story["state"], story["reason"]["kind"]) == (id, "COMPENSATED", "undone")
    before = {step["id"]: step["ended_at"] for step in done["steps"]}
    assert {step["id"]: step["ended_at"] for step in story["steps"]} == before
    assert all(step["compensation"]["ended_at"] >= step["ended_at"] for step in story["steps"])
    rows = await until_shown(cli, ("list",), lambda rows: [row["state"] for row in rows] == ["COMPENSATED"])
    assert [row["id"] for row in rows] == [id]
    assert (await cli.saga("undo", id, "--reason", "x", "--yes")).code == 9


async def test_an_undone_saga_has_no_output_and_names_who_decided(cli: CommandLine) -> None:
    undone, cancelled = fresh("kept"), fresh("cancel")
    for id in (undone, cancelled):
        await cli.saga("start", "ask", "--id", id)
    assert (await cli.saga("signal", undone, "approve")).code == 0
    assert (await cli.saga("--json", "watch", undone)).code == 0
    assert (await cli.saga("--json", "show", undone)).json["output"] is not None
    assert (await cli.saga("undo", undone, "--reason", "sold twice", "--as", "ada", "--yes")).code == 0
    assert (await cli.saga("cancel", cancelled, "--as", "ada", "--reason", "no room")).code == 0
    assert (await cli.saga("watch", cancelled)).code == 6
    for id, who, decision, reason in (
        (undone, "ada", "undo", "sold twice"),
        (cancelled, "ada (unverified)", "cancel", "no room"),
    ):
        story = (await cli.saga("--json", "show", id)).json
        assert (story["state"], story["output"]) == ("COMPENSATED", None)
        [made] = story["operator"]
        assert [made[name] for name in ("who", "step", "decision", "reason")] == [
            who,
            "",
            decision,
            reason,
        ]
        text = (await cli.saga("show", id)).out
        assert f"{who}: {decision}, because {reason}" in text
        assert "output" not in text


@pytest.mark.slow
async def test_waiting_shows_progress_on_a_terminal(cli: CommandLine) -> None:
    id = fresh("ask")
    terminal, given = os.openpty()
    argv = [sys.executable, "-P", "-m", "saga_cli", "start", "ask", "--id", id, "--wait", "--json"]
    child = await asyncio.create_subprocess_exec(
        *argv, "--config", str(cli.folder / "saga.toml"), stdout=asyncio.subprocess.PIPE, stderr=given
    )
    os.close(given)
    seen = b""
    while b"approval" not in seen:
        seen += await asyncio.to_thread(os.read, terminal, 4096)
    assert (await cli.saga("signal", id, "approve")).code == 0
    while await asyncio.to_thread(read_terminal, terminal):
        pass
    assert child.stdout is not None
    assert json.loads(await child.stdout.read())["state"] == "COMPLETED"
    assert await child.wait() == 0
    os.close(terminal)


def read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux, after the last process has closed the other end
        return b""


async def test_undo_past_a_pivot_is_refused(cli: CommandLine) -> None:
    id = fresh("order")
    await cli.saga("start", "order", "--set", f'number="{id}"')
    await cli.saga("signal", id, "delivered")
    await cli.saga("watch", id)
    answer = await cli.saga("undo", id, "--reason", "changed my mind", "--yes")
    assert answer.code == 9
    assert "point of no return" in answer.err


async def test_watch_prints_each_change_and_exits_at_the_end(cli: CommandLine) -> None:
    id = fresh("watched")
    await cli.saga("start", "ask", "--id", id)
    assert (await cli.saga("watch", id, "--timeout", "300ms")).code == 7
    await cli.saga("signal", id, "approve", "--as", "anna")
    answer = await cli.saga("--jsonl", "watch", id)
    assert answer.code == 0
    assert '"state": "COMPLETED"' in answer.out.splitlines()[-1]
    assert '"by": "anna"' in answer.out


async def test_open_prints_the_link(cli: CommandLine) -> None:
    id = fresh("open")
    await cli.saga("start", "trip", "--id", id, "--wait")
    answer = await cli.saga("open", id)
    assert answer.out.startswith("http://")
    assert id in answer.out


async def test_every_command_shows_a_terminated_saga_as_terminated(cli: CommandLine) -> None:
    id = fresh("killed")
    await cli.saga("start", "ask", "--id", id)
    await until_shown(cli, ("show", id), lambda story: state_of(story, 0) == "DONE")
    await cli.client.temporal.get_workflow_handle(id).terminate(reason="by mistake")
    story = (await cli.saga("--json", "show", id)).json
    assert story["state"] == "TERMINATED"
    assert story["reason"]["kind"] == "terminated"
    assert "by mistake" in story["reason"]["message"]
    assert (await cli.saga("watch", id)).code == 1
    shown = (await cli.saga("show", id)).out
    assert "nothing was undone, and nothing will be by itself" in shown
    assert f"stuck: terminated with open effects: hold: `saga resume {id}` undoes them" in shown
    stuck = await until_shown(cli, ("list", "--stuck"), lambda rows: bool(rows))
    assert [row["id"] for row in stuck] == [id]
    command = f"saga resume {id}"
    assert stuck[0]["stuck"] == [f"terminated with open effects: hold: `{command}` undoes them"]
    refused = await cli.saga("start", "ask", "--id", id)
    assert refused.code == 9
    assert "terminated" in refused.err


async def test_a_start_refused_by_the_worker_is_reported(cli: CommandLine) -> None:
    """A plain Temporal client can send anything; its saga closes Failed and runs nothing."""
    id = fresh("foreign")
    await cli.client.temporal.start_workflow("trip", {"nights": "many"}, id=id, task_queue=_queue(cli))
    answer = await cli.saga("watch", id)
    assert answer.code == 2, answer
    shown = await cli.saga("show", id)
    assert "refused: " in shown.out
    assert "nights" in shown.out


async def test_without_a_worker_the_commands_report_it(cli_without_worker: CommandLine) -> None:
    id = fresh("lonely")
    started = await cli_without_worker.saga("start", "trip", "--id", id)
    assert started.code == 0
    assert "no worker polls the task queue" in started.err
    assert "saga worker" in started.err
    waited = await cli_without_worker.saga("start", "trip", "--id", id, "--wait", "--timeout", "100ms")
    assert (waited.code, waited.err.count("no worker polls the task queue")) == (7, 1), waited
    shown = await cli_without_worker.saga("show", id)
    assert shown.code == 0
    assert "incomplete: no worker polls" in shown.out
    stuck = await until_shown(cli_without_worker, ("list", "--stuck"), lambda rows: bool(rows))
    assert "no worker polls" in stuck[0]["stuck"][0]
    resolved = await cli_without_worker.saga("resolve", id, "hotel", "retry", "--reason", "x")
    assert resolved.code == 1
    assert "no worker polls" in resolved.err
    cancelled = await cli_without_worker.saga("cancel", id)
    assert cancelled.code == 0
    assert "recorded" in cancelled.out
    described = await describe_run(cli_without_worker.client.temporal, id)
    assert described is not None
    assert described.run.running


async def test_a_closed_saga_needs_no_worker(cli_without_worker: CommandLine) -> None:
    id = fresh("closed")
    async with _worker(cli_without_worker):
        await cli_without_worker.saga("start", "trip", "--id", id, "--wait")
    story = (await cli_without_worker.saga("--json", "show", id)).json
    assert story["state"] == "COMPLETED"
    assert len(story["steps"]) == 3


def _worker(cli: CommandLine) -> Any:
    from tests.helpers.local_worker import running_worker

    return running_worker(cli.client.project)


async def test_a_retried_step_shows_its_error(cli: CommandLine) -> None:
    """Attempts within a pending call are read from Temporal alone: the saga has not received them."""
    id = fresh("retry")
    (cli.folder / "down").touch()
    await cli.saga("start", "trip", "--id", id, "--set", "mode=retry")
    story = await tried(cli, id, "flight", lambda step: step["attempts"] >= 2)
    assert (story["state"], story["error"]["message"]) == ("RUNNING", "the airline does not answer")
    shown = await cli.saga("show", id)
    assert "attempts" in shown.out
    assert "the airline does not answer" in shown.out
    watched = await cli.saga("watch", id, "--timeout", "1s")
    assert re.search(r"\(attempt [0-9]+: the airline does not answer", watched.out)
    (cli.folder / "down").unlink()
    ended = await cli.saga("--json", "watch", id, "--timeout", "60s")
    assert ended.json["steps"][2]["attempts"] > story["attempts"]
    assert ended.json["state"] == "COMPLETED"


async def tried(cli: CommandLine, id: str, step: str, holds: Callable[[Any], bool]) -> Any:
    async def row() -> Any:
        story = (await cli.saga("--json", "show", id)).json
        return next((each_step for each_step in story["steps"] if each_step["id"] == step and holds(each_step)), None)

    return await until(row, f"{step} of {id}")
