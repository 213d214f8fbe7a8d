"""`saga start --from --bulk` and `saga batch` for bulk sagas: through the command, on a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from saga_workers.bulk import acceptance
from saga_workers.client import Client, SagaFailed
from sagas.errors import RefusedError
from sagas.workflow import bulk_workflow
from sagas.workflow.failures import refused_error
from tests.helpers.command_processes import RunningCommand
from tests.helpers.waiting import until
from tests.integration.bulk.conftest import Bank
from tests.integration.cli.conftest import CommandLine, fresh


@pytest.fixture
async def shop(bank: Bank, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The bank's project through the command line."""
    bank.open_accounts(400)
    return CommandLine(bank.project.settings.root, capsys, bank.client)


def transfers(batch: str, count: int, **changes: Any) -> list[dict[str, Any]]:
    return [
        {"id": f"{batch}-{n}", "from": f"a{n}", "to": f"a{n + 200}", "amount": 10, "text": "ok", **changes}
        for n in range(1, count + 1)
    ]


def write(cli: CommandLine, rows: Sequence[Any], name: str = "rows.jsonl") -> str:
    file = cli.folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


async def test_a_file_with_rejections_gives_the_same_counts_when_repeated(shop: CommandLine, bank: Bank) -> None:
    batch = fresh("file")
    rows = transfers(batch, 60)
    for n in (10, 20):
        rows[n - 1]["amount"] = 1000
    rows[29]["text"] = "fails"
    words = ("start", "transfer", "--from", write(shop, rows), "--bulk", "--bulk-size", "25", "--batch", batch)
    first = await shop.saga("--json", *words)
    assert first.code == 1, first
    assert (first.json["started"], first.json["existing"]) == (60, 0)
    assert first.json["ended"] == {"COMPLETED": 57, "COMPENSATED": 3}
    second = await shop.saga("--json", *words)
    assert second.code == 1, second
    assert (second.json["started"], second.json["existing"]) == (0, 60)
    assert second.json["ended"] == first.json["ended"]
    assert sum(bank.balances().values()) == 400 * 100
    assert bank.balances()["a1"] == 90

    shown = (await shop.saga("--json", "batch", "show", batch)).json
    assert shown["sagas"] == {"COMPENSATED": 3, "COMPLETED": 57}
    assert (shown["state"], shown["total"], shown["bulk"]) == ("STARTED", 60, True)
    largest = shown["failures"][0]
    assert (largest["count"], largest["step"], largest["message"]) == (2, "debit", "no money")
    listed = (await shop.saga("--json", "batch", "list")).json
    assert [row["id"] for row in listed] == [batch]
    lines = await shop.saga("batch", "show", batch)
    assert "2 COMPENSATED rejected at debit: no money" in lines.out


