"""The console of `saga serve` in a real browser: by keyboard, without scripts, in light and dark, on a phone."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.async_api import Browser, Page, ViewportSize

from saga_workers.runtime.http_server import HttpServer
from saga_workers.serve.api import SagaApi
from saga_workers.serve.api_tokens import Callers
from saga_workers.serve.console.templates import saga_path
from saga_workers.serve.operations import Operations
from saga_workers.serve.project_sagas import ProjectSagas
from sagas.project import Project
from sagas.settings.secrets import Secret
from sagas.settings.serve import ServeSettings, ServeToken
from tests.helpers.database_servers import HOST
from tests.helpers.local_worker import finished
from tests.helpers.sampling import mostly_slow
from tests.helpers.waiting import until
from tests.integration.web_ui.shop import Shop

TOKEN = "a-token-that-nobody-guesses"
WIDE, PHONE = ViewportSize(width=1200, height=900), ViewportSize(width=390, height=844)
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": WIDE, "color_scheme": "light", "java_script_enabled": True},
    "dark": {"viewport": WIDE, "color_scheme": "dark", "java_script_enabled": False},
    "phone": {"viewport": PHONE, "color_scheme": "light", "java_script_enabled": True},
}


@pytest.fixture(scope="module")
async def console_address(shop: Shop) -> AsyncIterator[str]:
    """The address of a console for the shop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONSOLE_TOKEN", TOKEN)
        ada = ServeToken(secret=Secret("env", "CONSOLE_TOKEN"), scopes=("read", "operate"))
        serve = ServeSettings(tokens={"ada": ada}, console=True)
        settings = shop.client.project.settings.model_copy(update={"serve": serve})
        project = Project(settings, shop.client.project.actions)
        served = ProjectSagas(project, shop.client.locator)
        operations = Operations(shop.client.locator, project, served)
        api = SagaApi(
            shop.client.locator,
            Callers(settings),
            sagas=served,
            settings=serve,
            operations=operations,
            project=project,
        )
        async with HttpServer(f"{HOST}:0", api.app, option="--listen", description="the API") as server:
            yield f"http://{HOST}:{server.port}"


async def sign_in(page: Page, address: str, heading: str) -> None:
    """Sign in with the keyboard alone: the field has the focus."""
    await page.goto(address)
    await page.locator("#token:focus").wait_for()
    await page.keyboard.type(TOKEN)
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", name=heading).wait_for()


@pytest.mark.parametrize("look", mostly_slow(LOOKS, {"light", "dark"}))  # the phone has the test below
async def test_every_page_is_readable(
    browser: Browser, shop: Shop, console_address: str, pictures: Path, look: str
) -> None:
    context = await browser.new_context(**LOOKS[look])
    page = await context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("response", lambda response: complaints.append(response.url) if response.status >= 400 else None)
    await sign_in(page, f"{console_address}/console", "Board")
    shown = {"board": "/console", "sagas": "/console/sagas"}
    shown |= {state: saga_path(shop.ids[state]) for state in ("PARKED", "HOSTILE")}
    if look == "light":
        shown |= {"inbox": "/console/inbox", "databases": saga_path(shop.ids["COMPLETED"], "/databases")}
    decision = urlencode({"step": "announce", "decision": "retry"})
    shown["decision"] = saga_path(shop.ids["PARKED"], f"/resolve?{decision}")
    for name, path in shown.items():
        await page.goto(console_address + path)
        await page.screenshot(path=pictures / f"console-{name}-{look}.png")
        assert await page.get_by_role("heading", level=1).count() == 1
        assert await page.get_by_role("main").count() == 1
        assert await page.title() != "pwned"
        if LOOKS[look]["java_script_enabled"]:
            wide, drawn = await page.evaluate(
                "[document.documentElement.scrollWidth - document.documentElement.clientWidth,"
                " [...document.images].every(image => image.complete && image.naturalWidth > 0)]"
            )
            assert (wide, drawn) == (0, True), name
            margin = await page.evaluate("getComputedStyle(document.querySelector('.brand')).margin")
            assert margin == "0px", "the style sheet is read"
    assert complaints == []
    await context.close()


@pytest.mark.parametrize("scheme", mostly_slow(["light", "dark"], {"dark"}))
async def test_a_phone_shows_all_of_a_page_with_contrast(
    browser: Browser, shop: Shop, console_address: str, scheme: Any, pictures: Path
) -> None:
    context = await browser.new_context(viewport=PHONE, color_scheme=scheme)
    page = await context.new_page()
    await sign_in(page, f"{console_address}/console", "Board")
    decision = urlencode({"step": "announce", "decision": "retry"})
    paths = ["/console", "/console/sagas", "/console/inbox", "/console/batches"]
    paths += [saga_path(shop.ids[state]) for state in shop.ids]
    paths += [saga_path(shop.ids["PARKED"], rest) for rest in ("/databases", f"/resolve?{decision}")]
    look = Path(__file__).with_name("low_contrast.js").read_text()
    for path in paths:
        await page.goto(console_address + path)
        assert await page.evaluate(look) == [], path
    await page.goto(console_address + saga_path(shop.ids["PARKED"]))
    await page.screenshot(path=pictures / f"console-phone-{scheme}.png", full_page=True)
    await context.close()


