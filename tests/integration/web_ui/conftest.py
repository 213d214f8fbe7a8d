"""A real Chromium, driven by Playwright, and a shop with one saga in every state."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers.processes import TemporalServer
from tests.integration.web_ui.shop import Shop, open_shop

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = ("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
NO_CALLS_HOME = ("--disable-background-networking", "--disable-component-update")
TIMEOUT = 60_000
"""Milliseconds until an element has to be there: the machine may be busy with other tests."""


@pytest.fixture(scope="package")
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    """A server of our own: the first page of the list is full where other tests have left a hundred runs open."""
    with TemporalServer(tmp_path_factory.mktemp("temporal-ui")) as server:
        yield server


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the browser; without one, the tests of the Web UI are skipped."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("Web UI: the package playwright is not installed (extra dev)")
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("Web UI: no Chromium on this machine (Debian: apt-get install chromium)")
    return program


@pytest.fixture(scope="package")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    """One browser for all tests. As root Chromium has to do without its sandbox."""
    from playwright.async_api import async_playwright, expect

    expect.set_options(timeout=TIMEOUT)
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=chromium, args=[*QUIET, *NO_CALLS_HOME, *root])
        yield started
        await started.close()


@pytest.fixture
async def page(browser: Browser) -> AsyncIterator[Page]:
    """An empty page, large enough for the tables."""
    opened = await browser.new_page(viewport={"width": 1440, "height": 1000})
    opened.set_default_timeout(TIMEOUT)
    yield opened
    await opened.close()


@pytest.fixture(scope="package")
async def shop(
    chromium: str, temporal: TemporalServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Shop]:
    """Sagas that completed, were undone, are parked, wait, and left a residue; their worker runs."""
    async with open_shop(tmp_path_factory.mktemp("shop"), temporal.address) as opened:
        yield opened


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for screenshots."""
    return tmp_path_factory.mktemp("screenshots")