async def test_a_detached_start_reports_what_is_not_accepted(
    shop: CommandLine, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = fresh("file")
    words = ("start", "transfer", "--from", write(shop, transfers(batch, 3)), "--bulk", "--batch", batch)

    def refuse(_: Any) -> Any:
        raise refused_error("this worker refuses it")

    with monkeypatch.context() as patched:
        patched.setattr(bulk_workflow, "read_request", refuse)
        refused = await shop.saga("--json", *words, "--detach")
    assert (refused.code, refused.json["started"], refused.json["refused"]) == (1, 0, 3)
    assert "this worker refuses it" in refused.json["troubles"][0]
    with monkeypatch.context() as patched:
        patched.setattr(acceptance, "CLAIM_TIMEOUT", 0)
        unclaimed = await shop.saga("--json", *words, "--detach")
    assert (unclaimed.code, unclaimed.json["started"]) == (0, 3)
    assert "no worker has claimed them yet" in unclaimed.json["troubles"][0]
    assert (await shop.saga("--json", *words)).json["ended"] == {"COMPLETED": 3}
    assert bank.balances()["a1"] == 90


async def test_failed_sagas_are_started_again_without_the_file(shop: CommandLine, bank: Bank) -> None:
    batch = fresh("retry")
    rows = transfers(batch, 10)
    rows[4]["amount"] = 1000
    file = write(shop, rows)
    assert (await shop.saga("start", "transfer", "--from", file, "--bulk", "--batch", batch)).code == 1
    await asyncio.to_thread(Path(file).unlink)
    bank.query("update account set balance = 5000 where id = 'a5'")
    answer = await shop.saga("--json", "batch", "retry-failed", batch)
    assert answer.code == 0, answer
    assert (answer.json["total"], answer.json["ended"]) == (1, {"COMPLETED": 1})
    assert bank.balances()["a5"] == 4000
    assert (await shop.saga("--json", "batch", "show", batch)).json["sagas"] == {"COMPLETED": 10}
    nothing = await shop.saga("batch", "retry-failed", batch)
    assert (nothing.code, nothing.out) == (0, "no saga of the batch has failed\n")


@pytest.mark.slow  # tests/integration/cli/test_batch.py cancels single sagas
async def test_sagas_that_leave_are_waited_for_and_can_be_cancelled(shop: CommandLine, bank: Bank) -> None:
    batch = fresh("leave")
    rows = [{"id": f"{batch}-{n}", "waits": n <= 2} for n in range(1, 9)]
    words = ("--json", "start", "waiting", "--from", write(shop, rows), "--bulk", "--batch", batch)
    child = RunningCommand(shop.folder, *words)
    await until(lambda: has_workflow(bank.client, f"{batch}-2"))
    await bank.client.signal(f"{batch}-1", "go")
    answer = await shop.saga("--json", "batch", "cancel", batch, "--yes")
    assert (answer.code, answer.json["cancelled"]) == (0, [f"{batch}-2"]), answer
    started = await child.ended()
    assert (started.code, json.loads(started.out)["stopped"]) == (1, "cancelled")

    async def settled() -> bool:
        shown = await shop.saga("--json", "batch", "show", batch)
        return shown.json["sagas"] == {"COMPLETED": 7, "COMPENSATED": 1}

    await until(settled)
    assert await counted(bank, "select count(*) = 7 from note")


@pytest.mark.slow
async def test_a_cancel_reaches_all_sagas_of_bulk_workflows_and_can_be_repeated(shop: CommandLine, bank: Bank) -> None:
    """The first command is killed when the sagas have its request; they are undone where they are."""
    batch = fresh("cancel")
    rows = transfers(batch, 60)
    words = ("start", "transfer", "--from", write(shop, rows), "--bulk", "--bulk-size", "30", "--batch", batch)
    async with await psycopg.AsyncConnection.connect(bank.url) as blocker:
        await blocker.execute("lock table note in access exclusive mode")  # the last step of every saga waits
        child = RunningCommand(shop.folder, *words)
        credited = "select count(*) = 60 from saga_guard where step = 'credit' and op = 'do'"
        await until(lambda: counted(bank, credited))
        killed = RunningCommand(shop.folder, "batch", "cancel", batch, "--yes", "--as", "mia")

        async def requested() -> bool:
            views = [await bank.client.view(f"{batch}-{n}") for n in (1, 60)]
            return all(view.cancel_requested for view in views)

        await until(requested)
        killed.kill()
        await killed.ended()
        answer = await shop.saga("--json", "batch", "cancel", batch, "--yes")
        assert (answer.code, answer.json["refused"]) == (0, {}), answer
        assert sorted(answer.json["cancelled"]) == sorted(row["id"] for row in rows)
    assert "somebody has cancelled the batch" in (await child.ended()).err
    await until(lambda: counted(bank, "select count(*) = 60 from saga_run where state = 'COMPENSATED'"))
    assert set(bank.balances().values()) == {100}
    assert bank.query("select count(*) from note") == [(0,)]
    assert not await has_workflow(bank.client, f"{batch}-1")
    reason = (await bank.client.view(f"{batch}-60")).reason
    assert reason is not None
    assert (reason.kind, reason.details.get("who")) == ("cancelled", "mia (unverified)")
    nothing = await shop.saga("--json", "batch", "cancel", batch, "--yes")
    assert (nothing.code, nothing.json["cancelled"], nothing.json["refused"]) == (0, [], {}), nothing
    again = await shop.saga("--json", "batch", "retry-failed", batch)
    assert (again.code, again.json["ended"]) == (0, {"COMPLETED": 60}), again
    assert bank.query("select count(*) from note") == [(60,)]


async def test_a_killed_command_is_continued_without_a_second_start(shop: CommandLine, bank: Bank) -> None:
    batch = fresh("kill")
    file = write(shop, transfers(batch, 120))
    words = ("start", "transfer", "--from", file, "--bulk", "--bulk-size", "10", "--batch", batch, "--rate", "40")
    child = RunningCommand(shop.folder, *words)
    await until(lambda: counted(bank, "select count(*) >= 10 from saga_run"))
    child.kill()
    await child.ended()
    shown = (await shop.saga("--json", "batch", "show", batch)).json
    assert shown["state"] == "STARTING"
    again = await shop.saga("--json", *words[:-2])
    assert again.code == 0, again
    assert again.json["ended"] == {"COMPLETED": 120}
    assert again.json["started"] + again.json["existing"] == 120
    assert again.json["existing"] >= 10
    assert bank.query("select count(*) from saga_outbox") == [(120,)]
    assert bank.balances()["a1"] == 90


@pytest.mark.slow  # tests/integration/cli/test_batch.py pauses single sagas
async def test_ctrl_c_stops_the_starting_and_a_pause_holds_it_up(shop: CommandLine, bank: Bank) -> None:
    batch = fresh("pause")
    file = write(shop, transfers(batch, 200))
    words = ("start", "transfer", "--from", file, "--bulk", "--bulk-size", "5", "--batch", batch, "--rate", "20")
    child = RunningCommand(shop.folder, *words)
    await until(lambda: counted(bank, "select count(*) >= 5 from saga_run"))
    paused = await shop.saga("--json", "batch", "pause", batch, "--as", "mia")
    assert paused.json == {"id": batch, "state": "PAUSED"}

    async def still() -> list[tuple[int]] | None:
        """The number of sagas, when the command has seen the pause and what it had started has ended."""
        count = bank.query("select count(*) from saga_run")
        await asyncio.sleep(2)
        return count if bank.query("select count(*) from saga_run") == count else None

    before = await until(still)
    assert "PAUSED by mia (unverified)" in (await shop.saga("batch", "show", batch)).out
    assert (await shop.saga("batch", "resume", batch)).code == 0
    await until(lambda: counted(bank, f"select count(*) > {before[0][0]} from saga_run"))
    child.interrupt()
    ended = await child.ended()
    assert ended.code == 130, ended
    assert "run the same command again to continue" in ended.err
    assert (await shop.saga("--json", "batch", "show", batch)).json["state"] == "STOPPED"
    refused = await shop.saga("batch", "pause", batch)
    assert refused.code == 9
    assert "no command starts rows of the batch" in refused.err


async def test_failures_above_the_tolerance_stop_the_starting(shop: CommandLine) -> None:
    batch = fresh("bad")
    words = ("start", "transfer", "--from", write(shop, transfers(batch, 50, amount=1000)), "--bulk")
    answer = await shop.saga("--json", *words, "--bulk-size", "5", "--concurrency", "5", "--tolerate", "4%")
    assert answer.code == 1
    assert answer.json["stopped"] == "failures"
    assert answer.json["started"] == 5
    assert answer.json["not_started"] == 45


async def test_another_input_under_an_existing_id_is_refused(shop: CommandLine) -> None:
    batch = fresh("other")
    words = ("start", "transfer", "--bulk", "--batch", batch)
    assert (await shop.saga(*words, "--from", write(shop, transfers(batch, 3)))).code == 0
    changed = transfers(batch, 4, text="changed")
    answer = await shop.saga("--json", *words, "--from", write(shop, changed, "changed.jsonl"))
    assert answer.code == 1
    assert (answer.json["refused"], answer.json["started"]) == (3, 1)
    assert "with another input" in answer.json["troubles"][0]


async def test_detached_rows_end_without_the_command(shop: CommandLine, bank: Bank) -> None:
    batch = fresh("detach")
    file = write(shop, transfers(batch, 20))
    answer = await shop.saga("--json", "start", "transfer", "--from", file, "--bulk", "--batch", batch, "--detach")
    assert answer.code == 0, answer
    assert answer.json["started"] == 20
    await until(lambda: counted(bank, "select count(*) = 20 from saga_run"))
    repeated = await shop.saga("--json", "start", "transfer", "--from", file, "--bulk", "--batch", batch, "--detach")
    assert (repeated.json["started"], repeated.json["existing"]) == (0, 20)


async def counted(bank: Bank, query: str) -> bool:
    return bank.query(query) == [(True,)]


async def has_workflow(client: Client, id: str) -> bool:
    from saga_workers.temporal.temporal_runs import describe_run

    return await describe_run(client.temporal, id) is not None


@pytest.mark.slow
async def test_a_saga_that_has_left_is_not_started_twice(shop: CommandLine, bank: Bank) -> None:
    batch = fresh("left")
    file = write(shop, [{"id": f"{batch}-{n}", "waits": n == 1} for n in range(1, 4)])
    words = ("--json", "start", "waiting", "--from", file, "--bulk", "--batch", batch)
    assert (await shop.saga(*words, "--detach")).json["started"] == 3
    await until(lambda: has_workflow(bank.client, f"{batch}-1"))
    await until(lambda: counted(bank, "select count(*) = 2 from saga_run"))
    child = RunningCommand(shop.folder, *words)
    await asyncio.sleep(0.5)
    await bank.client.signal(f"{batch}-1", "go")
    ended = await child.ended()
    counts = json.loads(ended.out)
    assert (ended.code, counts["started"], counts["existing"]) == (0, 0, 3), ended
    assert counts["ended"] == {"COMPLETED": 3}
    assert bank.query("select count(*) from note") == [(3,)]


async def test_the_python_client_gives_one_handle_per_saga(shop: CommandLine, bank: Bank) -> None:
    rows = transfers(fresh("many"), 12)
    rows[3]["amount"] = 1000
    handles = await bank.client.start_many("transfer", rows, bulk=True)
    assert [handle.id for handle in handles] == [row["id"] for row in rows]
    assert all(handle.started for handle in handles)
    await until(lambda: counted(bank, "select count(*) = 12 from saga_run"))
    assert await handles[0].result() == {"moved": 10}
    with pytest.raises(SagaFailed, match="no money"):
        await handles[3].result()
    assert bank.query("select count(*) from saga_outbox") == [(11,)]
    again = await bank.client.start_many("transfer", rows[:3], bulk=True)
    assert [result.started for result in again] == [False] * 3
    with pytest.raises(RefusedError, match="another input"):
        await bank.client.start_many("transfer", [{**rows[0], "amount": 3}, *rows[1:3]], bulk=True)
