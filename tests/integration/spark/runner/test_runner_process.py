"""The runner as a process: lost, frozen, too large, recycled, and gone with its worker. No Spark is started here."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from saga_spark.job_errors import JobFailed
from saga_spark.runner.runner_client import RunnerClient
from saga_spark.settings import SparkSettings
from sagas.errors import InfrastructureError, UsageError
from tests.helpers.database_servers import DatabaseServer

pytestmark = pytest.mark.slow

TIMEOUT = 120.0

Start = Callable[..., RunnerClient]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Runners for a project with one Parquet file, ``numbers.parquet``."""
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "numbers.parquet")
    runners: list[RunnerClient] = []

    def make(*, margin: int | None = None, silence: int = 60, **settings: Any) -> RunnerClient:
        options: dict[str, Any] = {"heartbeat_timeout": silence} | ({} if margin is None else {"margin": margin})
        runners.append(
            RunnerClient(SparkSettings(root=tmp_path, stage=(tmp_path / "stage").as_uri(), **settings), **options)
        )
        return runners[-1]

    yield make
    for runner in runners:
        await runner.close()


@pytest.fixture(scope="module")
async def warm(tmp_path_factory: pytest.TempPathFactory, server: DatabaseServer) -> AsyncIterator[RunnerClient]:
    """One runner for the tests that do not harm it, in a project with `numbers.parquet` and two connections."""
    root = tmp_path_factory.mktemp("warm")
    pq.write_table(pa.table({"n": [1, 2, 3]}), root / "numbers.parquet")
    connections = {"shop": server.url(), "legacy": "mysql://somewhere/legacy"}
    runner = RunnerClient(SparkSettings(root=root, stage=(root / "stage").as_uri(), connections=connections))
    await freeze(runner)
    yield runner
    await runner.close()


async def freeze(runner: RunnerClient, where: str = "numbers.parquet", **more: Any) -> dict[str, Any]:
    inputs = {"numbers": {"kind": "parquet", "values": {"parquet": where}}, **more}
    return await runner.run("freeze", {"inputs": inputs, "folder": "file:///nowhere", "known": {}}, tag="frozen")


def pid_of(runner: RunnerClient) -> int:
    assert runner.process is not None
    return runner.process.pid


async def gone(pid: int) -> None:
    async with asyncio.timeout(TIMEOUT):
        with suppress(psutil.NoSuchProcess):
            while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_one_warm_process_serves_all_runs(warm: RunnerClient) -> None:
    first = await freeze(warm)
    pid = pid_of(warm)
    several = await asyncio.gather(*(freeze(warm) for _ in range(5)))
    assert pid_of(warm) == pid
    assert all(answer == first for answer in several)
    [file] = first["inputs"]["numbers"]["files"]
    assert file.endswith("/numbers.parquet")
    assert os.getpgid(pid) == pid, "a group of its own"
    assert warm.process is not None
    assert warm.process.log.is_file()


async def test_a_killed_runner_is_detected_and_replaced(start: Start) -> None:
    runner = start()
    await freeze(runner)
    pid = pid_of(runner)
    os.kill(pid, signal.SIGKILL)
    await gone(pid)
    async with asyncio.timeout(TIMEOUT):
        while runner.process is not None and runner.process.lost_reason is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert runner.process is not None
    assert "was killed by SIGKILL; see" in str(runner.process.lost_reason)
    assert (await freeze(runner))["inputs"]
    assert pid_of(runner) != pid


async def test_a_frozen_runner_is_killed_and_the_task_is_retryable(start: Start) -> None:
    runner = start(silence=5)
    await freeze(runner)
    pid = pid_of(runner)
    os.killpg(pid, signal.SIGSTOP)
    with pytest.raises(InfrastructureError, match="sent no heartbeat"):
        await freeze(runner)
    await gone(pid)
    assert (await freeze(runner))["inputs"]


