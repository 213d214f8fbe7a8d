"""The console of a saga that begins with an event, commands a participant over Kafka and publishes its end."""

from __future__ import annotations

import html
import re
import uuid
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from playwright.async_api import Browser

from saga_workers.serve.console.templates import saga_path
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.forked_commands import run_command
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import RelayProcess, TemporalServer, TriggerProcess
from tests.helpers.waiting import until
from tests.integration.serve.served_console import TOKENS, serving

ORDER = """
saga: order
input: {type: object, required: [order], properties: {order: {type: string}}}
triggers:
  kafka: {topic: MARK-orders, id: "${{ trigger.value.order }}"}
steps:
  - id: reserve
    name: Reserve the goods
    uses: sql
    with: {connection: shop, run: "insert into reservation values (:id)", params: {id: "${{ input.order }}"}}
    compensate: auto
  - id: pack
    name: Have it packed
    uses: kafka.request
    timeout: 10m
    with: {topic: MARK-packing, reply_topic: MARK-packed, value: {order: "${{ input.order }}"}}
    compensate: {uses: kafka.request, with: {topic: MARK-packing, reply_topic: MARK-packed, value: {undo: true}}}
  - id: tell
    name: Tell the others
    uses: kafka.publish
    with: {topic: MARK-told, value: {order: "${{ input.order }}"}}
    pivot: true
"""
SETTINGS = """
definitions = ["."]
[temporal]
address = "ADDRESS"
task_queue = "MARK"
[connections.shop]
url = "URL"
[ledger]
connection = "shop"
[kafka]
bootstrap_servers = "KAFKA"
outbox = "shop"
prefix = "MARK"
"""


def write_project(folder: Path, mark: str, *, address: str, url: str, kafka: str) -> Project:
    settings = SETTINGS.replace("ADDRESS", address).replace("URL", url).replace("KAFKA", kafka)
    (folder / "saga.toml").write_text(settings.replace("MARK", mark))
    (folder / "order.saga.yaml").write_text(ORDER.replace("MARK", mark))
    return Project(load_settings(config=str(folder / "saga.toml")))


@pytest.mark.slow
async def test_the_console_shows_the_messages_of_a_saga(
    browser: Browser,
    temporal: TemporalServer,
    postgres_server: DatabaseServer,
    kafka: Broker,
    tmp_path: Path,
    pictures: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mark, database_url = f"told-{uuid.uuid4().hex[:8]}", new_database(postgres_server)
    saga_id = f"{mark}-order"
    for topic in ("orders", "packing", "packed", "told"):
        kafka.create_topic(f"{mark}-{topic}")
    database = database_url.replace("+psycopg", "")
    with psycopg.connect(database) as connection:
        connection.execute("create table reservation (order_id text primary key)")
    project = write_project(tmp_path, mark, address=temporal.address, url=database_url, kafka=kafka.address)
    assert (done := run_command(["setup"], tmp_path)).returncode == 0, done
    kafka.produce(f"{mark}-orders", {"order": saga_id})
    for name, value in TOKENS.items():
        monkeypatch.setenv(name, value)

    def command_key() -> tuple[Any, ...] | None:
        query = "select step_key, reply_token from saga_request where saga_id = %s and token is not null"
        with psycopg.connect(database) as connection:
            return connection.execute(query, [saga_id]).fetchone()

    async with (
        running_worker(project) as client,
        serving(client) as url,
        httpx.AsyncClient(base_url=url, timeout=60, headers={"Origin": url}) as reader,
    ):
        await reader.post("/console/sign-in", data={"token": TOKENS["STAFF"]})

        async def rows(page: str) -> list[str]:
            """The rows of tables and lists of a page, as text."""
            text = (await reader.get(page)).text
            parts = re.findall(r"<(?:tr|li)\b.*?</(?:tr|li)>", text, re.DOTALL)
            return [" ".join(html.unescape(re.sub(r"<[^>]+>", " ", part)).split()) for part in parts]

        async def have(page: str, *expected: str) -> bool:
            shown = await rows(page)
            return all(any(re.search(line, row) for row in shown) for line in expected)

        databases = saga_path(saga_id, "/databases")
        with TriggerProcess("trigger", tmp_path):
            key, token = await until(command_key)
            assert await have(
                databases,
                r"^reserve shop ✔ there ",
                r"^pack shop a command of kafka.request \? no reply to its command yet ",
                rf"^{mark}-packing \S+ pack waits to be published ",
            ), await rows(databases)
            await until(lambda: have("/console", r"^… Outgoing events of shop: 1 waits to be published"))
            with RelayProcess("relay", tmp_path):
                await until(lambda: have(databases, rf"^{mark}-packing \S+ pack published "))
                headers = {"sagakey": key, "sagaoutcome": "done", "sagatoken": token}
                kafka.produce(f"{mark}-packed", {"parcel": "7"}, key=key, headers=headers)
                assert (await finished(client, saga_id))["state"] == "COMPLETED"
                await until(lambda: have(databases, rf"^{mark}-told \S+ tell published "))
                await until(
                    lambda: have("/console", "^✔ Outgoing events of shop: 0 wait", f"^✔ Incoming: .*{mark}-orders")
                )
        told = [row for row in await rows(saga_path(saga_id)) if re.match(r"\d{4}-|\S+ \d\d:", row)]
        story = [
            "The saga started",
            "Reserve the goods: began",
            "Reserve the goods: done",
            "Have it packed: began",
            "Have it packed: done",
            "Tell the others: began",
            "Tell the others: done",
            "The point of no return was passed",
            "The saga is over: completed",
        ]
        assert [next((line for line in story if line in row), row) for row in told] == story, told

        low_contrast = Path(__file__).with_name("low_contrast.js").read_text()
        for look, options in LOOKS.items():
            context = await browser.new_context(**options)
            page = await context.new_page()
            await page.goto(f"{url}/console")
            await page.locator("#token:focus").wait_for()
            await page.keyboard.type(TOKENS["STAFF"])
            await page.keyboard.press("Enter")
            await page.get_by_role("heading", name="Board").wait_for()
            for name, path, words in (
                ("board", "/console", "Outgoing events of shop: 0 wait to be published"),
                ("saga", saga_path(saga_id), "Tell the others: done"),
                ("databases", databases, f"{mark}-told"),
            ):
                await page.goto(url + path)
                await page.get_by_text(words).first.wait_for()
                await page.screenshot(path=pictures / f"messages-{name}-{look}.png", full_page=True)
                assert await page.evaluate(low_contrast) == [], (name, look)
                wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                assert await page.evaluate(wide) == 0, (name, look)
            await context.close()


LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "light"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}
