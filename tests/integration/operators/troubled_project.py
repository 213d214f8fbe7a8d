"""A project whose sagas get stuck, on one stack that all states share; ``Stack`` runs commands as people type them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import subprocess
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import tuple_row
from temporalio import workflow
from temporalio.client import Client as Temporal
from temporalio.common import RawValue
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from saga_cli import main
from saga_workers.client import Client
from saga_workers.devstack.temporal_server import find_temporal
from saga_workers.runtime.databases import set_up_database
from saga_workers.worker.plugin import SagaPlugin
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.free_ports import free_port
from tests.helpers.local_worker import running_worker
from tests.helpers.waiting import until

ACTIONS = """
from sagas import Rejected, Step, action


@action("book", connection="shop")
async def book(step: Step, value: int = 0) -> dict:
    await step.sql.execute("insert into effects values (:saga, :step)", saga=step.saga_id, step=step.id)
    return {"value": value}


@action("unbook", connection="shop")
async def unbook(step: Step, value: int = 0, refuse: bool = False) -> None:
    if refuse:
        raise Rejected("the shelf is locked")
    await step.sql.execute("delete from effects where saga = :saga and step = :step", saga=step.saga_id, step=step.id)


@action("refuse", connection="shop")
async def refuse(step: Step) -> None:
    raise Rejected("sold out")


@action("fail")
async def fail(step: Step) -> None:
    raise ConnectionError("the airline does not answer")
