"""Runs sagas while workers are killed: one project with breakpoints, two workers, and checks of what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
from temporalio.client import Client as Temporal

from saga_activities.connections import DatabaseConnections
from saga_spark.settings import spark_settings
from saga_spark.staging.stage_clean_up import clean_up_stage
from saga_workers.client import Client
from saga_workers.temporal.temporal_client import HeaderInterceptor
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.processes import WorkerProcess
from tests.integration.spark.day_close_project import DayCloseProject, open_day_close_project
from tests.integration.spark.sagas.breakpoints import DATABASE, breakpoint_at

ROOT = Path(__file__).parents[4]


class CrashRunner:
    """One project with two workers: when one is killed the other goes on. ``outputs`` are those of ``sink``."""

    def __init__(self, sink: str, outputs: Mapping[str, str], day_close: DayCloseProject, client: Client) -> None:
        self.sink, self.outputs, self.day_close, self.client = sink, outputs, day_close, client
        env = {DATABASE: day_close.url, "PYTHONPATH": str(ROOT)}
        self.workers = [WorkerProcess(name, day_close.folder, env=env) for name in ("one", "two")]

    def start(self) -> None:
        for worker in self.workers:
            if not worker.running:
                worker.launch()
        for worker in self.workers:
            worker.wait()

    def waiting_worker(self) -> WorkerProcess:
        """The worker that is stopped at a breakpoint."""
        stopped = [
            worker for worker in self.workers if worker.running and _waits_at_breakpoint(worker.pid, self.day_close)
        ]
        assert stopped, "no worker is stopped at the breakpoint"
        return stopped[0]

    def waiting_runners(self) -> list[psutil.Process]:
        """The runners whose job is stopped at a breakpoint."""
        return [runner for runner in self.runners() if _waits_at_breakpoint(runner.pid, self.day_close)]

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
        for process in self.runners():
            process.kill()

    def runners(self) -> list[psutil.Process]:
        collected = []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            line = " ".join(process.info["cmdline"] or ())
            if "saga_spark.runner" in line and str(self.day_close.folder) in str(process.info["cwd"]):
                collected.append(process)
        return collected


def _waits_at_breakpoint(pid: int, day_close: DayCloseProject) -> bool:
    """True when a connection of this process (or of its runner) waits for a lock."""
    ports = {connection.laddr.port for connection in psutil.Process(pid).net_connections("tcp")}
    waiting = day_close.query(
        "select client_port from pg_locks join pg_stat_activity using (pid) "
        "where locktype = 'advisory' and not granted and datname = current_database()"
    )
    return any(row["client_port"] in ports for row in waiting)


async def open_crash_runner(
    sink: str, folder: Path, server: DatabaseServer, address: str, outputs: Mapping[str, str], more: str = ""
) -> CrashRunner:
    """Make the project and run its workers. ``more`` are lines for saga.toml."""
    day_close = await open_day_close_project(folder / "shop", server, address, outputs, breakpoints=True, more=more)
    client = await Temporal.connect(address, interceptors=[HeaderInterceptor()])
    crash_runner = CrashRunner(sink, outputs, day_close, Client(client, day_close.project))
    try:
        crash_runner.start()
    except BaseException:
        crash_runner.stop()
        raise
    return crash_runner


async def run_with_kill(crash_runner: CrashRunner, point: str, begin: Callable[[], Any]) -> None:
    """Kill the process stopped at the point, once; the saga continues by itself."""
    with breakpoint_at(crash_runner.day_close.url, point) as stop:
        await begin()
        stop.reached()
        if point == "in the job":
            runners = crash_runner.waiting_runners()
            assert runners, "no runner stands in the job"
            for runner in runners:
                runner.kill()
        else:
            crash_runner.waiting_worker().kill()  # not its runner, which notices by itself
    crash_runner.start()


def of_saga(day_close: DayCloseProject, saga: str) -> list[str]:
    """Files that an undone saga has left in the stage area (reports aside)."""
    keys = [
        row["publish_key"]
        for row in day_close.query("select publish_key from saga_output where saga_id = %(id)s", {"id": saga})
    ]
    return [name for name in day_close.staged() if any(name.startswith(key) for key in keys)]


async def clear_stage(day_close: DayCloseProject) -> None:
    """One round of the worker's clean-up, as if every saga were over."""
    connections = DatabaseConnections([day_close.project.settings.sql_connection("shop")])

    async def over(_: str) -> Any:
        return "over"

    await clean_up_stage(connections.engine("shop"), spark_settings(day_close.project.settings), over)
    await connections.close()
