"""The `console` blocks of how-to pages print what they show, in projects like those of the pages."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from sagas.project import Project
from sagas.settings import load_settings
from tests.docs.console_blocks import Command, commands, missing
from tests.helpers.database_servers import HOST
from tests.helpers.forked_commands import run_command
from tests.helpers.free_ports import free_port
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until

HOW_TO = Path(__file__).parents[3] / "docs/how-to"
SETTINGS = """
definitions = ["."]
actions = ["./actions.py"]
[temporal]
address = "{address}"
task_queue = "printed-{queue}"
[connections.shop]
url = "sqlite:///{folder}/shop.db"
[ledger]
connection = "shop"
[enqueue]
connections = ["shop"]
[connections.mail]
kind = "http"
url = "http://127.0.0.1:1"
"""
pytestmark = pytest.mark.slow


class PrintedProject:
    """A project in a folder, with one definition and a SQLite database."""

    def __init__(self, folder: Path, temporal: TemporalServer) -> None:
        self.folder = folder
        (folder / "actions.py").write_text("")
        settings = SETTINGS.format(address=temporal.address, queue=uuid.uuid4(), folder=folder)
        (folder / "saga.toml").write_text(settings)

    def define(self, name: str, text: str) -> None:
        (self.folder / f"{name}.saga.yaml").write_text(f"saga: {name}\n{text}")

    def sql(self, *statements: str) -> None:
        with sqlite3.connect(self.folder / "shop.db") as database:
            for statement in statements:
                database.execute(statement)

    def project(self) -> Project:
        assert (done := run_command(["setup"], self.folder)).returncode == 0, done
        return Project(load_settings(config=str(self.folder / "saga.toml")))

    def print(self, command: Command, **names: str) -> None:
        """Run a command of a page, in which ``names`` stand for others, and compare what it prints."""
        text = command.text
        prints = command.prints
        for name, here in names.items():
            text, prints = text.replace(name, here), tuple(line.replace(name, here) for line in prints)
        words = shlex.split(text, comments=True)[1:]
        words += ["--yes"] if words[0] == "forget" else []
        done = run_command(words, self.folder, env={**os.environ, "COLUMNS": "160", "NO_COLOR": "1"})
        lost = missing(prints, done.stdout + done.stderr)
        assert lost is None, f"$ {text}\nshould print {lost!r}, but printed:\n{done.stdout}{done.stderr}"


def blocks(page: str) -> list[Command]:
    return commands((HOW_TO / f"{page}.md").read_text(encoding="utf-8"))


@pytest.fixture
def printed(tmp_path: Path, temporal: TemporalServer) -> PrintedProject:
    return PrintedProject(tmp_path, temporal)


HOTELS = """
from sagas import action

@action("hotels.book")
async def book() -> None: ...

@action("hotels.NAME")
async def undo() -> None: ...
"""
TRIP = """
steps:
  - {id: hotel, uses: hotels.book, compensate: hotels.NAME}
  - {id: approval, uses: wait, with: {signal: go}}
"""
STOCK = """
steps:
  - id: take
    uses: sql
    with: {connection: shop, run: "update item set free = free - 1"}
    compensate: {uses: sql, with: {connection: shop, run: "update item set free = free + 1"}}
  - {id: approval, uses: wait, with: {signal: go}}
"""


async def begin(printed: PrintedProject, saga: str, numbers: Sequence[int]) -> None:
    """Start sagas that have done their first step when the worker stops."""
    async with running_worker(printed.project()) as client:
        for number in numbers:
            await client.start(saga, {}, id=f"{saga}-{number}-{printed.folder.name}")

            async def waits(number: int = number) -> bool:
                view = await client.show(f"{saga}-{number}-{printed.folder.name}")
                return bool(view["steps"]) and view["steps"][-1]["state"] == "RUNNING"

            await until(waits)


async def test_a_deployment_without_an_action(printed: PrintedProject) -> None:
    (printed.folder / "actions.py").write_text(HOTELS.replace("NAME", "cancel"))
    printed.define("trip", TRIP.replace("NAME", "cancel"))
    await begin(printed, "trip", (18, 17))
    (printed.folder / "actions.py").write_text(HOTELS.replace("NAME", "release"))
    printed.define("trip", TRIP.replace("NAME", "release"))
    printed.print(blocks("versioning")[0], **{"trip-17": f"trip-17-{printed.folder.name}"})


async def test_a_deployment_without_a_column(printed: PrintedProject) -> None:
    printed.sql("create table item (free integer)")
    printed.define("stock", STOCK)
    await begin(printed, "stock", (4, 3))
    printed.sql("alter table item rename column free to available")
    printed.print(blocks("versioning")[1], **{"stock-3": f"stock-3-{printed.folder.name}"})


CHECKOUT = """
description: Take one basket from the shelf to a paid order.
input:
  type: object
  properties: {basket_id: {type: string}, account: {type: string}, quantity: {type: integer}}