"""

BOOKED = "{id: take, uses: book, compensate: unbook}"
WAITS = "{id: go, uses: wait, with: {signal: go}}"
AGAIN = "retry: {max_attempts: 1000, initial_interval: 20ms, max_interval: 5s}"

DEFINITIONS: Mapping[str, str] = {
    "undo-parks": """
        steps:
          - {id: take, uses: book, compensate: {uses: unbook, with: {refuse: true}}}
          - {id: ask, uses: refuse, effect: none}
    """,
    "parent": "steps: [{id: inner, uses: saga, with: {name: undo-parks, input: {}}}]",
    "held-by-nobody": f"steps: [{BOOKED}]",
    "nesting": f"""
        steps:
          - {{id: inner, uses: saga, with: {{name: held-by-nobody, input: {{}}}}}}
          - {WAITS}
    """,
    "held-by-name": f"steps: [{BOOKED}]",
    "held-by-breaker": f"""
        steps:
          - {{id: take, uses: http, effect: none, with: {{connection: crm, method: POST, path: /orders}}, {AGAIN}}}
    """,
    "given-up": f"steps: [{BOOKED}, {{id: ask, uses: refuse, compensate: unbook}}]",
    "pivot-passed": "steps: [{id: take, uses: book, pivot: true}, {id: ask, uses: refuse, on_failure: park}]",
    "late": f"warn_after: 1s\nsteps: [{BOOKED}, {WAITS}]",
    "commanding": f"""
        steps:
          - id: ask
            uses: kafka.request
            with: {{topic: commands, value: 1}}
            timeout: 2s
            retry: {{initial_interval: 20ms, max_attempts: 1000}}
            compensate: kafka.request
          - {WAITS}
    """,
    "failing": f"steps: [{BOOKED}, {{id: fly, uses: fail, effect: none, {AGAIN}}}]",
    "refused-by-ledger": f"steps: [{BOOKED}]",
    "elsewhere": f"steps: [{BOOKED}, {{id: fly, uses: other, effect: none, task_queue: nobody-polls}}]",
    "waiting": "input: {type: object, properties: {n: {type: integer}}}\n"
    "steps:\n  - {id: take, uses: book, with: {value: '${{ default(input.n, 0) }}'}, compensate: {uses: unbook, "
    "with: {value: '${{ default(input.n, 0) }}'}}}\n  - {id: go, uses: wait, with: {signal: go}}\n"
    "  - {id: more, uses: book, compensate: unbook}",
    "other": "steps: [{id: note, uses: book, pivot: true}]",
    "locked": f"""
        locks: {{keys: ["${{{{ input.key }}}}"], wait: 10m}}
        input: {{type: object, required: [key], properties: {{key: {{type: string}}}}}}
        steps: [{BOOKED}, {WAITS}]
    """,
    "lock-alone": f'locks: {{keys: ["${{{{ saga.id }}}}"]}}\nsteps: [{WAITS}, {BOOKED}]',
    "prepared": """
        steps:
          - {id: take, uses: sql,
             with: {connection: shop, run: "insert into effects values (:saga, 'take')",
                    params: {saga: "${{ saga.id }}"}, two_phase: true}}
          - {id: go, uses: wait, with: {signal: go}}
    """,
    "held": """
        steps:
          - {id: take, uses: sql, compensate: {uses: unbook, with: {}},
             with: {connection: shop, run: "insert into effects values (:saga, 'take')",
                    params: {saga: "${{ saga.id }}"}, emit: [{topic: taken, key: a, value: {}, hold: true}]}}
          - {id: go, uses: wait, with: {signal: go}}
    """,
    "emitting": """
        steps:
          - {id: take, uses: sql, compensate: {uses: unbook, with: {}},
             with: {connection: shop, run: "insert into effects values (:saga, 'take')",
                    params: {saga: "${{ saga.id }}"}, emit: [{topic: taken, key: a, value: {}}]}}
    """,
    "held-up": """
        steps:
          - {id: take, uses: book, compensate: unbook}
          - {id: more, uses: sql, compensate: {uses: unbook, with: {}},
             with: {connection: shop, run: "insert into held_up values (:saga)", params: {saga: "${{ saga.id }}"}}}
    """,
    "undo-held": """
        steps:
          - {id: take, uses: book, compensate: unbook}
          - id: more
            uses: sql
            with: {connection: shop, run: "insert into held_back values (:saga)", params: {saga: "${{ saga.id }}"}}
            compensate:
              uses: sql
              with: {connection: shop, run: "delete from held_back where saga = :saga",
                     params: {saga: "${{ saga.id }}"}}
    """,
    "undo-half": """
        steps:
          - id: more
            uses: sql
            with: {connection: shop, run: "insert into held_half values (:saga)", params: {saga: "${{ saga.id }}"}}
            compensate:
              uses: sql
              with: {connection: shop, run: "delete from held_half where saga = :saga",
                     params: {saga: "${{ saga.id }}"}}
          - {id: take, uses: book, compensate: unbook}
    """,
    "notifying": f"steps: [{BOOKED}]\nnotify: [{{when: completed, uses: refuse, with: {{}}}}]",
}


@workflow.defn(dynamic=True)
class BrokenWorkflow:
    """A workflow whose code has a bug, so its task fails again and again."""

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> None:
        raise RuntimeError("a bug")


@dataclass
class Printed:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Stack:
    """The project, its worker and its database. ``ids``: the saga of each state."""

    folder: Path
    url: str
    client: Client
    plugin: SagaPlugin
    ledger: Client
    ledger_plugin: SagaPlugin
    ids: dict[str, str] = field(default_factory=dict)
    output: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the command that writes to standard output."""

    async def saga(self, *words: str, config: str = "saga.toml") -> Printed:
        """Run a command, in a thread: it has an event loop of its own."""
        out, err = io.StringIO(), io.StringIO()

        def run() -> int:
            return main.run(["--config", str(self.folder / config), *words])

        async with self.output:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = await asyncio.to_thread(run)
        assert "bug in saga" not in err.getvalue(), err.getvalue()
        return Printed(code, out.getvalue(), err.getvalue())

    async def temporal(self, *words: str) -> tuple[int, str]:
        """Exit code and output of Temporal's own tool."""
        address = self.client.project.settings.temporal.address
        assert address is not None
        process = await asyncio.create_subprocess_exec(
            *(find_temporal(), *words, "--address", address), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True, row_factory=tuple_row) as connection:
            cursor = connection.execute(statement, values or None)  # pyright: ignore[reportArgumentType,reportCallIssue]
            return cursor.fetchall() if cursor.description else []

    async def start(self, saga: str, input: Any = None, client: Client | None = None) -> str:
        run = await (client or self.client).start(saga, input or {}, id=f"{saga}-{uuid.uuid4().hex[:12]}")
        return run.id

    async def state(self, id: str, client: Client | None = None) -> str:
        return (await (client or self.client).show(id))["state"]

    async def waits(self, id: str, client: Client | None = None) -> None:
        """Until the saga waits for its signal."""

        async def waiting() -> bool:
            steps = (await (client or self.client).show(id))["steps"]
            return any(step["id"] == "go" and step["state"] == "RUNNING" for step in steps)

        await until(waiting)


