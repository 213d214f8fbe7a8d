"""Runs a definition with the machine, the dispatcher, real databases and a real HTTP server, without Temporal.

Whatever Temporal would carry is written to bytes and read again: arguments, results, and the state before each event.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.attempt_context import ReplyPending
from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.connections import DatabaseConnections, open_engine
from saga_activities.dispatcher import Dispatcher
from saga_activities.guard.schema import create_tables
from saga_activities.http import HttpConnections
from saga_activities.http.settings import http_settings
from saga_activities.kafka.record_codec import OUTCOME_HEADER, REPLY_TO_HEADER, REPLY_TOKEN_HEADER, STEP_KEY_HEADER
from saga_activities.ledger.schema import create_ledger
from saga_activities.messaging.kafka_request import KafkaRequestAction, decode_reply, record_reply
from sagas import Step, action
from sagas.definition.input_validation import validate_input
from sagas.definition.loader import parse_text
from sagas.definition.model import Definition
from sagas.definition.snapshot import from_snapshot, to_snapshot
from sagas.machine.machine import Machine
from sagas.project import Project
from sagas.protocol.messages import (
    Call,
    CallEnded,
    Finish,
    MachineEvent,
    SagaEnded,
    Started,
    StartSaga,
    StartTimer,
    TimerFired,
)
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import (
    Invocation,
    decode_call,
    decode_result,
    encode_call,
    encode_result,
    pack_state,
    unpack_state,
)
from sagas.protocol.saga_view import SagaView
from sagas.settings import HttpService, SqlConnection
from sagas.workflow.json_payloads import json_payload, read_payload
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import make_project
from tests.integration.guard.conftest import new_attempt
from tests.integration.http.raw_server import HOST, response
from tests.integration.values.journeys import TABLES

DATABASES = ("postgres", "mariadb", "sqlite")
START = 1_700_000_000.0

PART = """
saga: part
input: {type: object, required: [doc], additionalProperties: true, properties: {doc: {}}}
steps:
  - {id: keep, uses: echo, with: {value: "${{ input.doc }}"}, effect: none}
output: "${{ steps.keep.result }}"
"""


@action("echo")
async def echo(value: Any = None) -> Any:
    return value


@action("money")
async def money(amount: Decimal) -> Decimal:
    return amount


@action("count")
def count(number: int) -> dict[str, int]:
    return {"number": number}


@action("guarded", connection="postgres")
async def guarded(step: Step, value: Any) -> Any:
    return {"value": value}


HALF_PAIR = "\ud83d"


@action("half")
async def half() -> Any:
    return {"text": [HALF_PAIR]}


@dataclass
class Receiver:
    """Keeps the requests it gets as bytes, and answers each with its JSON body inside an object."""

    url: str = ""
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.rstrip("\r\n").split("\r\n")
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.requests.append((first.split(" ")[1], headers, body))
                is_json = headers.get("content-type") == "application/json"
                answer = b'{"answer": %s}' % (body if is_json else b"null")
                writer.write(response(answer, "Content-Type: application/json"))
                await writer.drain()
        writer.close()


@dataclass
class Ended:
    """How a run ended: its state, the view of it, the bytes of its output, and why it failed."""

    id: str
    state: str
    view: SagaView
    output: bytes
    reason: Mapping[str, Any] | None


class Stage:
    """The project with its servers, for many runs."""

    def __init__(self, project: Project, databases: DatabaseConnections, http: HttpConnections, receiver: Receiver):
        self.project, self.databases, self.receiver = project, databases, receiver
        self.dispatcher = Dispatcher(
            ActionBodies(project.actions),
            databases,
            http,
            requests=KafkaRequestAction(databases, project.settings.kafka),
        )
        self.part = self.definition(PART)
        self.runs = 0

    def engine(self, database: str) -> AsyncEngine:
        return self.databases.engine(database)

    def definition(self, text: str) -> Definition:
        """Raises DefinitionRefused for a text with errors."""
        definition, diagnostics = parse_text(text, "values.saga.yaml", self.project.context)
        if definition is None:
            raise DefinitionRefused("; ".join(f"{diagnostic.code} {diagnostic.message}" for diagnostic in diagnostics))
        carried = read_payload(json_payload(to_snapshot(definition)))
        return from_snapshot(carried)

    async def events(self, database: str, saga_id: str) -> list[str]:
        """The values of the records that the last step of the saga publishes."""
        text = sa.text("select value from saga_outbox where saga_id = :s and topic = 't'")
        async with self.engine(database).connect() as connection:
            return list((await connection.execute(text, {"s": saga_id})).scalars())

    async def reply(self, invocation: Invocation) -> None:
        """A participant's reply to a command: the value of its record inside an object."""
        text = sa.text("select value, headers from saga_outbox where saga_id = :s and headers like :k")
        engine, key = self.engine("sqlite"), f'%"{STEP_KEY_HEADER}"%{invocation.key}"%'
        async with engine.connect() as connection:
            value, stored = (await connection.execute(text, {"s": invocation.saga_id, "k": key})).one()
        command = json.loads(stored)
        token = command[REPLY_TOKEN_HEADER]
        headers = {STEP_KEY_HEADER: invocation.key, OUTCOME_HEADER: "done", REPLY_TOKEN_HEADER: token}
        record = b'{"reply": %s}' % value.encode()
        reply = decode_reply(command[REPLY_TO_HEADER], headers, record)
        assert (await record_reply(engine, reply))[0]

    async def written(self) -> tuple[int, ...]:
        """The number of rows, records and requests that all runs have written so far."""
        counts = [len(self.receiver.requests)]
        tables = ("kept", "saga_outbox", "saga_request", "saga_inbox")
        for database in DATABASES:
            every = ", ".join(f"(select count(*) from {table})" for table in tables)
            async with self.engine(database).connect() as connection:
                counts += (await connection.execute(sa.text(f"select {every}"))).one()
        return tuple(counts)

    async def run(self, definition: Definition, input: Any, variables: Mapping[str, Any]) -> Ended:
        """Raises StartRefused if the input is invalid."""
        given, mistakes = validate_input(definition, input)
        if mistakes:
            raise StartRefused(mistakes[0])
        self.runs += 1
        return await _Run(self, definition, read_payload(json_payload(given)), variables).play()


