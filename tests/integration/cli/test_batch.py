"""`saga batch` for batches of single sagas, without a ledger: through the command, on a real server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from saga_workers.temporal.temporal_runs import describe_run
from sagas.protocol.payloads import BATCH_PREFIX
from tests.helpers.command_processes import RunningCommand
from tests.helpers.waiting import until
from tests.integration.cli.conftest import CommandLine, fresh


def write(cli: CommandLine, rows: list[dict[str, object]]) -> str:
    file = cli.folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


async def test_show_counts_states_and_groups_failures(cli: CommandLine) -> None:
    batch = fresh("show")
    file = write(cli, [{"nights": n, "mode": "reject" if n < 3 else "ok"} for n in range(10)])
    assert (await cli.saga("start", "trip", "--from", file, "--batch", batch)).code == 1

    async def counts() -> bool:  # Temporal's visibility store lags
        answer = await cli.saga("--json", "batch", "show", batch)
        return answer.json["sagas"] == {"COMPLETED": 7, "COMPENSATED": 3}

    await until(counts)
    shown = (await cli.saga("--json", "batch", "show", batch)).json
    assert (shown["state"], shown["saga"], shown["total"], shown["bulk"]) == ("STARTED", "trip", 10, False)
    assert shown["rows"] == {"started": 10, "existing": 0, "refused": 0, "not_started": 0}
    assert shown["rate"] > 0
    (group,) = shown["failures"]
    assert (group["count"], group["kind"], group["step"], group["message"]) == (
        3,
        "rejected",
        "flight",
        "card declined",
    )
    lines = (await cli.saga("batch", "show", batch)).out
    assert "3 COMPENSATED rejected at flight: card declined" in lines
    assert batch in (await cli.saga("batch", "list")).out
    listed = (await cli.saga("--json", "list", "--limit", "20")).json
    assert len(listed) == 10, "the record of the batch is not a saga"


async def test_failed_sagas_are_started_again_from_temporal(cli: CommandLine) -> None:
    batch = fresh("retry")
    file = write(cli, [{"nights": n, "mode": "reject" if n == 2 else "ok"} for n in range(4)])
    assert (await cli.saga("start", "trip", "--from", file, "--batch", batch)).code == 1
    await asyncio.to_thread(Path(file).unlink)

    async def failed() -> bool:
        return (await cli.saga("--json", "batch", "show", batch)).json["sagas"].get("COMPENSATED") == 1

    await until(failed)
    actions = cli.folder / "trip.saga.yaml"
    actions.write_text(actions.read_text().replace('with: {mode: "${{ input.mode }}"}', "with: {mode: ok}"))
    answer = await cli.saga("--json", "batch", "retry-failed", batch)
    assert answer.code == 0, answer
    assert (answer.json["total"], answer.json["started"], answer.json["ended"]) == (1, 1, {"COMPLETED": 1})

    async def completed() -> bool:
        return (await cli.saga("--json", "batch", "show", batch)).json["sagas"] == {"COMPLETED": 4}

    await until(completed)
    assert (await cli.saga("--json", "show", f"{batch}-3")).json["generation"] == 2


async def test_pause_resume_and_cancel(cli: CommandLine) -> None:
    batch = fresh("cancel")
    (cli.folder / "ask.saga.yaml").write_text(
        "saga: ask\nlabels: {kind: ask}\nsteps:\n  - {id: hold, uses: work, compensate: unwork}\n"
        "  - {id: approval, uses: wait, with: {signal: approve}}\n"
    )
    file = write(cli, [{} for _ in range(400)])
    words = ("start", "ask", "--from", file, "--batch", batch, "--rate", "5")
    child = RunningCommand(cli.folder, *words)
    await until(lambda: exists(cli, f"{batch}-3"))
    assert (await cli.saga("--json", "batch", "pause", batch)).json == {"id": batch, "state": "PAUSED"}

    async def still() -> int | None:
        """The newest saga, when the command has seen the pause: five would be started in a second."""
        last = await newest(cli, batch)
        await asyncio.sleep(1.5)
        return None if await exists(cli, f"{batch}-{last + 1}") else last

    last = await until(still)
    assert (await cli.saga("--json", "batch", "resume", batch)).json["state"] == "STARTING"
    await until(lambda: exists(cli, f"{batch}-{last + 1}"))
    refused = await cli.saga("batch", "cancel", batch)
    assert "add --yes" in refused.err
    cancelled = await cli.saga("--json", "batch", "cancel", batch, "--yes", "--reason", "wrong file")
    assert cancelled.code == 0, cancelled
    ended = await child.ended()
    assert ended.code == 1, ended
    assert "somebody has cancelled the batch" in ended.err
    started = await newest(cli, batch)
    assert len(cancelled.json["cancelled"]) == started < 400
    assert (await cli.saga("watch", f"{batch}-1")).code != 0
    story = (await cli.saga("--json", "show", f"{batch}-{started}")).json
    assert story["state"] == "COMPENSATED"
    assert (await cli.saga("--json", "batch", "show", batch)).json["state"] == "CANCELLED"


@pytest.mark.slow
async def test_a_second_command_takes_the_batch_over(cli: CommandLine) -> None:
    batch = fresh("over")
    file = write(cli, [{"nights": n} for n in range(100)])  # 20 s of the first command
    first = RunningCommand(cli.folder, "start", "trip", "--from", file, "--batch", batch, "--rate", "5")
    await until(lambda: exists(cli, f"{batch}-2"))
    other = await cli.saga("start", "order", "--from", write_orders(cli), "--batch", batch)
    assert other.code == 9
    assert f"a command is starting the batch {batch} with the saga trip" in other.err
    second = await cli.saga("--json", "start", "trip", "--from", file, "--batch", batch)
    assert second.code == 0, second
    assert second.json["ended"] == {"COMPLETED": 100}
    ended = await first.ended()
    assert ended.code == 1, ended
    assert "another command continues this batch" in ended.err
    assert (await cli.saga("--json", "batch", "show", batch)).json["state"] == "STARTED"


async def test_ids_that_cannot_be_batches(cli: CommandLine) -> None:
    for id in ("a\x1b[2Jb", " ", "x" * 3000):
        answer = await cli.saga("batch", "show", id)
        assert answer.code == 2, id
        assert "\x1b" not in answer.err
    unknown = await cli.saga("batch", "show", "it's unknown")
    assert (unknown.code, "there is no batch it's unknown" in unknown.err) == (2, True)
    assert (await cli.saga("batch", "pause", "unknown")).code == 2
    assert (await cli.saga("batch", "retry-failed", "unknown")).code == 2


def write_orders(cli: CommandLine) -> str:
    file = cli.folder / "orders.jsonl"
    file.write_text('{"number": "never"}\n')
    return str(file)


async def exists(cli: CommandLine, id: str) -> bool:
    return await describe_run(cli.client.temporal, id) is not None


async def newest(cli: CommandLine, batch: str) -> int:
    number = 1
    while await exists(cli, f"{batch}-{number + 1}"):
        number += 1
    return number


async def test_a_report_that_cannot_be_read_changes_nothing(cli: CommandLine) -> None:
    batch = fresh("hostile")
    file = write(cli, [{"nights": n} for n in range(12)])
    child = RunningCommand(cli.folder, "start", "trip", "--from", file, "--batch", batch, "--rate", "10")
    await until(lambda: exists(cli, BATCH_PREFIX + batch))
    handle = cli.client.temporal.get_workflow_handle(BATCH_PREFIX + batch)
    for value in ("text", {"client": "other", "total": 7}, {"total": -1, "ended": {"NONSENSE": 1}}, [1] * 100):
        await handle.signal("progress", value)
        await handle.signal("closed", value)
    await handle.signal("progress")
    await handle.signal("unheard of", 1)
    assert (await cli.saga("--json", "batch", "show", batch)).json["total"] == 12
    assert (await child.ended()).code == 0
    assert (await cli.saga("--json", "batch", "show", batch)).json["rows"]["started"] == 12


@pytest.mark.slow
async def test_without_a_worker_the_sagas_are_started_all_the_same(cli_without_worker: CommandLine) -> None:
    cli, batch = cli_without_worker, fresh("alone")
    file = write(cli, [{"nights": n} for n in range(3)])
    answer = await cli.saga("--json", "start", "trip", "--from", file, "--batch", batch, "--detach")
    assert (answer.code, answer.json["started"]) == (0, 3), answer
    paused = await cli.saga("batch", "pause", batch)
    assert "no worker has answered yet" in paused.out

    async def running() -> bool:
        return (await cli.saga("--json", "batch", "show", batch)).json["sagas"] == {"RUNNING": 3}

    await until(running)
