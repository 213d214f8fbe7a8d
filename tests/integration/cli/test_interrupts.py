"""Ctrl-C at each phase of a command, through real processes: completed work is reported, and the exit code is 130."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from saga_workers.temporal.temporal_runs import describe_run
from tests.helpers.waiting import until
from tests.integration.cli.conftest import CommandLine, fresh

Child = asyncio.subprocess.Process


async def launch(folder: Path, *words: str) -> Child:
    argv = [sys.executable, "-P", "-m", "saga_cli.main", *words, "--config", str(folder / "saga.toml")]
    pipe = asyncio.subprocess.PIPE
    # A shell that runs the tests in the background lets them ignore Ctrl-C, and their children with them.
    return await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe, preexec_fn=restore_interrupts)


def restore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


async def interrupted(child: Child, when: Callable[[], Awaitable[object]]) -> tuple[str, str]:
    """Interrupt the process once ``when`` has passed; its stdout and stderr."""
    async with asyncio.timeout(60):
        await when()
        child.send_signal(signal.SIGINT)
        out, err = await child.communicate()
    assert child.returncode == 130, err.decode()
    assert "Traceback" not in err.decode()
    return out.decode(), err.decode()


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("imported", ["saga_cli.context", "sagas.errors", "typer.main", "saga_workers.client"])
async def test_interrupt_while_the_command_is_imported(cli_without_worker: CommandLine, imported: str) -> None:
    words = ["start", "trip", "--config", str(cli_without_worker.folder / "saga.toml")]
    argv = [sys.executable, "-P", "-X", "importtime", "-m", "saga_cli", *words]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe, preexec_fn=restore_interrupts)
    assert child.stderr is not None
    while not (line := await child.stderr.readline()).rstrip().endswith(imported.encode()):
        assert line, "it is not imported"
    child.send_signal(signal.SIGINT)
    _, err = await child.communicate()
    assert child.returncode == 130
    assert "Traceback" not in err.decode()


@pytest.mark.slow  # the same as while the server does not answer, at another place
async def test_interrupt_while_the_row_file_is_read(cli_without_worker: CommandLine) -> None:
    file = cli_without_worker.folder / "many.jsonl"
    file.write_text('{"nights": 1}\n' * 400_000)
    child = await launch(cli_without_worker.folder, "start", "trip", "--from", str(file))

    async def reading() -> bool:
        return str(file) in files_of(child.pid)

    out, err = await interrupted(child, lambda: until(reading, pause=0.005))
    assert (out, err) == ("", "interrupted: nothing was started\n")


def files_of(pid: int) -> list[str]:
    collected = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            collected.append(os.readlink(entry))
    return collected


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("start", "trip", "--from", "one.jsonl"), "interrupted: nothing was started\n"),
        (("start", "trip"), "interrupted: nothing was started\n"),
        (("watch", "trip-1"), "interrupted before trip-1 was found; check with `saga show trip-1`\n"),
        (("list",), ""),
    ],
)
async def test_interrupt_while_the_server_does_not_answer(tmp_path: Path, args: tuple[str, ...], message: str) -> None:
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    (tmp_path / "one.jsonl").write_text("{}\n")
    (tmp_path / "trip.saga.yaml").write_text("saga: trip\nsteps: [{id: w, uses: wait, with: {signal: x}}]\n")
    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        (tmp_path / "saga.toml").write_text(f'definitions = ["."]\n[temporal]\naddress = "127.0.0.1:{port}"\n')
        args = tuple(str(tmp_path / word) if word == "one.jsonl" else word for word in args)
        child = await launch(tmp_path, *args)
        assert await interrupted(child, asked.wait) == ("", message)


@pytest.mark.slow
async def test_interrupt_during_a_bulk_start_counts_started_sagas(cli: CommandLine) -> None:
    file = cli.folder / "asks.jsonl"
    file.write_text("{}\n" * 2000)
    words = ("--json", "start", "ask", "--from", str(file), "--batch", "b", "--concurrency", "20", "--rate", "50")
    child = await launch(cli.folder, *words)

    async def some() -> None:
        await until(lambda: describe_run(cli.client.temporal, "b-3"), pause=0.005)

    out, err = await interrupted(child, some)
    tally = json.loads(out)
    reported = re.search(
        r"stopped: (\d+) sagas? (?:was|were) started and (?:is|are) running, (\d+) rows? (?:is|are) not started", err
    )
    assert reported is not None, err
    assert [int(group) for group in reported.groups()] == [tally["started"], tally["not_started"]]
    assert tally["started"] + tally["not_started"] == 2000
    assert await describe_run(cli.client.temporal, f"b-{tally['started']}") is not None
    assert await describe_run(cli.client.temporal, f"b-{tally['started'] + 1}") is None


async def test_interrupt_while_waiting_for_the_end(cli: CommandLine) -> None:
    id = fresh("ask")
    child = await launch(cli.folder, "start", "ask", "--id", id, "--wait")

    _, err = await interrupted(child, lambda: until(lambda: describe_run(cli.client.temporal, id), pause=0.005))
    # The server may have started it while its answer is still on the way.
    started = f"{id} is still running; follow it with `saga watch {id}`"
    perhaps = "may have been started; check with `saga list --saga ask`"
    assert started in err or perhaps in err
