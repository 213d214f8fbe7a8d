"""The Temporal Web UI as an unprepared user sees it."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect
from playwright.async_api import TimeoutError as PlaywrightTimeout
from temporalio import workflow
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer
from tests.integration.web_ui.history_lint import common_errors
from tests.integration.web_ui.shop import Shop, open_shop

TIMEOUT = 60_000
"""Milliseconds until a page has to show what it should."""

LINT = "Common Errors"
STATUS = {"COMPLETED": "COMPLETED", "COMPENSATED": "FAILED", "PARKED": "RUNNING", "RUNNING": "RUNNING"}


def link(server: TemporalServer, rest: str = "") -> str:
    return f"{server.web_ui}/namespaces/default/workflows{rest}"


async def text(page: Page) -> str:
    return await page.locator("body").inner_text()


async def is_shown(row: Locator) -> bool:
    """True when it is visible or becomes visible shortly."""
    try:
        await row.first.wait_for(timeout=5_000)
    except PlaywrightTimeout:
        return False
    return True


async def open_run(page: Page, server: TemporalServer, saga_id: str) -> None:
    """The page of one run, when its timeline is drawn. The checks of the UI find nothing in it."""
    await page.goto(link(server, f"/{saga_id}"))
    await page.get_by_text("inventory.reserve • Reserve the goods").first.wait_for()
    assert LINT.lower() not in (await text(page)).lower()


async def open_details(page: Page, server: TemporalServer, saga_id: str) -> tuple[str, str]:
    """The tab User Metadata: (static summary, current details), each in its own frame."""
    await open_run(page, server, saga_id)
    await page.locator("a", has_text="User Metadata").click()
    frames = page.locator("iframe")
    await frames.nth(2).wait_for()
    collected = []
    for number in (1, 2):
        table = frames.nth(number).content_frame.locator("table")
        await table.wait_for()
        collected.append(await frames.nth(number).content_frame.locator("body").inner_text())
    return collected[0], collected[1]


async def test_the_list_shows_names_and_states(
    page: Page, temporal: TemporalServer, shop: Shop, pictures: Path
) -> None:
    await page.goto(link(temporal))
    for state, status in STATUS.items():
        row = page.locator("tr", has=page.get_by_role("link", name=shop.ids[state]))
        end = time.monotonic() + TIMEOUT / 1000
        while not await is_shown(row) and time.monotonic() < end:  # the list does not update for later runs
            await page.reload()
        cells = await row.first.inner_text()
        assert status in cells.upper(), (state, cells)
        assert "checkout" in cells
    await page.screenshot(path=pictures / "list.png")


@pytest.mark.slow
@pytest.mark.parametrize("state", ["PARKED", "COMPENSATED", "RESIDUE"])
async def test_the_list_can_be_filtered_by_saga_state(
    page: Page, temporal: TemporalServer, shop: Shop, state: str
) -> None:
    await page.goto(link(temporal, f'?query=SagaState="{state}"'))
    await page.get_by_role("link", name=shop.ids[state]).wait_for()
    others = [saga_id for other, saga_id in shop.ids.items() if other not in (state, "HOSTILE")]
    shown = await text(page)
    assert not [saga_id for saga_id in others if saga_id in shown]


async def test_a_run_shows_the_summaries_of_its_steps(
    page: Page, temporal: TemporalServer, shop: Shop, pictures: Path
) -> None:
    await open_run(page, temporal, shop.ids["COMPLETED"])
    shown = await text(page)
    for line in (
        "inventory.reserve • Reserve the goods",
        "payments.charge • Charge the card",
        "orders.place • Place the order",
        "mail.send • Tell the customer",
    ):
        assert line in shown
    assert '"order": "order-pear"' in shown
    assert "↩" not in shown
    await page.screenshot(path=pictures / "completed.png", full_page=True)


@pytest.mark.slow
async def test_compensations_are_marked_as_such(
    page: Page, temporal: TemporalServer, shop: Shop, pictures: Path
) -> None:
    await open_run(page, temporal, shop.ids["COMPENSATED"])
    shown = await text(page)
    assert "payments.refund • ↩ undo Charge the card" in shown
    assert "inventory.release • ↩ undo Reserve the goods" in shown
    assert "undone: rejected at place: the card was declined" in shown
    assert "stackTrace" not in shown, "the failure is one sentence"
    await page.screenshot(path=pictures / "compensated.png", full_page=True)


@pytest.mark.slow
async def test_the_details_show_the_plan_and_the_progress(
    page: Page, temporal: TemporalServer, shop: Shop, pictures: Path
) -> None:
    plan, now = await open_details(page, temporal, shop.ids["COMPENSATED"])
    await page.screenshot(path=pictures / "compensated-details.png", full_page=True)
    assert "Take one basket from the shelf to a paid order." in plan
    assert "the point of no return" in plan
    assert "Terminate skips every compensation" in plan
    assert "checkout is COMPENSATED (rejected at place: the card was declined)" in now
    rows = [" ".join(row.split()) for row in now.splitlines()]
    table = " ".join(rows)
    assert "↩ COMPENSATED reserve Reserve the goods inventory.reserve inventory.release DONE" in table
    assert "✖ REJECTED place Place the order" in table
    assert "&nbsp;" not in plan + now


async def test_a_parked_saga_shows_what_to_do(page: Page, temporal: TemporalServer, shop: Shop, pictures: Path) -> None:
    plan, now = await open_details(page, temporal, shop.ids["PARKED"])
    await page.screenshot(path=pictures / "parked-details.png", full_page=True)
    assert "Take one basket from the shelf to a paid order." in plan
    assert "Terminate skips every compensation" in plan
    assert "is PARKED" in now
    assert "announce waits for an operator: Rejected: the mailbox does not exist" in now
    for decision in ("retry", "done", "skip"):
        assert f"saga resolve {shop.ids['PARKED']} announce {decision} --reason" in now
    assert "Cancel is refused" in now


@pytest.mark.slow
async def test_a_waiting_saga_names_its_timers(page: Page, temporal: TemporalServer, shop: Shop) -> None:
    await open_run(page, temporal, shop.ids["RUNNING"])
    shown = await text(page)
    assert "wait for approved" in shown
    assert "deadline" in shown
    _, now = await open_details(page, temporal, shop.ids["RUNNING"])
    assert "▶ RUNNING approval Wait for the approval" in " ".join(now.split())


@pytest.mark.slow
async def test_a_residue_is_named(page: Page, temporal: TemporalServer, shop: Shop, pictures: Path) -> None:
    _, now = await open_details(page, temporal, shop.ids["RESIDUE"])
    await page.screenshot(path=pictures / "residue-details.png", full_page=True)
    assert "is RESIDUE" in now
    assert "reserve: its effect stays" in now


async def test_markup_from_data_is_inert(page: Page, temporal: TemporalServer, shop: Shop, pictures: Path) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(link(temporal, f"/{shop.ids['HOSTILE']}"))
    await page.get_by_text("inventory.reserve • Reserve").first.wait_for()
    await page.screenshot(path=pictures / "hostile.png", full_page=True)
    assert await page.locator("a[href*=evil], a[href^=javascript], img[src*=evil]").count() == 0
    await page.locator("a", has_text="User Metadata").click()
    frames = page.locator("iframe")
    await frames.nth(2).wait_for()
    for number in range(await frames.count()):
        details = frames.nth(number).content_frame
        await details.locator("body").wait_for()
        for active in ("a", "img", "script[src]", "h1", "strong strong", "del"):
            elements = details.locator("main, article, body").first.locator(active)
            assert await elements.count() == 0, (number, active, await details.locator("body").inner_html())
    now = await frames.nth(2).content_frame.locator("body").inner_text()
    await page.screenshot(path=pictures / "hostile-details.png", full_page=True)
    assert "<img src=x" in now
    assert "**bold** [link](javascript:alert(1)) ![i](http://evil.example/p) http://evil.example" in now
    assert await frames.nth(2).content_frame.locator("tbody tr").count() == 2
    assert "pwned" not in await page.title()
    assert not [url for url in asked if "evil.example" in url.partition("?")[0]]


@pytest.mark.slow
@pytest.mark.parametrize("state", ["PARKED", "RESIDUE", "COMPLETED", "COMPENSATED", "RUNNING"])
async def test_the_ui_checks_find_nothing(page: Page, temporal: TemporalServer, shop: Shop, state: str) -> None:
    await open_run(page, temporal, shop.ids[state])


@pytest.mark.parametrize("state", ["PARKED", "RESIDUE", "COMPLETED", "COMPENSATED", "RUNNING"])
async def test_the_history_lint_finds_nothing(shop: Shop, state: str) -> None:
    history = await shop.client.temporal.get_workflow_handle(shop.ids[state]).fetch_history()
    assert common_errors(history) == []


@workflow.defn(name="careless", sandboxed=False)
class Careless:
    """A run with settings that the UI finds fault with."""

    @workflow.run
    async def run(self, value: str, other: str) -> None:
        await workflow.execute_activity(
            "nobody",
            start_to_close_timeout=timedelta(seconds=1),
            schedule_to_close_timeout=timedelta(seconds=1),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )


async def test_the_history_lint_detects_a_bad_run(temporal: TemporalServer) -> None:
    client = await Temporal.connect(temporal.address)
    queue, limit = f"careless-{uuid.uuid4()}", timedelta(minutes=1)
    async with Worker(client, task_queue=queue, workflows=[Careless]):
        handle = await client.start_workflow(
            "careless", args=["one", "two"], id=queue, task_queue=queue, execution_timeout=limit
        )
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    assert set(common_errors(await handle.fetch_history())) >= {
        "execution timeout set",
        "more than one input",
        "nobody: a single attempt",
        "nobody: start-to-close of a second or less",
        "nobody: schedule-to-close below two attempts",
    }


@pytest.mark.slow
async def test_a_closed_run_is_readable_without_a_worker(
    page: Page, temporal: TemporalServer, chromium: str, tmp_path: Path, pictures: Path
) -> None:
    async with open_shop(tmp_path, temporal.address) as shop:
        saga_id = shop.ids["COMPENSATED"]
        await finished(shop.client, saga_id)
    await open_run(page, temporal, saga_id)
    assert "inventory.release • ↩ undo Reserve the goods" in await text(page)
    await page.locator("a", has_text="Memo").click()
    await page.get_by_text("the card was declined").first.wait_for()
    await expect(page.locator("body")).to_contain_text('"state": "COMPENSATED"', timeout=TIMEOUT)
    await page.locator("a", has_text="User Metadata").click()
    plan = page.locator("iframe").nth(1).content_frame.locator("table")
    await plan.wait_for()
    assert "payments.refund" in await plan.inner_text()
    await page.screenshot(path=pictures / "without-worker.png", full_page=True)