class DefinitionRefused(Exception):
    """The definition has errors."""


class StartRefused(Exception):
    """The input does not fit the schema."""


class _Run:
    def __init__(self, stage: Stage, definition: Definition, input: Any, variables: Mapping[str, Any]) -> None:
        self.stage, self.id, self.now = stage, f"value-{uuid4()}", START
        carried = read_payload(json_payload(dict(variables)))
        self.machine = Machine(definition, input, self.id, variables=carried)
        self.finish: Finish | None = None

    async def play(self) -> Ended:
        events: list[MachineEvent] = [Started(self.now)]
        for event in events:
            self.machine = Machine.restore(unpack_state(pack_state(self.machine.snapshot())))
            for command in self.machine.next(event):
                match command:
                    case Call():
                        outcome = await self._perform(command)
                        events.append(CallEnded(command.id, outcome, self.now, 1))
                    case StartSaga():
                        events.append(await self._nested(command))
                    case StartTimer(id="pause"):
                        events.append(TimerFired(command.id, self.now))
                    case Finish():
                        self.finish = command
        view = self.machine.view()
        assert self.finish is not None, view.to_json()
        output = json_payload(self.finish.output).data
        return Ended(self.id, self.machine.state, view, output, self.finish.reason)

    async def _perform(self, call: Call) -> Outcome:
        """The outcome of the second attempt, which gets the stored result of a guarded first one, or a reply."""
        argument = read_payload(json_payload(encode_call(call, self.id)))
        invocation, attempt = decode_call(call.action, argument), replace(new_attempt(), task_token=b"token")
        try:
            outcome = await self.stage.dispatcher.perform(invocation, attempt)
        except ReplyPending:
            await self.stage.reply(invocation)
            outcome = await self.stage.dispatcher.perform(invocation, attempt)
        if invocation.guard is not None and outcome.kind == "done":
            outcome = await self.stage.dispatcher.perform(invocation, new_attempt())
        if outcome.kind != "done":
            return outcome
        return decode_result(read_payload(json_payload(encode_result(outcome, 1))))

    async def _nested(self, command: StartSaga) -> SagaEnded:
        assert command.saga == "part"
        ended = await self.stage.run(self.stage.part, read_payload(json_payload(command.input)), {})
        assert ended.state == "COMPLETED", ended
        view = SagaView.from_json(read_payload(json_payload(ended.view.to_json())))
        return SagaEnded(command.id, "COMPLETED", self.now, view)


async def new_mariadb_database(server: DatabaseServer) -> str:
    """The URL of a new database."""
    name = f"values_{uuid4().hex}"
    administrator = open_engine("administrator", server.url("mysql"), 1)
    async with administrator.connect() as connection:
        await connection.exec_driver_sql(f"create database {name} character set utf8mb4")
    await administrator.dispose()
    return server.url(name)


@contextlib.asynccontextmanager
async def open_stage(folder: Path, urls: Mapping[str, str]) -> AsyncIterator[Stage]:
    receiver = Receiver()
    listening = await asyncio.start_server(receiver.serve, HOST, 0)
    receiver.url = f"http://{HOST}:{listening.sockets[0].getsockname()[1]}"
    bank = HttpService(name="bank", root=folder, url_setting=receiver.url)
    project = make_project(
        folder / "project", {"part": PART}, [echo, money, count, guarded, half],
        address=HOST, connections=urls, options={"bank": bank}, outbox="sqlite",
    )  # fmt: skip
    assert not [diagnostic for diagnostic in project.diagnostics if diagnostic.severity == "error"], project.diagnostics
    databases = DatabaseConnections([SqlConnection(name=name, url_setting=url) for name, url in urls.items()])
    http = HttpConnections({"bank": http_settings(bank)})
    for name in urls:
        await create_tables(databases.engine(name))
    await create_ledger(databases.engine("postgres"))
    for name, statement in TABLES.items():
        async with databases.engine(name).begin() as connection:
            await connection.execute(sa.text(statement))
    async with listening:
        yield Stage(project, databases, http, receiver)
    await http.aclose()
    await databases.close()
