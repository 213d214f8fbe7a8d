"""The environment of one cell of the fault matrix: real worker processes, its own database, and observation."""

from __future__ import annotations

import asyncio
import shutil
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import psycopg
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError

from saga_workers.client import Client, SagaHandle
from saga_workers.temporal.temporal_client import connect
from sagas.project import Project
from sagas.settings import load_settings
from tests.faults.breakpoints import Breakpoint, Point, Target
from tests.faults.evidence.activity_history import activities_of
from tests.helpers.database_servers import HOST, DatabaseServer
from tests.helpers.fault_proxy import FaultProxy
from tests.helpers.processes import TemporalServer, WorkerProcess
from tests.helpers.waiting import LIMIT, until

if TYPE_CHECKING:
    from tests.faults.messaging import Messaging

PROJECT = Path(__file__).parent / "project"
TEMPLATE = "bank"
WORKFLOW_QUEUE = "fault-flows"
"""Task queue of the worker that all split cells share: it runs their workflows, and never their effects."""

DEFINITION_KEY = "the-key-that-all-projects-of-the-cells-share"
"""The shared worker has no definitions of its own, so it runs what clients have signed."""

START_TIMEOUT = 90.0
"""Seconds a worker may take to be ready: several start at once."""

_TOTAL = "select (select sum(balance) from accounts) + (select coalesce(sum(amount), 0) from holds)"


Server = Literal["temporal", "database"]