async def test_a_saga_is_found_by_keyboard(browser: Browser, shop: Shop, console_address: str) -> None:
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await sign_in(page, console_address + saga_path(shop.ids["RESIDUE"]), shop.ids["RESIDUE"])
    assert await page.get_by_role("img").get_attribute("alt")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**#main")  # the first stop skips the navigation

    await page.get_by_role("link", name="Sagas").press("Enter")
    await page.get_by_label("Id, or how it begins").fill("checkout-by-mail")
    await page.get_by_label("State").select_option("PARKED")
    await page.keyboard.press("Tab")
    await page.get_by_role("button", name="Search").press("Enter")
    await page.get_by_role("link", name=shop.ids["PARKED"]).press("Enter")
    await page.get_by_role("heading", name="Tell the customer waits for a decision").wait_for()
    await page.get_by_role("button", name="Sign out").press("Enter")
    await page.get_by_label("Your token").wait_for()
    await page.go_back()
    assert shop.ids["PARKED"] not in await page.locator("h1").inner_text(), "nothing is kept of a page"
    await context.close()


@contextlib.asynccontextmanager
async def operator(browser: Browser, address: str, heading: str) -> AsyncIterator[Page]:
    """A browser without scripts that has signed in."""
    context = await browser.new_context(java_script_enabled=False, viewport=WIDE)
    page = await context.new_page()
    await sign_in(page, address, heading)
    yield page
    await context.close()


async def waiting(shop: Shop) -> str:
    """A saga that waits for its signal."""
    saga_id = f"checkout-waits-{uuid.uuid4().hex[:6]}"
    await shop.client.start("checkout", {"sku": "pear", "how": "waits"}, id=saga_id)

    async def has_reserved() -> bool:
        steps = {row["id"]: row["state"] for row in (await shop.client.show(saga_id))["steps"]}
        return steps.get("approval") == "RUNNING"

    await until(has_reserved)
    return saga_id


async def test_a_signal_is_sent_by_keyboard(browser: Browser, shop: Shop, console_address: str) -> None:
    saga_id = await waiting(shop)
    async with operator(browser, console_address + saga_path(saga_id), saga_id) as page:
        await page.get_by_role("link", name="Send the signal approved").press("Enter")
        await page.get_by_role("heading", name="Send the signal: approved").wait_for()
        assert await page.locator("li code").all_inner_texts() == ["by"]
        assert "Wait for the approval ends with the data" in await page.locator("main").inner_text()
        for data, reject, problem in (
            ('{"by":', "", "under “The data” is not JSON"),
            ('{"by": "eve"}', "no budget", "Send either data or reject"),
        ):
            await page.get_by_label("The data, as JSON").fill(data)
            if reject:
                await page.get_by_text("Reject the step instead").press("Enter")
                await page.get_by_label("Why").fill(reject)
            await page.get_by_role("button", name="Send the signal").press("Enter")
            assert problem in await page.get_by_role("alert").inner_text()
            assert await page.get_by_label("The data, as JSON").input_value() == data
        await page.get_by_label("Why").fill("")
        await page.get_by_role("button", name="Send the signal").press("Enter")
        assert "The signal was sent" in await page.get_by_role("status").inner_text()
        ended = await finished(shop.client, saga_id)
        steps = {row["id"]: row["result"] for row in ended["steps"]}
        assert (steps["approval"]["data"], steps["approver"]) == ({"by": "eve"}, "eve")
        assert "ada" in steps["approval"]["by"]

        await page.get_by_role("link", name="See the saga").press("Enter")
        await page.get_by_role("heading", name=saga_id).wait_for()
        assert await page.get_by_role("link", name="Undo all of it").count() == 0, "its pivot is done"
        assert "ada has sent the signal approved: sent" in await page.locator("main").inner_text()


async def test_a_step_that_waits_is_rejected(browser: Browser, shop: Shop, console_address: str) -> None:
    saga_id = await waiting(shop)
    async with operator(browser, console_address + saga_path(saga_id), saga_id) as page:
        await page.get_by_role("link", name="Send the signal approved").press("Enter")
        await page.get_by_text("Reject the step instead").press("Enter")
        await page.get_by_label("Why").fill("no budget")
        await page.get_by_role("button", name="Send the signal").press("Enter")
        assert "told to reject the step" in await page.get_by_role("status").inner_text()
        ended = await finished(shop.client, saga_id)
        assert (ended["state"], ended["reason"]["message"]) == ("COMPENSATED", "no budget")


