"""A project of a drawn saga with a worker that can be killed; commands run as people type them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import Client as Temporal
from temporalio.service import RPCError

from saga_activities.connections import DatabaseConnections
from saga_cli import main
from saga_workers.client import Client
from saga_workers.runtime.databases import set_up_database
from saga_workers.worker import guard_retention
from saga_workers.worker.guard_retention import GuardRetention
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers import run_changes
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.helpers.processes import WorkerProcess
from tests.helpers.waiting import until
from tests.integration.engine.sequences.drawn_sagas import DrawnSaga
from tests.integration.engine.sequences.participants import ACTIONS, GUARDED_ACTIONS, PLACES, Participants

HORIZON_MARGIN = 0.5
"""Seconds, instead of an hour: the sagas of a sequence are seconds old."""


@dataclass(frozen=True)
class Printed:
    """The exit code of a command, and what it has printed."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return f"{self.out}\n{self.err}"


class Stack:
    """The project, its participants, a worker, and a client of Temporal."""

    def __init__(self, folder: Path, client: Client, participants: Participants, saga: DrawnSaga) -> None:
        self.folder, self.client, self.participants, self.saga = folder, client, participants, saga
        self._workers = 0
        self._frozen: list[WorkerProcess] = []
        self._thawing: list[asyncio.Task[None]] = []
        self.worker: WorkerProcess | None = None

    @property
    def temporal(self) -> Temporal:
        return self.client.temporal

    @property
    def own(self) -> str:
        """The condition for the runs of this project."""
        return f"TaskQueue = '{self.client.project.settings.temporal.task_queue}'"

    async def command(self, *words: str) -> Printed:
        """Run a command, in a thread: it has an event loop of its own."""
        out, err = io.StringIO(), io.StringIO()

        def run() -> int:
            return main.run(["--config", str(self.folder / "saga.toml"), *words])

        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = await asyncio.to_thread(run)
        return Printed(code, out.getvalue(), err.getvalue())

    async def start_worker(self) -> None:
        self._workers += 1
        self.worker = WorkerProcess(f"worker-{self._workers}", self.folder, grace="1s")
        await asyncio.to_thread(self.worker.start)

    async def kill_worker(self) -> None:
        if self.worker is not None and self.worker.running:
            await asyncio.to_thread(self.worker.kill)

    async def freeze_worker(self, seconds: float) -> None:
        """Let another worker go on while this one is frozen, which then runs for some seconds beside it."""
        worker = self.worker
        if worker is None or not worker.running:
            return
        worker.freeze()
        self._frozen.append(worker)

        async def thaw() -> None:
            await asyncio.sleep(seconds)
            worker.thaw()
            await asyncio.sleep(3.0)
            await asyncio.to_thread(worker.kill)

        self._thawing.append(asyncio.create_task(thaw()))
        await self.start_worker()

    async def kill_workers(self) -> None:
        """Kill all of them."""
        for task in self._thawing:
            task.cancel()
        await asyncio.gather(*self._thawing, return_exceptions=True)
        for worker in self._frozen:
            await asyncio.to_thread(worker.kill)
        await self.kill_worker()

    async def open_bulk_workflows(self) -> list[str]:
        running = f"{self.own} AND ExecutionStatus = 'Running'"
        return [run.id async for run in self.temporal.list_workflows(running) if run.id.startswith("bulk~")]

    def worker_logs(self) -> str:
        return "\n".join(path.read_text("utf-8") for path in sorted(self.folder.glob("worker-*.log")))

    async def purge(self) -> int:
        """Purge the guards as a worker does hourly, as if the retention had passed; gives the number of sagas."""
        databases = DatabaseConnections(self.client.project.settings.sql_connections(), pool_size=1)
        margin, guard_retention.HORIZON_MARGIN = guard_retention.HORIZON_MARGIN, HORIZON_MARGIN
        try:
            work = GuardRetention(self.client.locator, databases, retention=0.2, longest_transaction=lambda: 0.0)
            return sum(result.sagas for result in await work.run_once())
        finally:
            guard_retention.HORIZON_MARGIN = margin
            await databases.close()

    async def delete_all(self) -> None:
        """Leave nothing to the next sequence, whose purge would keep what these runs need."""
        async for run in self.temporal.list_workflows(self.own):
            with contextlib.suppress(RPCError):
                await run_changes.request_deletion(self.temporal, run.id, run.run_id)

        async def gone() -> bool:
            return (await self.temporal.count_workflows(self.own)).count == 0

        await until(gone)


@contextlib.asynccontextmanager
async def open_stack(
    folder: Path, address: str, postgres: DatabaseServer, saga: DrawnSaga, *, ledger: bool
) -> AsyncIterator[Stack]:
    """The project in ``folder`` with databases of its own, and a worker."""
    urls = {place: new_database(postgres) for place in PLACES}
    _write_project(folder, address, urls, saga, ledger=ledger)
    project = Project(load_settings(config=str(folder / "saga.toml")))
    errors = [diagnostic for diagnostic in project.diagnostics if diagnostic.severity == "error"]
    assert not errors, errors
    for connection in project.settings.sql_connections():
        await set_up_database(connection)
    participants = Participants(urls)
    client = await Client.connect(project)
    stack = Stack(folder, client, participants, saga)
    late = asyncio.create_task(participants.act_late())
    try:
        yield stack
    finally:
        late.cancel()
        await stack.kill_workers()
        await asyncio.gather(late, return_exceptions=True)
        await stack.delete_all()
        await client.close()


def _write_project(folder: Path, address: str, urls: Mapping[str, str], saga: DrawnSaga, *, ledger: bool) -> None:
    folder.mkdir(parents=True)
    for each in saga.all_sagas():
        (folder / f"{each.name}.saga.yaml").write_text(each.definition(), "utf-8")
    (folder / "actions.py").write_text(ACTIONS % urls["remote"], "utf-8")
    (folder / "guarded_actions.py").write_text(GUARDED_ACTIONS, "utf-8")
    lines = [
        'definitions = ["."]',
        'actions = ["./actions.py", "./guarded_actions.py"]',
        "[temporal]",
        f'address = "{address}"',
        f'task_queue = "sequence-{uuid.uuid4()}"',
        *(f'[connections.{place}]\nurl = "{urls[place]}"' for place in ("bank", "till")),
    ]
    if saga.has_lock:
        lines.append('[locks]\nconnection = "bank"')
    if ledger:
        lines.append('[ledger]\nconnection = "till"')
    (folder / "saga.toml").write_text("\n".join(lines) + "\n", "utf-8")