steps:
  - id: reserve
    uses: sql
    with: {connection: shop, run: "insert into held values (:id)", params: {id: "${{ input.basket_id }}"}}
    compensate: {uses: sql, with: {connection: shop, run: "delete from held where id = :id",
                                   params: {id: "${{ input.basket_id }}"}}}
  - id: charge
    uses: sql
    with: {connection: shop, run: "update account set balance = balance - 10 where id = :id",
           params: {id: "${{ input.account }}"}}
    compensate: {uses: sql, with: {connection: shop, run: "update account set balance = balance + 9 where id = :id",
                                   params: {id: "${{ input.account }}"}}}
  - id: notify
    uses: http
    needs: [reserve]
    with: {connection: mail, method: POST, path: /told}
    compensate: {uses: http, with: {connection: mail, method: POST, path: /untold}}
  - id: place
    uses: sql
    with: {connection: shop, run: "insert into placed values (:id)", params: {id: "${{ input.basket_id }}"}}
    needs: [charge, notify]
    pivot: true
"""


async def test_an_undo_that_leaves_something(printed: PrintedProject) -> None:
    printed.sql("create table held (id text)", "create table placed (id text)")
    printed.sql(
        "create table account (id text primary key, balance integer)", "insert into account values ('anna', 50)"
    )
    printed.define("checkout", CHECKOUT)
    basket = {"basket_id": "b-1", "account": "anna", "quantity": 1}
    (printed.folder / "basket.json").write_text(json.dumps(basket))
    printed.project()
    printed.print(blocks("verify-undos")[0])


ORDERED = """
input: {type: object, required: [order], properties: {order: {type: string}}}
steps: [{id: place, uses: pass}]
"""


async def test_rows_that_are_enqueued(printed: PrintedProject) -> None:
    listed, *rest = blocks("start-from-your-transaction")
    printed.define("checkout", ORDERED)
    printed.project()
    row = "insert into saga_enqueued (id, saga, saga_id, input) values ({}, 'checkout', '{}', '{}')"
    printed.sql(row.format(17, "order-7", "{}"))
    assert (done := run_command(["relay", "--once"], printed.folder)).returncode == 0, done
    printed.sql(row.format(41, "order-19", '{"order": "19"}'))
    nowhere = {**os.environ, "SAGA_TEMPORAL__ADDRESS": f"{HOST}:{free_port()}"}
    run_command(["relay", "--once"], printed.folder, env=nowhere)
    printed.print(listed, **{"localhost:7233": nowhere["SAGA_TEMPORAL__ADDRESS"]})
    for command in rest:
        printed.print(command)


PRIVATE = """
input: {type: object, properties: {card: {type: string, x-sensitive: true}}}
steps:
  - id: keep
    uses: sql
    with: {connection: shop, run: "insert into kept (card) values (:card) returning card",
           params: {card: "${{ input.card }}"}}
    compensate: auto
  - id: note
    uses: sql
    with: {connection: shop, run: "update kept set noted = 1 returning card"}
    compensate: auto
  - id: count
    uses: sql
    with: {connection: shop, run: "update counted set number = number + 1"}
    compensate: {uses: sql, with: {connection: shop, run: "update counted set number = number - 1"}}
"""


async def test_private_values(printed: PrintedProject) -> None:
    printed.sql("create table kept (id integer primary key, card text, noted integer)", "create table counted (number)")
    printed.define("order", PRIVATE)
    here = f"order-7-{printed.folder.name}"
    async with running_worker(printed.project()) as client:
        await client.start("order", {"card": "4111-1111"}, id=here)
        assert (await finished(client, here))["state"] == "COMPLETED"
        for command in blocks("privacy"):
            printed.print(command, **{"order-7": here})