@pytest.mark.slow
async def test_a_runner_above_its_memory_limit_is_stopped_with_a_message(start: Start) -> None:
    runner = start(memory="1m", margin=0)

    async def until_it_is_seen() -> None:
        for _ in range(1000):
            await freeze(runner)
            await asyncio.sleep(0.05)

    with pytest.raises(InfrastructureError, match=r"more than its limit of 0\.0 GiB, and was killed; raise `memory`"):
        await until_it_is_seen()


@pytest.mark.slow
async def test_an_idle_runner_is_replaced_after_its_maximum_of_jobs(start: Start) -> None:
    runner = start(recycle_after=2)
    await freeze(runner)
    first = pid_of(runner)
    await freeze(runner)
    await gone(first)
    await freeze(runner)
    assert pid_of(runner) != first


async def test_an_exhausted_runner_finishes_its_tasks_and_takes_no_new_ones(
    start: Start, server: DatabaseServer
) -> None:
    """Two run at once when the count is reached: both end well, and the next run has a runner of its own meanwhile."""
    runner = start(recycle_after=2, connections={"shop": server.url()})
    waits = {"connection": "shop", "query": "select 1 as n from (select pg_advisory_lock(4711)) as passed"}
    with psycopg.connect(server.url(), autocommit=True) as gate:
        gate.execute("select pg_advisory_lock(4711)")
        held = asyncio.create_task(freeze(runner, waits={"kind": "connection", "values": waits}))
        async with asyncio.timeout(TIMEOUT):
            while not gate.execute("select 1 from pg_locks where not granted").fetchall():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        first = pid_of(runner)
        await freeze(runner)
        assert pid_of(runner) == first, "it is busy"
        await freeze(runner)
        second = pid_of(runner)
        assert second != first
        assert not held.done()
        gate.execute("select pg_advisory_unlock(4711)")
        assert (await held)["inputs"]["waits"]["rows"] == 1
    await gone(first)
    assert psutil.pid_exists(second)


@pytest.mark.slow
async def test_many_runs_at_once_outlive_many_runners(start: Start) -> None:
    runner = start(recycle_after=3)
    answers = [await asyncio.gather(*(freeze(runner) for _ in range(2))) for _ in range(4)]
    assert len({str(answer) for both in answers for answer in both}) == 1


async def test_a_full_disk_for_inputs_gives_a_one_line_error(
    warm: RunnerClient, tmp_path: Path, small_disk: Path
) -> None:
    query = "select n, md5(n::text) as word from generate_series(1, 200000) as n"
    inputs = {"words": {"kind": "connection", "values": {"connection": "shop", "query": query}}}

    async def frozen(folder: Path) -> None:
        await warm.run("freeze", {"inputs": inputs, "folder": folder.as_uri(), "known": {}}, tag="frozen")

    blocked = tmp_path / "a file"
    blocked.write_text("")
    with pytest.raises(JobFailed, match=r"^reading the inputs: \w+: .*a file"):
        await frozen(blocked / "inputs")
    with pytest.raises(JobFailed, match=r"^reading the inputs: the disk is full; free some space$"):
        await frozen(small_disk)


async def test_closing_ends_the_process(start: Start, tmp_path: Path) -> None:
    runner = start()
    await freeze(runner)
    pid = pid_of(runner)
    await runner.close()
    await gone(pid)
    assert list((tmp_path / ".saga" / "spark" / "scratch").iterdir()) == []


async def test_a_runner_exits_with_its_killed_worker(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from saga_spark.runner.runner_client import RunnerClient\n"
        "from saga_spark.settings import SparkSettings\n"
        "async def main():\n"
        "    runner = RunnerClient(SparkSettings(root=Path(sys.argv[1])))\n"
        "    await runner.run('freeze', {'inputs': {}, 'folder': '', 'known': {}}, tag='x')\n"
        "    print(runner.process.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", program, tmp_path, stdout=subprocess.PIPE)
    try:
        assert worker.stdout is not None
        pid = int(await worker.stdout.readline())
        assert psutil.pid_exists(pid)
    finally:
        worker.kill()
        await worker.wait()
    await gone(pid)


