"""The commands of how-to pages, as a new user copies them, in a project like that of the page."""

from __future__ import annotations

import re
import shlex
import uuid
from pathlib import Path

import pytest

from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.cli.conftest import CommandLine

HOW_TO = Path(__file__).parents[3] / "docs/how-to"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CHECKOUT = """
saga: checkout
input:
  type: object
  properties: {card: {type: string, x-sensitive: true}, waits: {type: boolean, default: false}}
steps:
  - {id: take, uses: stock.take, with: {card: "${{ input.card }}"}, compensate: stock.put_back}
  - {id: approval, uses: wait, if: input.waits, with: {signal: approve}}
"""
ACTIONS = """
from sagas import Step, action

@action("stock.take", connection="warehouse")
async def take(step: Step, card: str) -> dict:
    return {"card": card}

@action("stock.put_back", connection="warehouse")
async def put_back(step: Step, card: str) -> None: ...

@action("sales.sum")
async def total(day: str) -> dict:
    return {"total": 1}

@action("ledger.book")
async def book(total: int) -> None: ...
"""


def blocks(page: str, language: str) -> list[str]:
    text = (HOW_TO / f"{page}.md").read_text(encoding="utf-8")
    return [block for written, block in FENCE.findall(text) if written == language]


def commands(page: str) -> list[list[str]]:
    """The words of each `saga` command in the blocks of a page, in their order."""
    lines = [line for language in ("", "console") for block in blocks(page, language) for line in block.splitlines()]
    written = [line.removeprefix("$ ") for line in lines if line.removeprefix("$ ").startswith("saga ")]
    return [shlex.split(line, comments=True)[1:] for line in written]


@pytest.mark.slow
async def test_the_commands_of_pages(
    temporal: TemporalServer,
    postgres_server: DatabaseServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    url = new_database(postgres_server)
    (tmp_path / "actions.py").write_text(ACTIONS)
    (tmp_path / "checkout.saga.yaml").write_text(CHECKOUT)
    [close_day] = blocks("schedule-sagas", "yaml")[:1]
    (tmp_path / "close-day.saga.yaml").write_text(close_day)
    (tmp_path / "saga.toml").write_text(
        f'definitions = ["."]\nactions = ["./actions.py"]\n[temporal]\naddress = "{temporal.address}"\n'
        f'task_queue = "pages-{uuid.uuid4()}"\n[connections.warehouse]\nurl = "{url}"\n'
        '[ledger]\nconnection = "warehouse"\n'
    )
    project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    async with running_worker(project) as client:
        cli = CommandLine(tmp_path, capsys, client)
        assert (await cli.saga("setup")).code == 0
        await client.start("checkout", {"card": "4111", "waits": True}, id="checkout-7")
        await client.start("checkout", {"card": "4111"}, id="order-7")

        async def ended() -> bool:
            return (await client.show("order-7"))["state"] == "COMPLETED"

        await until(ended)
        for page, count in (("schedule-sagas", 5), ("pause-a-saga", 6), ("report-on-a-day", 2), ("privacy", 2)):
            written = commands(page)
            assert len(written) >= count, page
            for words in written:
                asks = "--where" in words or words[0] == "forget"
                done = await cli.saga(*words, *(["--yes"] if asks else []))
                expected = 5 if words[0] == "forget" else 0  # the histories have the values, as the page says
                assert done.code == expected, (page, words, done)
        for words in (("resume", "--saga", "checkout"), ("resume", "checkout-7")):
            assert (await cli.saga(*words)).code == 0
        await client.signal("checkout-7", "approve")
        assert (await cli.saga("watch", "checkout-7")).code == 0
