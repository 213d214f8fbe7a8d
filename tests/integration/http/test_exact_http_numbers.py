"""Numbers on their way through a whole saga: to a receiver that judges the bytes, into a database, and back."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from saga_activities.guard.schema import create_tables
from sagas import Step, action
from sagas.settings import HttpService
from sagas.text.exact_json import encode_json
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.integration.http.raw_server import HOST, response

DEFINITION = """
saga: numbers
input: {type: object, additionalProperties: true, properties: {amount: {type: number}}}
steps:
  - id: document
    uses: http
    with: {connection: bank, method: POST, path: /document, json: "${{ input }}"}
    effect: none
  - id: texts
    uses: http
    with:
      connection: bank
      method: POST
      path: "/v/${{ input.version }}"
      query: {v: 1.10, long: "${{ input.long }}"}
      headers: {x-version: 1.10, x-text: "v${{ input.version }}"}
      form: {amount: "${{ input.amount }}"}
    effect: none
  - id: computed
    uses: http
    with:
      connection: bank
      method: POST
      path: /computed
      json: {sum: "${{ input.amount + 0.10 }}", answer: "${{ steps.document.result }}", text: "${{ string(1.10) }}"}
      result: "{'big': response.json.big, 'price': response.json.price}"
    effect: none
  - id: stored
    uses: sql
    with:
      connection: shop
      run: >-
        insert into numbers values (:id, :amount, :long, :version, :doc)
        returning amount, long, version, doc, 9007199254740993::bigint as big, 0.1::float8 as ratio
      params:
        id: "${{ saga.id }}"
        amount: "${{ input.amount }}"
        long: "${{ input.long }}"
        version: 1.10
        doc: "${{ steps.computed.result }}"
    pivot: true
  - id: python
    uses: typed
    with: {amount: "${{ steps.stored.result[0].amount }}", count: "${{ input.count }}", any: "${{ input }}"}
    effect: none
output: {stored: "${{ steps.stored.result[0] }}", python: "${{ steps.python.result }}"}
"""

TABLE = "create table numbers (id text, amount numeric(12, 2), long numeric, version text, doc jsonb)"
LONG = "123456789012345678.123456789"


@action("typed")
async def typed(step: Step, amount: Decimal, count: int, any: Any) -> dict[str, Any]:
    return {"amount": amount, "count": count, "types": [type(any[name]).__name__ for name in ("amount", "count")]}


class Bank:
    """Answers every request with the same numbers, and keeps what came as bytes."""

    def __init__(self) -> None:
        self.requests: dict[str, tuple[bytes, bytes]] = {}
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head.lower())
                body = await reader.readexactly(int(length[1])) if length else b""
                path = head.split(b" ", 2)[1].decode()
                self.requests[path.split("?")[0]] = (head, body)
                answer = b'{"big": 9007199254740993, "price": 1.10, "long": %s}' % LONG.encode()
                writer.write(response(answer, "Content-Type: application/json"))
                await writer.drain()


@pytest_asyncio.fixture
async def bank() -> AsyncIterator[Bank]:
    served = Bank()
    listening = await asyncio.start_server(served.serve, HOST, 0)
    served.url = f"http://{HOST}:{listening.sockets[0].getsockname()[1]}"
    async with listening:
        yield served


async def run(temporal: TemporalServer, bank: Bank, url: str, folder: Path, **input: Any) -> tuple[dict[str, Any], str]:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    await create_tables(engine)
    async with engine.begin() as connection:
        await connection.execute(text(TABLE))
    options = {"bank": HttpService(name="bank", root=folder, url_setting=bank.url)}
    project = make_project(
        folder, {"numbers": DEFINITION}, [typed], address=temporal.address, connections={"shop": url}, options=options
    )
    async with running_worker(project) as client:
        started = await client.start("numbers", input, id=f"numbers-{uuid.uuid4()}")
        story = await finished(client, started.id)
    async with engine.connect() as connection:
        columns = "concat_ws(' ', amount, long, version, doc::text)"
        rows = (await connection.execute(text(f"select {columns} from numbers"))).scalars().all()
    await engine.dispose()
    return story, "\n".join(rows)


async def test_every_digit_arrives(
    temporal: TemporalServer, bank: Bank, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    input = {"amount": Decimal("12.50"), "count": 12, "long": Decimal(LONG), "version": Decimal("1.10")}
    story, rows = await run(temporal, bank, new_database(postgres_server), tmp_path, **input)
    assert story["state"] == "COMPLETED", story
    assert bank.requests["/document"][1] == f'{{"amount":12.50,"count":12,"long":{LONG},"version":1.10}}'.encode()
    head, form = bank.requests["/v/1.10"]
    assert head.startswith(f"POST /v/1.10?v=1.10&long={LONG} ".encode())
    assert (b"x-version: 1.10\r\n" in head, b"x-text: v1.10\r\n" in head, form) == (True, True, b"amount=12.50")
    answer = f'{{"big":9007199254740993,"price":1.10,"long":{LONG}}}'
    assert bank.requests["/computed"][1] == f'{{"sum":12.60,"answer":{answer},"text":"1.10"}}'.encode()
    assert rows == f'12.50 {LONG} 1.10 {{"big": 9007199254740993, "price": 1.10}}'
    assert encode_json(story["output"]).decode() == (
        f'{{"stored":{{"amount":12.50,"long":{LONG},"version":"1.10",'
        '"doc":{"big":9007199254740993,"price":1.10},"big":9007199254740993,"ratio":0.1},'
        '"python":{"amount":12.50,"count":12,"types":["Decimal","int"]}}'
    )


async def test_an_integer_stays_one(
    temporal: TemporalServer, bank: Bank, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    input = {"amount": 12, "count": 1, "long": 2**63, "version": Decimal("1.10")}
    story, rows = await run(temporal, bank, new_database(postgres_server), tmp_path, **input)
    assert story["state"] == "COMPLETED", story
    assert b'"amount":12,"count":1,"long":9223372036854775808,' in bank.requests["/document"][1]
    assert b'"sum":12.10' in bank.requests["/computed"][1]
    assert rows.startswith("12.00 9223372036854775808 1.10 ")


async def test_more_digits_than_the_column_holds_undo_the_saga(
    temporal: TemporalServer, bank: Bank, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    input = {"amount": Decimal("12.505"), "count": 1, "long": 1, "version": Decimal("1.10")}
    story, rows = await run(temporal, bank, new_database(postgres_server), tmp_path, **input)
    assert (story["state"], rows) == ("COMPENSATED", "")
    assert (
        "the parameter amount is 12.505, and the column amount of numbers (numeric(12,2)) holds 2 digits"
        in (story["reason"]["message"])
    )