async def test_mistakes_give_a_one_line_error(warm: RunnerClient) -> None:
    with pytest.raises(JobFailed, match=r"^the input numbers: no Parquet files exist at nowhere$"):
        await freeze(warm, "nowhere")
    with pytest.raises(UsageError, match="the SQL connection shops is not configured; did you mean shop"):
        await freeze(warm, x={"kind": "connection", "values": {"connection": "shops", "table": "t"}})
    with pytest.raises(UsageError, match="tables from PostgreSQL only"):
        await freeze(warm, x={"kind": "connection", "values": {"connection": "legacy", "table": "t"}})
    with pytest.raises(UsageError, match="the catalog lake is not configured"):
        await freeze(warm, x={"kind": "table", "values": {"table": "lake.a.b"}})


TABLE = """
create table things (
    id int primary key, name text, amount numeric(10, 2), free numeric, at timestamptz, day date, ok boolean,
    raw bytea, tags int[], ratio double precision, key uuid)
"""
ROWS = """
insert into things values
    (1, 'a "quoted", two
lines', 1.50, 0.1, '2026-01-02 03:04:05.678901+01', '2026-01-02', true, '\\x00ff', '{1,2}', 0.5,
     '11111111-1111-1111-1111-111111111111'),
    (2, '', null, null, null, null, null, null, null, null, null),
    (3, null, -3, 12345678901234567890.000000000000000001, '1969-12-31 23:59:59Z', '0001-01-01', false, '', '{}',
     'NaN', null)
"""


async def test_tables_are_frozen_with_their_types_from_one_snapshot(
    warm: RunnerClient, server: DatabaseServer, tmp_path: Path
) -> None:
    with psycopg.connect(server.url()) as connection:
        connection.execute("drop table if exists things")
        connection.execute(TABLE)
        connection.execute(ROWS)
    folder = (tmp_path / "frozen").as_uri()

    async def frozen(**inputs: dict[str, Any]) -> dict[str, Any]:
        wanted = {
            name: {"kind": "connection", "values": {"connection": "shop", **values}} for name, values in inputs.items()
        }
        request = {"inputs": wanted, "folder": folder, "known": {}}
        return (await warm.run("freeze", request, tag="frozen"))["inputs"]

    answers = await frozen(
        all={"table": "public.things"},
        some={"query": "select id, name from things;", "where": {"id": [1, 3]}, "columns": ["id"]},
        none={"table": "things", "where": "id > 100"},
        bound={"query": "select id from things where id = any(:ids)", "params": {"ids": [1, 2]}, "where": "id > 1"},
        quoted={"table": "things", "where": "name = :name", "params": {"name": "x' or 'a' = 'a"}},
    )
    counts = {name: answer["rows"] for name, answer in answers.items()}
    assert counts == {"all": 3, "some": 2, "none": 0, "bound": 1, "quoted": 0}
    assert len({row["fingerprint"]["snapshot"] for row in answers.values()}) == 1
    table = pq.read_table(answers["all"]["files"][0].removeprefix("file://"))
    assert [str(field.type) for field in table.schema] == [
        "int32", "string", "decimal128(10, 2)", "decimal128(38, 18)", "timestamp[us, tz=UTC]", "date32[day]", "bool",
        "binary", "string", "double", "string",
    ]  # fmt: skip
    first, second, third = table.to_pylist()
    assert first["name"] == 'a "quoted", two\nlines'
    assert (str(first["amount"]), first["raw"], first["tags"]) == ("1.50", b"\x00\xff", "{1,2}")
    assert first["at"].isoformat() == "2026-01-02T02:04:05.678901+00:00"
    assert (second["name"], third["name"]) == ("", None), "an empty text is not null"
    assert str(third["free"]) == "12345678901234567890.000000000000000001"
    assert (third["raw"], third["ok"], second["ok"], third["ratio"] != third["ratio"]) == (b"", False, None, True)
    empty = pq.read_table(answers["none"]["files"][0].removeprefix("file://"))
    assert (empty.num_rows, empty.schema) == (0, table.schema)

    with pytest.raises(UsageError, match=r'the input x cannot be read: relation "no_such" does not exist'):
        await frozen(x={"table": "no_such"})
    with pytest.raises(UsageError, match='the input x cannot be read: column "no_such" does not exist'):
        await frozen(x={"table": "things", "columns": ["no_such"]})
    with pytest.raises(UsageError, match=r"the input x has the value NaN in the column n \(numeric\(10, ?2\)\)"):
        await frozen(x={"query": "select 'NaN'::numeric(10, 2) as n"})


