"""The console of `saga serve` in a real browser: by keyboard, without scripts, in light and dark, on a phone."""

from __future__ import annotations

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
        served = frozenset(project.definitions)
        operations = Operations(shop.client.locator, project, ProjectSagas(served))
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


@pytest.mark.parametrize("look", LOOKS)
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


async def test_a_saga_is_found_by_keyboard(browser: Browser, shop: Shop, console_address: str) -> None:
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await sign_in(page, console_address + saga_path(shop.ids["RESIDUE"]), shop.ids["RESIDUE"])
    assert await page.get_by_role("img").get_attribute("alt")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    assert page.url.endswith("#main"), "the first stop skips the navigation"

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