@dataclass
class CellEnvironment:
    """The environment of one cell. ``target`` is the operation the fault hits."""

    folder: Path
    temporal: TemporalServer
    server: DatabaseServer
    target: Target
    split: bool
    kills_workflow_worker: bool = False
    attempts: int = 8
    pool: int | None = None
    """Connections to the database that a worker may open; None: as many as it likes."""
    saga: str = "transfer"
    keeps_ledger: ClassVar[bool] = False
    proxies: Mapping[Server, FaultProxy] = field(default_factory=dict)
    """Between this cell's workers and a server."""
    messaging: Messaging | None = None
    """Kafka, and the other cells of the row; None: this cell has none."""
    saga_id: str = field(default_factory=lambda: f"transfer-{uuid.uuid4()}")
    database: str = field(default_factory=lambda: f"cell_{uuid.uuid4().hex[:12]}")
    workers: list[WorkerProcess] = field(default_factory=list)
    totals: set[int] = field(default_factory=set)
    """Every sum of the bank that was ever seen, also while faults went on."""
    last_fault: float = 0.0
    seconds: float | None = None
    """From the last fault to the end."""
    _client: Client | None = None

    # --- making it ---------------------------------------------------------------------------------------------

    async def build(self, edit: Mapping[str, str] | None = None) -> None:
        """The database and the project folder; ``edit`` replaces texts of the definition."""
        await self.admin(f'create database "{self.database}" template "{TEMPLATE}"', database="postgres")
        self.folder.mkdir(parents=True, exist_ok=True)
        for module in PROJECT.glob("*.py"):
            shutil.copy(module, self.folder / module.name)
        self.write_definitions(edit or {})
        self._write_settings()
        if self.messaging is not None:
            await self.messaging.join(self)

    def write_definitions(self, edit: Mapping[str, str]) -> None:
        for source in PROJECT.glob("*.saga.yaml"):
            text = source.read_text(encoding="utf-8")
            for old, new in {**edit, "ATTEMPTS": str(self.attempts), "QUEUE": self.queue}.items():
                text = text.replace(old, new)
            (self.folder / source.name).write_text(text, encoding="utf-8")

    def _write_settings(self) -> None:
        database, temporal = self.proxies.get("database"), self.proxies.get("temporal")
        url = self.server.url(self.database, port=database.port if database else None)
        address = f"{HOST}:{temporal.port}" if temporal else self.temporal.address
        sends_commands = self.messaging is not None and self.messaging.sends_commands
        actions = '["./bank.py", "./request_participant.py"]' if sends_commands else '["./bank.py"]'
        lines = ['definitions = ["."]', f"actions = {actions}", "[temporal]", f'address = "{address}"']
        lines += [f'task_queue = "{self.queue}"', "[worker]", f'definition_key = "{DEFINITION_KEY}"']
        lines += ["[connections.bank]", f'url = "{url}"']
        lines += ["" if self.pool is None else f"pool_size = {self.pool}", "[locks]", 'connection = "bank"', ""]
        if self.keeps_ledger:
            lines += ["[ledger]", 'connection = "bank"', ""]
        if self.messaging is not None and self.messaging.sends_commands:
            (self.folder / "commands.topic").write_text(f"asks-{self.queue}", encoding="utf-8")
            lines += ["[kafka]", f'bootstrap_servers = "{self.messaging.address}"', 'outbox = "bank"']
            lines += [f'prefix = "{self.database}"', ""]
        (self.folder / "saga.toml").write_text("\n".join(lines), encoding="utf-8")

    @property
    def queue(self) -> str:
        return f"effects-{self.database}"

    @property
    def workflow_queue(self) -> str:
        """Task queue of the workflows of a split cell, shared unless the cell has a worker of its own."""
        return f"flows-{self.database}" if self.kills_workflow_worker else WORKFLOW_QUEUE

    async def worker(
        self, name: str | None = None, options: tuple[str, ...] = (), code: str | None = None
    ) -> WorkerProcess:
        """Start another worker of this cell and wait until it is ready; ``code`` changes the engine in it."""
        return await self._start_worker(name or f"worker-{len(self.workers)}", {}, options, code)

    async def _start_worker(
        self, name: str, env: Mapping[str, str], options: tuple[str, ...], code: str | None
    ) -> WorkerProcess:
        if code is not None:
            (self.folder / name).mkdir()
            (self.folder / name / "sitecustomize.py").write_text(code, encoding="utf-8")  # Python runs it at its start
            env = {**env, "PYTHONPATH": str(self.folder / name)}
        worker = WorkerProcess(name, self.folder, env=env, options=options, fresh=code is not None)
        self.workers.append(worker)
        await asyncio.to_thread(worker.start, START_TIMEOUT)
        return worker

    async def client(self) -> Client:
        """Connects to Temporal directly, not through the proxies of the workers."""
        if self._client is None:
            queue = self.workflow_queue if self.split else self.queue
            env = {"SAGA_TEMPORAL__ADDRESS": self.temporal.address, "SAGA_TEMPORAL__TASK_QUEUE": queue}
            project = Project(load_settings(self.folder, env=env))
            errors = [diagnostic for diagnostic in project.diagnostics if diagnostic.severity == "error"]
            assert not errors, errors
            self._client = Client(await connect(project.settings, env={}), project)
        return self._client

    async def end(self) -> None:
        for worker in self.workers:
            await asyncio.to_thread(worker.kill)
        with suppress(psycopg.Error):
            await self.admin(f'drop database "{self.database}" with (force)', database="postgres")

    # --- what the harness does ---------------------------------------------------------------------------------

    async def admin(self, statement: str, *values: Any, database: str | None = None) -> list[Any]:
        """Run one statement with a connection of the harness's own."""
        conninfo = self.conninfo(database)
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
            cursor = await connection.execute(cast("Any", statement), values or None)
            return await cursor.fetchall() if cursor.description is not None else []

    def conninfo(self, database: str | None = None) -> str:
        name = database or self.database
        return f"host={HOST} port={self.server.port} user={self.server.user} dbname={name} application_name=harness"

    async def client_port(self, backend: int) -> int:
        """The port of the client of a session, as PostgreSQL sees it: a proxy's own, if one is between them."""
        [[port]] = await self.admin("select client_port from pg_stat_activity where pid = %s", backend)
        return port

    def breakpoint_at(self, point: Point, target: Target | None = None) -> Breakpoint:
        return Breakpoint(self.conninfo(), point, target or self.target)

    async def script_attempts(self, target: Target, *does: str) -> None:
        """Script the next attempts of an operation, one behaviour each; the last one applies to all that follow."""
        await self.admin("insert into scripted_attempts values (%s, %s, %s)", target.step, target.op, list(does))

    async def cancel(self) -> str:
        return await (await self.client()).cancel(self.saga_id, reason="the test changes its mind", who="tester")

    async def resolve(self, step: str, decision: str) -> None:
        """Send an operator decision."""
        output = {"step": step, "decision": decision, "reason": "the test says so", "who": "tester"}
        await (await self.client()).resolve(self.saga_id, output)

    async def leaves_parked_state(self) -> None:
        async def asked() -> bool:
            return (await (await self.client()).show(self.saga_id))["state"] != "PARKED"

        await until(asked, "the end of PARKED")

    async def remove_faults(self) -> None:
        await self.admin("delete from scripted_attempts")
        self.fault_is_over()

    def fault_is_over(self) -> None:
        self.last_fault = time.monotonic()

    async def start(self, input: Mapping[str, Any] | None = None) -> SagaHandle:
        """Start the cell's saga. Going backward begins at the pivot, which the test refuses, when a C is hit."""
        if self.target.op == "undo":
            await self.script_attempts(Target("capture", "do"), "reject")
        self.fault_is_over()
        return await (await self.client()).start(self.saga, input or default_input(), id=self.saga_id)

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        assert self._client is not None
        return self._client.temporal.get_workflow_handle(self.saga_id)

    async def effect_is_there(self) -> None:
        """Wait until the target's effect is committed."""
        question = "select 1 from journal where saga_id = %s and step = %s and op = %s"
        await until(lambda: self.admin(question, self.saga_id, self.target.step, self.target.op), "the effect")

    @property
    def activity(self) -> str:
        """The target's activity id."""
        return activity_id(self.target)

    async def own_workflow_worker(self, code: str | None = None) -> WorkerProcess:
        """A workflow worker of this cell's own, because the cell kills it; ``code`` changes the engine in it."""
        env = {"SAGA_TEMPORAL__TASK_QUEUE": self.workflow_queue}
        return await self._start_worker(f"flows-{len(self.workers)}", env, (), code)

    def is_activity(self, id: str, target: Target) -> bool:
        """The activity with this id performs the operation."""
        return id == activity_id(target)

    async def recorded(self, target: Target, end: str = "done") -> None:
        """Wait until the history has an operation: open, or ended as done, failed, timed out or cancelled."""

        async def asked() -> bool:
            activities = await activities_of(self.handle)
            return any(self.is_activity(activity.id, target) and activity.end == end for activity in activities)

        await until(asked, f"{target}: {end}")

    async def pending_state(self) -> str | None:
        """The state of the target's attempt in Temporal: SCHEDULED, STARTED, or None when it is not pending."""
        described = await self.handle.describe()
        for pending in described.raw_description.pending_activities:
            if pending.activity_id == self.activity:
                return PendingActivityState.Name(pending.state).removeprefix("PENDING_ACTIVITY_STATE_")
        return None

    async def in_workflow_task(self) -> bool:
        """A workflow task has been given to a worker and not been answered."""
        described = await self.handle.describe()
        return described.raw_description.pending_workflow_task.HasField("started_time")

    async def sessions_are_over(self, worker: int) -> None:
        """Wait until a worker has no open transaction, and a dead worker no session."""
        question = """
            select 1 where not exists (
                select 1 from pg_stat_activity where application_name = %s and datname = current_database()
                and (state <> 'idle' or not %s))
        """
        alive = any(each_worker.running and each_worker.pid == worker for each_worker in self.workers)
        await until(lambda: self.admin(question, f"saga-worker-{worker}", alive), "the end of its transactions")

    async def finished(self, timeout: float = LIMIT) -> dict[str, Any]:
        """Wait until the saga is over or parked, watching the sum of the bank meanwhile; gives its story."""
        end = time.monotonic() + timeout
        while True:
            with suppress(psycopg.OperationalError):
                self.totals.add((await self.admin(_TOTAL))[0][0])
            with suppress(RPCError):
                described = await self.handle.describe()
                state = {pair.key.name: pair.value for pair in described.typed_search_attributes}.get("SagaState")
                if described.status is not WorkflowExecutionStatus.RUNNING or state == "PARKED":
                    break
            if time.monotonic() > end:
                story = await (await self.client()).show(self.saga_id)
                rows = [(row["id"], row["state"], row["error"]) for row in story["steps"]]
                logs = "\n".join(f"--- {worker.name}\n{worker.tail(15)}" for worker in self.workers)
                raise AssertionError(f"I12: {self.saga_id} is {story['state']} after {timeout} s: {rows}\n{logs}")
            await asyncio.sleep(0.1)
        self.seconds = time.monotonic() - self.last_fault
        return await (await self.client()).show(self.saga_id)


def activity_id(target: Target) -> str:
    return target.step if target.op == "do" else f"{target.step}~{target.op}"


def default_input() -> dict[str, Any]:
    steps = ("debit", "debit_back", "hold", "release", "order", "order_cancel", "capture", "ship", "thank")
    return {"customer": "customer", "notes": dict.fromkeys(steps, "as planned")}
