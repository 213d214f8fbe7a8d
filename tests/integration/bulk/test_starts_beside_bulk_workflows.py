"""A second command over sagas that a bulk workflow of another command runs."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest

from saga_workers.location.location import Location
from saga_workers.location.locator import Locator
from saga_workers.start.row_starts import final_state
from tests.helpers.waiting import LIMIT, until
from tests.integration.bulk.conftest import Bank
from tests.integration.bulk.test_killed_workers import held
from tests.integration.cli.conftest import CommandLine


@pytest.fixture
async def shop(bank: Bank, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    bank.open_accounts(4)
    return CommandLine(bank.project.settings.root, capsys, bank.client)


def transfers() -> list[dict[str, Any]]:
    mark = uuid.uuid4()
    return [{"id": f"t-{mark}-{n}", "from": f"a{n}", "to": f"a{n + 2}", "amount": 10} for n in (1, 2)]


async def test_it_waits_for_them(shop: CommandLine, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sagas of a bulk workflow have neither a run of their own nor a row: only that workflow tells that they run."""
    rows = transfers()
    file = shop.folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    looked, locate = asyncio.Event(), Locator.locate

    async def observed(self: Locator, saga_id: str) -> Location:
        location = await locate(self, saga_id)
        if location.kind == "in bulk":
            looked.set()
        return location

    async with held(bank.url, "select 1 from account for update"):
        bulk = asyncio.create_task(bank.start("transfer", rows))
        await until(lambda: bank.query("select count(*) from saga_claim where bulk_id is not null") == [(2,)])
        monkeypatch.setattr(Locator, "locate", observed)
        ends = [asyncio.create_task(final_state(bank.client.locator, row["id"])) for row in rows]
        looking = asyncio.create_task(looked.wait())
        await asyncio.wait([*ends, looking], timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
        assert [end.done() for end in ends] == [False, False]
        assert looked.is_set()
    assert await asyncio.gather(*ends) == ["COMPLETED", "COMPLETED"]
    await bulk
    for words in ((), ("--bulk",)):
        again = await shop.saga("--json", "start", "transfer", "--from", str(file), *words)
        assert (again.code, again.json["started"], again.json["ended"]) == (0, 0, {"COMPLETED": 2})


async def test_it_reports_a_terminated_bulk_workflow(bank: Bank) -> None:
    bank.open_accounts(4)
    rows = transfers()
    async with held(bank.url, "select 1 from account for update"):
        bulk = asyncio.create_task(bank.start("transfer", rows))
        await until(lambda: bank.query("select count(*) from saga_claim where bulk_id is not null") == [(2,)])
        [(bulk_id,)] = bank.query("select distinct bulk_id from saga_claim")
        await bank.client.temporal.get_workflow_handle(bulk_id).terminate("test")
        assert await final_state(bank.client.locator, rows[0]["id"]) == "TERMINATED"
        bulk.cancel()
