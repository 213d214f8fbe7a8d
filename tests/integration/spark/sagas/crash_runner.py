"""Where whole sagas meet killed workers: one project with turnstiles, two workers, and a look at what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
from temporalio.client import Client as Temporal

from saga_activities.connections import DatabaseConnections
from saga_spark.settings import spark_settings
from saga_spark.staging.stage_area import clean_up_stage
from saga_workers.client import Client
from saga_workers.temporal.temporal_client import HeaderInterceptor
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.processes import WorkerProcess
from tests.integration.spark.day_close_project import Books, open_books
from tests.integration.spark.sagas.breakpoints import DATABASE, closed

ROOT = Path(__file__).parents[4]


class Theatre:
    """One project with two workers: when one is killed the other goes on. ``outputs`` are those of ``sink``."""

    def __init__(self, sink: str, outputs: Mapping[str, str], books: Books, client: Client) -> None:
        self.sink, self.outputs, self.books, self.client = sink, outputs, books, client
        env = {DATABASE: books.url, "PYTHONPATH": str(ROOT)}
        self.workers = [WorkerProcess(name, books.folder, env=env) for name in ("one", "two")]

    def start(self) -> None:
        for worker in self.workers:
            if not worker.running:
                worker.launch()
        for worker in self.workers:
            worker.wait(60.0)

    def who_waits(self) -> WorkerProcess:
        """The worker that stands at a turnstile."""
        found = [one for one in self.workers if one.running and _stands(one.pid, self.books)]
        assert found, "no worker stands at the turnstile"
        return found[0]

    def runners_that_wait(self) -> list[psutil.Process]:
        """The runners whose job stands at a turnstile."""
        return [one for one in self.runners() if _stands(one.pid, self.books)]

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
        for process in self.runners():
            process.kill()

    def runners(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            line = " ".join(process.info["cmdline"] or ())
            if "saga_spark.runner" in line and str(self.books.folder) in str(process.info["cwd"]):
                found.append(process)
        return found


def _stands(pid: int, books: Books) -> bool:
    """True when a connection of this process (or of its runner) waits for a lock."""
    ports = {connection.laddr.port for connection in psutil.Process(pid).net_connections("tcp")}
    waiting = books.query(
        "select client_port from pg_locks join pg_stat_activity using (pid) "
        "where locktype = 'advisory' and not granted and datname = current_database()"
    )
    return any(row["client_port"] in ports for row in waiting)


async def open_theatre(
    sink: str, folder: Path, server: DatabaseServer, address: str, outputs: Mapping[str, str], more: str = ""
) -> Theatre:
    """Its workers run. ``more`` are lines for saga.toml."""
    books = await open_books(folder / "shop", server, address, outputs, turnstiles=True, more=more)
    client = await Temporal.connect(address, interceptors=[HeaderInterceptor()])
    theatre = Theatre(sink, outputs, books, Client(client, books.project))
    try:
        theatre.start()
    except BaseException:
        theatre.stop()
        raise
    return theatre


async def play(theatre: Theatre, point: str, begin: Callable[[], Any]) -> None:
    """Kill whoever stands at the point, once; the rest goes on by itself."""
    with closed(theatre.books.url, point) as turnstile:
        await begin()
        turnstile.reached()
        if point == "in the job":
            runners = theatre.runners_that_wait()
            assert runners, "no runner stands in the job"
            for runner in runners:
                runner.kill()
        else:
            theatre.who_waits().kill()  # not its runner, which notices by itself
    theatre.start()


def of_saga(books: Books, saga: str) -> list[str]:
    """What a saga that was undone has left in the stage area (reports aside)."""
    keys = [
        row["publish_key"]
        for row in books.query("select publish_key from saga_output where saga_id = %(id)s", {"id": saga})
    ]
    return [name for name in books.staged() if any(name.startswith(key) for key in keys)]


async def clear_stage(books: Books) -> None:
    """One round of the worker's clean-up, as if every saga were over."""
    connections = DatabaseConnections({"shop": {"url": books.project.settings.connection("shop").url}})

    async def over(_: str) -> Any:
        return "over"

    await clean_up_stage(connections.engine("shop"), spark_settings(books.project.settings), over)
    await connections.close()
