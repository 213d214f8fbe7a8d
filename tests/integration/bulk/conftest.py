"""A bank whose sagas move money, with a ledger, and a worker in this process."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from saga_workers.client import Client
from saga_workers.runtime.databases import set_up_database
from saga_workers.start.start_requests import BulkRow
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer

ACTIONS = """
from sagas import BatchStep, Item, Rejected, Step, action


@action("bank.note", connection="bank")
async def note(step: Step, text: str) -> dict:
    if text == "fails":
        raise RuntimeError("it fails")
    if text == "twice":
        await step.sql.execute("insert into note (id, text) values (:id, 'one')", id=step.saga_id)
    await step.sql.execute("insert into note (id, text) values (:id, :text)", id=step.saga_id, text=text)
    step.emit("notes", key=step.saga_id, value={"text": text})
    return {"text": text}


@action("bank.note_again", connection="bank")
async def note_again(step: Step, text: str) -> dict:
    if text == "refused":
        raise Rejected("not again")
    await step.sql.execute("update note set text = :text where id = :id", id=step.saga_id, text=text)
    return {"text": text}


@action("bank.forget", connection="bank")
async def forget(step: Step, text: str) -> None:
    await step.sql.execute("delete from note where id = :id", id=step.saga_id)


@action("bank.take", connection="bank", batch=True)
async def take(step: BatchStep, items: list[Item]) -> list:
    rows = await step.sql.all(
        "update account a set balance = balance - v.amount"
        " from unnest(cast(:ids as text[]), cast(:amounts as int[])) as v (id, amount)"
        " where a.id = v.id and a.balance >= v.amount returning a.id",
        ids=[item["account"] for item in items], amounts=[item["amount"] for item in items],
    )
    taken = {row.id for row in rows}
    return [None if item["account"] in taken else Rejected("no money") for item in items]


@action("bank.give", connection="bank", batch=True)
async def give(step: BatchStep, items: list[Item]) -> list:
    await step.sql.execute(
        "update account a set balance = balance + v.amount"
        " from unnest(cast(:ids as text[]), cast(:amounts as int[])) as v (id, amount) where a.id = v.id",
        ids=[item["account"] for item in items], amounts=[item["amount"] for item in items],
    )
    return [None] * len(items)
"""

TRANSFER = """
saga: transfer
id: "${{ input.id }}"
input:
  type: object
  required: [id, from, to, amount]
  properties:
    id: {type: string}
    from: {type: string}
    to: {type: string}
    amount: {type: integer}
    text: {type: string, default: ok}
labels: {from: "${{ input.from }}"}
steps:
  - id: debit
    uses: sql
    with:
      connection: bank
      run: "update account set balance = balance - :amount where id = :id and balance >= :amount"
      params: {amount: "${{ input.amount }}", id: "${{ input.from }}"}
      expect_rows: 1
      rejected: no money
    compensate:
      uses: sql
      with:
        connection: bank
        run: "update account set balance = balance + :amount where id = :id"
        params: {amount: "${{ input.amount }}", id: "${{ input.from }}"}
  - id: credit
    uses: sql
    retry: {max_attempts: 4, initial_interval: 50ms}
    with:
      connection: bank
      run: "update account set balance = balance + :amount where id = :id"
      params: {amount: "${{ input.amount }}", id: "${{ input.to }}"}
      expect_rows: 1
      rejected: no such account
    compensate:
      uses: sql
      with:
        connection: bank
        run: "update account set balance = balance - :amount where id = :id"
        params: {amount: "${{ input.amount }}", id: "${{ input.to }}"}
  - {id: note, uses: bank.note, with: {text: "${{ input.text }}"}, retry: {max_attempts: 4, initial_interval: 50ms},
     compensate: bank.forget}
output: {moved: "${{ input.amount }}"}
"""

WITHDRAWAL = """
saga: withdrawal
id: "${{ input.id }}"
input:
  type: object
  required: [id, account, amount]
  properties: {id: {type: string}, account: {type: string}, amount: {type: integer}}
steps:
  - {id: take, uses: bank.take, with: {account: "${{ input.account }}", amount: "${{ input.amount }}"},
     compensate: bank.give}
"""

WAITING = """
saga: waiting
id: "${{ input.id }}"
input:
  type: object
  required: [id]
  properties: {id: {type: string}, waits: {type: boolean, default: false}}
steps:
  - {id: first, uses: bank.note, with: {text: first}, compensate: bank.forget}
  - {id: pause, uses: wait, with: {signal: go}, if: "input.waits"}