def write_project(folder: Path, address: str, url: str) -> None:
    folder.mkdir(parents=True)
    for name, text in DEFINITIONS.items():
        (folder / f"{name}.saga.yaml").write_text(f"saga: {name}\n{_dedent(text)}")
    (folder / "actions.py").write_text(ACTIONS)
    queue = uuid.uuid4().hex
    common = 'definitions = ["."]\nactions = ["./actions.py"]\n[kafka]\noutbox = "shop"\n[connections.shop]\n'
    common += f'url = "{url}"\nprepared_warn_after = "1s"\n'
    crm = f'[connections.crm]\nkind = "http"\nurl = "http://127.0.0.1:{free_port()}"\n'
    breaker = 'circuit_breaker = {minimum = 3}\n[ledger]\nconnection = "shop"\n'
    for config, more in (
        ("saga.toml", '[locks]\nconnection = "shop"\n'),
        ("idle.toml", '[locks]\nconnection = "shop"\n'),
        ("broken.toml", '[locks]\nconnection = "shop"\n'),
        ("ledger.toml", breaker),
    ):
        temporal = f'[temporal]\naddress = "{address}"\ntask_queue = "{config}-{queue}"\n'
        (folder / config).write_text(common + temporal + crm + more)


def _dedent(text: str) -> str:
    import textwrap

    return textwrap.dedent(text)


def project_of(folder: Path, config: str) -> Project:
    return Project(load_settings(config=str(folder / config)))


@contextlib.asynccontextmanager
async def running_stack(folder: Path, address: str, url: str) -> AsyncIterator[Stack]:
    """The stack, with a worker for each of the two projects that have one, and one that is broken."""
    write_project(folder, address, url)
    main_project, ledger_project = project_of(folder, "saga.toml"), project_of(folder, "ledger.toml")
    for project in (main_project, ledger_project):
        for connection in project.settings.sql_connections():
            await set_up_database(connection)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table effects (saga text, step text)")
        connection.execute("create table held_up (saga text)")
        connection.execute("create table held_back (saga text)")
        connection.execute("create table held_half (saga text)")
    broken_queue = project_of(folder, "broken.toml").settings.temporal.task_queue
    plugin, ledger_plugin = SagaPlugin(main_project), SagaPlugin(ledger_project)
    grace = {"graceful_shutdown_timeout": timedelta(seconds=1)}
    temporal = await Temporal.connect(address)
    async with (
        running_worker(main_project, plugin=plugin, grace=timedelta(seconds=1)) as client,
        running_worker(ledger_project, plugin=ledger_plugin, grace=timedelta(seconds=1)) as ledger,
        Worker(
            temporal,
            task_queue=broken_queue,
            workflows=[BrokenWorkflow],
            workflow_runner=UnsandboxedWorkflowRunner(),
            **grace,  # pyright: ignore[reportArgumentType]
        ),
    ):
        yield Stack(folder, url, client, plugin, ledger, ledger_plugin)
