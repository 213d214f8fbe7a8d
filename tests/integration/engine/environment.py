"""An environment for engine tests: actions that record their calls and behave as the test scripts them.

Unguarded: ``work``, ``unwork``, ``settle``, ``look``, ``plain`` (a plain `def`). Guarded by the database ``shop``:
``book``, ``unbook``, ``fix``, which keep one row per effect. ``env.plan["do a#0"]`` is how successive attempts of
that operation end: an exception is raised, a callable is awaited, anything else is returned; the last one repeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import textwrap
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import NullPool, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from temporalio.client import WorkflowHandle

from saga_activities.guard.schema import create_tables
from saga_workers.client import Client
from sagas import Step, action
from sagas.project import Project
from sagas.protocol.signed_content import message_content
from sagas.settings import HttpService, SqlConnection
from sagas.settings.connections import async_url
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.waiting import LIMIT

GRACE = timedelta(seconds=1)


@dataclass(frozen=True)
class ActionCall:
    """One attempt as an action saw it."""

    what: str
    key: str
    attempt: int
    generation: int
    value: Any


@dataclass
class Environment:
    """A project whose actions answer as ``plan`` says, and record their calls in ``asked``."""

    folder: Path
    address: str
    url: str
    engine: AsyncEngine
    plan: dict[str, list[Any]] = field(default_factory=dict)
    asked: list[ActionCall] = field(default_factory=list)
    project: Project | None = None
    connections: dict[str, SqlConnection | HttpService] = field(default_factory=dict)
    """More connections in addition to ``shop``."""
    ledger: str | None = None
    """The connection of the ledger, whose tables the test creates."""

    def log(self) -> list[str]:
        """The attempts in their order: ``do a``, ``undo a`` …"""
        return [request.what for request in self.asked]

    async def effects(self) -> list[str]:
        """The steps whose guarded effect is there now, and `confirm x` for what was made final."""
        async with self.engine.connect() as connection:
            return sorted((await connection.execute(text("select what from effects"))).scalars())

    async def perform(self, step: Step, value: Any) -> Any:
        what = f"{step.op} {step.id}"
        self.asked.append(ActionCall(what, step.key, step.attempt, step.generation, value))
        moves: list[Any] | None = self.plan.get(what)
        if not moves:
            return {"value": value}
        move: Any = moves.pop(0) if len(moves) > 1 else moves[0]
        if isinstance(move, BaseException):
            raise move
        if callable(move):
            answer: Any = move(step)
            return await answer
        return move

    def actions(self) -> list[Callable[..., Any]]:
        """The actions of this environment, for a project."""

        async def perform(step: Step, value: Any = None) -> Any:
            return await self.perform(step, value)

        async def write(step: Step, value: Any = None) -> Any:
            result = await self.perform(step, value)
            if step.op == "do":
                await step.sql.execute("insert into effects values (:what)", what=step.id)
            elif step.op == "undo":
                await step.sql.execute("delete from effects where what in (:what, 'confirm ' || :what)", what=step.id)
            else:
                await step.sql.execute("insert into effects values (:what)", what=f"{step.op} {step.id}")
            return result

        loop = asyncio.get_running_loop()

        def plain(step: Step, value: Any = None) -> Any:
            return asyncio.run_coroutine_threadsafe(self.perform(step, value), loop).result()

        collected: list[Callable[..., Any]] = []
        for name in ("work", "unwork", "settle", "look"):

            async def act(step: Step, value: Any = None) -> Any:
                return await perform(step, value)

            collected.append(action(name)(act))
        for name in ("book", "unbook", "fix"):

            async def other(step: Step, value: Any = None) -> Any:
                return await write(step, value)

            collected.append(action(name, connection="shop")(other))

        async def careless(step: Step, value: Any = None) -> Any:
            return await perform(step, value)

        return [*collected, action("plain")(plain), action("careless", idempotent=False)(careless)]

    @contextlib.asynccontextmanager
    async def serving(self, *definitions: str, variables: Mapping[str, Any] | None = None, **options: Any):
        """A worker for these definitions (YAML texts); gives a client."""
        texts = [textwrap.dedent(definition) for definition in definitions]
        names = [text.split("saga:", 1)[1].split()[0] for text in texts]
        self.project = make_project(
            self.folder / f"project-{uuid.uuid4()}",
            dict(zip(names, texts, strict=True)),
            self.actions(),
            address=self.address,
            connections={"shop": self.url},
            options=self.connections,
            variables=variables,
            outbox="shop",
            locks="shop",
            ledger=self.ledger,
        )
        async with running_worker(self.project, **{"grace": GRACE, **options}) as client:
            yield client
            if self.ledger is not None:
                await client.close()

    @contextlib.asynccontextmanager
    async def again(self, **options: Any) -> AsyncIterator[Client]:
        """Another worker for the same project, after or in addition to the first."""
        assert self.project is not None
        async with running_worker(self.project, **{"grace": GRACE, **options}) as client:
            yield client
            if self.ledger is not None:
                await client.close()


async def open_environment(folder: Path, address: str, url: str | None = None) -> Environment:
    """An environment with its own empty database, which is SQLite without a ``url``."""
    url = async_url(url or f"sqlite:///{folder / 'shop.db'}", folder)
    engine = create_async_engine(url, poolclass=NullPool)  # nobody closes it
    await create_tables(engine)
    async with engine.begin() as connection:
        await connection.execute(text("create table effects (what text primary key)"))
    return Environment(folder, address, url, engine)


async def begin(client: Client, saga: str, input: Any = None, **options: Any) -> str:
    """Start a saga; gives its id."""
    run = await client.start(saga, {} if input is None else input, **{"id": f"{saga}-{uuid.uuid4()}", **options})
    return run.id


async def run_saga(client: Client, saga: str, input: Any = None, **options: Any) -> dict[str, Any]:
    """Start a saga and wait until it is over or parked; gives its story."""
    return await finished(client, await begin(client, saga, input, **options))


def handle(client: Client, saga_id: str) -> WorkflowHandle[Any, Any]:
    return client.temporal.get_workflow_handle(saga_id)


async def resolve(client: Client, saga_id: str, step: str, decision: str, **more: Any) -> dict[str, Any]:
    """Send an operator decision as an update; returns the view at the end."""
    request = {"step": step, "decision": decision, "reason": "because", "who": "ada", **more}
    await send_signed(client, saga_id, request)
    return await finished(client, saga_id)


async def send_signed(client: Client, saga_id: str, decision: Mapping[str, Any]) -> None:
    """Send an operator decision that is signed, without the checks of the client."""
    update_id, run_id = str(uuid.uuid4()), (await handle(client, saga_id).describe()).run_id
    content = message_content([saga_id, run_id, update_id], decision)
    signature = client.project.settings.signing_keys().sign("decision", content)
    await handle(client, saga_id).execute_update("resolve", {**decision, "signature": signature}, id=update_id)


def states(story: Mapping[str, Any]) -> dict[str, str]:
    return {row["id"]: row["state"] for row in story["steps"]}


def row(story: Mapping[str, Any], id: str) -> dict[str, Any]:
    """The row of a step; one without a state while a busy worker does not answer the query for the saga."""
    return next((row for row in story["steps"] if row["id"] == id), {"state": None})


def gate() -> tuple[Callable[[Step], Any], asyncio.Event, asyncio.Event]:
    """A move that waits: (the move, set when it has begun, set it to let it go on)."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def move(step: Step) -> Any:
        begun.set()
        await go.wait()
        return {"value": "after the wait"}

    return move, begun, go


async def wait_for_event(event: asyncio.Event) -> None:
    """Wait for the event with a timeout."""
    await asyncio.wait_for(event.wait(), LIMIT)