def what_is_left(folder: Path, secret: str) -> tuple[list[Path], list[Path]]:
    """The files in which the secret is, and the runner's own files that others may read."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    leaks = [file for file in files if secret.encode() in file.read_bytes() or file.name.startswith("core")]
    own = [file for file in files if ".saga" in file.parts]
    assert own, "the log of the runner"
    return leaks, [file for file in own if all(part.stat().st_mode & 0o077 for part in _path_below(folder, file))]


def _path_below(folder: Path, file: Path) -> list[Path]:
    """The file and its folders below ``folder``; one that is private keeps others out of the rest."""
    return [file, *(parent for parent in file.parents if folder in parent.parents)]


def text_of_logs(folder: Path) -> str:
    return "".join(file.read_text(encoding="utf-8") for file in folder.rglob("runner-*.log"))


async def test_a_crashed_runner_leaves_no_secret(start: Start, tmp_path: Path) -> None:
    canary = "canary-password-4c1e"
    url = f"postgresql://shop:{canary}@127.0.0.1:1/shop"
    runner = start(connections={"shop": url}, conf={"spark.hadoop.fs.s3a.secret.key": canary})
    await freeze(runner)
    assert canary not in " ".join(psutil.Process(pid_of(runner)).cmdline())
    orders = {"kind": "connection", "values": {"connection": "shop", "table": "orders"}}
    with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1") as refused:
        await freeze(runner, orders=orders)
    assert canary not in str(refused.value)
    await freeze(runner)
    pid = pid_of(runner)
    os.kill(pid, signal.SIGSEGV)
    await gone(pid)
    assert what_is_left(tmp_path, canary) == ([], [])


@pytest.mark.slow
async def test_a_crashed_jvm_leaves_no_secret(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = "canary-password-93fb"
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.chdir(shared)
    monkeypatch.setenv("SHOP_PASSWORD", canary)
    url = f"postgresql://shop:{canary}@127.0.0.1:1/shop"
    runner = start(connections={"shop": url}, conf={"spark.hadoop.fs.s3a.secret.key": canary})
    side = {"kind": "parquet", "values": {"parquet": "numbers.parquet"}}
    sides = {"inputs": {"left": side, "right": side}, "folder": (tmp_path / "in").as_uri(), "known": {}}
    await runner.run("reconcile", {**sides, "arguments": {"key": "n"}}, tag="first")
    java = next(child for child in psutil.Process(pid_of(runner)).children(recursive=True) if child.name() == "java")
    assert canary not in " ".join(java.cmdline())
    addresses = {socket.laddr.ip for socket in java.net_connections() if socket.status == psutil.CONN_LISTEN}
    assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}
    running = asyncio.create_task(runner.run("reconcile", {**sides, "arguments": {"key": "n"}}, tag="again"))
    java.send_signal(signal.SIGSEGV)
    with pytest.raises(InfrastructureError, match="the JVM of Spark ended"):
        await running
    await gone(java.pid)
    assert what_is_left(tmp_path, canary) == ([], [])
    assert list(shared.iterdir()) == []
    assert "SIGSEGV" in text_of_logs(tmp_path)