async def test_a_completed_saga_is_undone(browser: Browser, shop: Shop, console_address: str) -> None:
    saga_id = f"booking-{uuid.uuid4().hex[:6]}"
    await shop.client.start("booking", {"sku": "pear"}, id=saga_id)
    await finished(shop.client, saga_id)
    async with operator(browser, console_address + saga_path(saga_id), saga_id) as page:
        await page.get_by_role("link", name="Undo all of it").press("Enter")
        assert "Reserve the goods will be undone" in await page.locator("main").inner_text()
        await page.get_by_role("button", name="Undo all of it").press("Enter")
        assert await page.get_by_label("Why").input_value() == "", "the browser asks for the reason first"
        await page.get_by_label("Why").fill("the customer called")
        await page.get_by_role("button", name="Undo all of it").press("Enter")
        assert "The saga is being undone" in await page.get_by_role("status").inner_text()

        async def is_undone() -> bool:
            return (await shop.client.show(saga_id))["state"] == "COMPENSATED"

        await until(is_undone)
        await page.get_by_role("link", name="See the saga").press("Enter")
        words = "ada decided: undo all of it, because: the customer called"
        assert (await page.locator("main").inner_text()).count("the customer called") == 2, (
            "in the story, and as the reason"
        )
        assert words in await page.locator("main").inner_text()


async def test_many_parked_sagas_are_decided_at_once(
    browser: Browser, shop: Shop, console_address: str, pictures: Path
) -> None:
    prefix = f"by-mail-{uuid.uuid4().hex[:6]}"
    ids = [f"{prefix}-{number}" for number in range(3)]
    for saga_id in ids:
        await shop.client.start("checkout-by-mail", {"sku": "pear", "how": "parked"}, id=saga_id)
    for saga_id in ids:
        await finished(shop.client, saga_id)
    async with operator(browser, f"{console_address}/console", "Board") as page:

        async def are_listed() -> bool:  # the visibility store lags
            await page.goto(f"{console_address}/console/sagas?q={prefix}&state=PARKED")
            return await page.locator("tbody tr").count() == len(ids)

        await until(are_listed)
        await page.get_by_role("link", name="What of these sagas waits for a decision").press("Enter")
        await page.get_by_role("link", name="Leave it out, 3 ×").press("Enter")
        await page.get_by_role("heading", name="Leave it out: checkout-by-mail, announce").wait_for()
        await page.screenshot(path=pictures / "console-many.png")
        assert "3 steps wait for this cause" in await page.locator("main").inner_text()
        picks = page.get_by_role("checkbox")
        assert [await picks.nth(number).is_checked() for number in range(3)] == [True] * 3
        await page.get_by_label(ids[1]).press("Space")
        await page.get_by_label("Why, for all of them").fill("the mailbox is gone")
        await page.get_by_role("button", name="Show what follows").press("Enter")
        assert not await page.get_by_label(ids[1]).is_checked(), "the selection is kept"
        assert {(await shop.client.show(each))["state"] for each in ids} == {"PARKED"}, "nothing was decided yet"
        decision = {"step": "announce", "decision": "skip", "reason": "mine", "who": "bob"}
        await shop.client.resolve(ids[2], decision)
        await page.get_by_role("button", name="Leave it out, all").press("Enter")
        assert "1 of 2 sagas have accepted it" in await page.get_by_role("alert").inner_text()
        rows = {saga_id: await page.locator("tr", has_text=saga_id).inner_text() for saga_id in (ids[0], ids[2])}
        assert "accepted" in rows[ids[0]]
        assert "Nothing of it waits for this decision any more" in rows[ids[2]]
        await page.reload()
        assert "1 of 2 sagas" in await page.get_by_role("alert").inner_text(), "nothing was sent again"
        assert (await finished(shop.client, ids[0]))["state"] == "RESIDUE"
        assert (await shop.client.show(ids[1]))["state"] == "PARKED", "it was not selected"
        story = await shop.client.show(ids[0])
        assert story["steps"][-1]["id"] == "announce"


async def test_a_decision_about_many_comes_from_its_own_page(
    browser: Browser, shop: Shop, console_address: str
) -> None:
    path = f"{console_address}/console/inbox/decide"
    async with operator(browser, f"{console_address}/console", "Board") as page:
        fields = {"decision": "skip", "reason": "x", "go": "send", "pick.0": "a\tb\tdo\tc"}
        for form, origin, status in (({}, console_address, 403), (fields, "http://evil.example", 403)):
            answer = await page.request.post(path, form={**form}, headers={"Origin": origin})
            assert answer.status == status
        token = await page.locator('input[name="form"]').first.get_attribute("value")
        for wrong, status, words in (
            ({"pick.0": "a"}, 400, "cannot be read"),
            ({f"pick.{number}": "a\tb\tdo\tc" for number in range(51)}, 400, "50 steps at most, not 51"),
            ({"cause": "0"}, 200, "0 of 1 saga"),
            ({"pick.0": "a\0b\tb\tdo\tc"}, 200, "0 of 1 saga"),
        ):
            sent: dict[str, str | float | bool] = {**fields, "form": token or "", **wrong}
            answer = await page.request.post(path, form=sent, headers={"Origin": console_address})
            assert (answer.status, words in await answer.text()) == (status, True), await answer.text()