"""

RESTING = """
saga: resting
id: "${{ input.id }}"
input:
  type: object
  required: [id, rest]
  properties: {id: {type: string}, rest: {type: string}, text: {type: string, default: second}}
steps:
  - {id: first, uses: bank.note, with: {text: first}, compensate: bank.forget}
  - {id: rest, uses: wait, with: {for: "${{ input.rest }}"}}
  - {id: second, uses: bank.note_again, with: {text: "${{ input.text }}"}, compensate: bank.forget}
"""

LOOKING = """
saga: looking
input: {type: object, properties: {finds: {type: boolean, default: true}}}
steps:
  - {id: look, uses: require, with: {that: "${{ input.finds }}", message: nothing there}}
"""

_MOVE = 'uses: sql, with: {connection: bank, run: "insert into moved values (:key, :amount)", params: {'
BRANCHING = f"""
saga: branching
id: "${{{{ input.id }}}}"
input:
  type: object
  required: [id]
  properties: {{id: {{type: string}}, first: {{type: boolean, default: true}}}}
steps:
  - {{id: first, {_MOVE}key: first, amount: 1}}}}, if: input.first,
     compensate: {{{_MOVE}key: first, amount: -1}}}}}}}}
  - {{id: second, {_MOVE}key: second, amount: 1}}}}, compensate: {{{_MOVE}key: second, amount: -1}}}}}}}}
  - {{id: pause, uses: wait, with: {{signal: go}}}}
"""

SCHEMA = """
create table if not exists account (id text primary key, balance int not null check (balance <= 1000000));
create table if not exists note (id text primary key, text text);
create table if not exists moved (step text, amount int);
"""


@dataclass
class Bank:
    """The project with its worker; ``url``: of the database."""

    client: Client
    project: Project
    url: str

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)  # pyright: ignore[reportArgumentType,reportCallIssue]
            return cursor.fetchall() if cursor.description else []

    def open_accounts(self, count: int, balance: int = 100) -> None:
        self.query("insert into account select 'a' || i, %s from generate_series(1, %s) i", balance, count)

    def new_transfer(self) -> tuple[str, dict[str, Any]]:
        """The id and the input of a transfer between two new accounts."""
        self.open_accounts(2)
        id = f"t-{uuid.uuid4()}"
        return id, {"id": id, "from": "a1", "to": "a2", "amount": 7}

    def balances(self) -> dict[str, int]:
        return dict(self.query("select id, balance from account"))

    async def start(self, saga: str, inputs: Sequence[Any], **options: Any) -> Any:
        """Run a bulk workflow; returns its result."""
        starter = await self.client.starter(saga)
        rows = [BulkRow(input["id"], starter.make_request(input)) for input in inputs]
        handle = await starter.start_bulk(rows, **options)
        return await handle.result()

    def states(self) -> dict[str, str]:
        """States by saga id, as the ledger has them."""
        return dict(self.query("select saga_id, state from saga_run"))


def write_project(folder: Path, address: str, url: str, schema: str = SCHEMA) -> Project:
    folder.mkdir(exist_ok=True)
    for text in (TRANSFER, WITHDRAWAL, WAITING, RESTING, LOOKING, BRANCHING):
        (folder / f"{text.split()[1]}.saga.yaml").write_text(text)
    (folder / "actions.py").write_text(ACTIONS)
    (folder / "schema.sql").write_text(schema)
    (folder / "saga.toml").write_text(
        f'definitions = ["."]\nactions = ["./actions.py"]\n[temporal]\naddress = "{address}"\n'
        f'task_queue = "bulk-{uuid.uuid4().hex[:8]}"\n'
        f'[connections.bank]\nurl = "{url}"\nschema = "schema.sql"\n[ledger]\nconnection = "bank"\n'
        '[kafka]\noutbox = "bank"\n'
    )
    return Project(load_settings(config=str(folder / "saga.toml")))


@pytest.fixture
async def bank_project(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> tuple[Project, str]:
    url = new_database(postgres_server)
    project = write_project(tmp_path / "project", temporal.address, url)
    await set_up_database(project.settings.sql_connection("bank"))
    return project, url


@pytest.fixture
async def bank(bank_project: tuple[Project, str]) -> AsyncIterator[Bank]:
    project, url = bank_project
    async with running_worker(project) as client:
        yield Bank(client, project, url)
        await client.close()
