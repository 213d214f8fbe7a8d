"""`saga preview` in a real browser, while the definition and the actions of a project are edited."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect

TIMEOUT = 60_000
"""Milliseconds until a page has to show what it should."""

ACTIONS = """
from sagas import action

@action("book")
async def book(): ...

@action("unbook")
async def unbook(): ...
"""
TRIP = """saga: trip
description: "A <b>hostile</b> </td> description"
steps:
  - {id: hotel, uses: book, compensate: unbook, idempotent: true}
  - {id: flight, name: "<img src=x>", uses: book, compensate: unbook, idempotent: true}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "saga.toml").write_text('actions = ["./travel.py"]\n')
    (tmp_path / "travel.py").write_text(ACTIONS)
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions" / "trip.saga.yaml").write_text(TRIP)
    return tmp_path


@pytest.fixture
def address(project: Path) -> Iterator[str]:
    """The address that `saga preview trip` prints, while it runs."""
    command = [sys.executable, "-m", "saga_cli", "preview", "trip", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield running.stdout.readline().split()[0]
        finally:
            running.terminate()
            assert running.wait(30) == 0


async def test_the_page_follows_the_file_and_the_actions(page: Page, address: str, project: Path) -> None:
    page.set_default_timeout(TIMEOUT)
    definition = project / "definitions" / "trip.saga.yaml"
    await page.goto(address)
    await expect(page.get_by_role("heading", name="trip", exact=True)).to_be_visible()
    assert await page.locator("img, b").count() == 0
    await page.get_by_role("link", name="flight").first.click()
    failures = page.locator("#step-flight details", has_text="rejected: the saga ends COMPENSATED")
    await failures.locator("summary").click()
    await expect(failures.get_by_role("listitem")).to_have_text("↩ hotel: unbook")

    definition.write_text(TRIP.replace("{id: hotel, uses", "{id: hotel, usse"))
    await expect(page.get_by_text("did you mean `uses`?").first).to_be_visible()
    await expect(page.locator("#line-4 small.fail")).to_be_visible()
    await expect(page.locator("svg")).to_have_count(0)

    (project / "travel.py").write_text("import nothing_of_the_kind\n")
    definition.write_text(TRIP)
    await expect(page.get_by_text("nothing_of_the_kind").first).to_be_visible()
    (project / "travel.py").write_text(ACTIONS)
    await expect(page.get_by_text("no problems found")).to_be_visible()
    await expect(page.locator("svg")).to_be_visible()


async def test_only_this_machine_sees_definitions_and_nothing_else(address: str, project: Path) -> None:
    server = address.partition("/?")[0]
    async with httpx.AsyncClient(base_url=server, timeout=60) as client:
        assert (await client.get("/?all")).status_code == 200
        for path in ("saga.toml", "../definitions/trip.saga.yaml", "/etc/hostname", "definitions/none.saga.yaml"):
            assert (await client.get("/", params={"file": path})).status_code == 404
        assert (await client.get("/", headers={"Host": "elsewhere.example"})).status_code == 400
        assert (await client.post("/")).status_code == 405


def test_others_may_not_be_listened_to(project: Path) -> None:
    command = [sys.executable, "-m", "saga_cli", "preview", "--listen", "0.0.0.0:0"]
    refused = subprocess.run(command, cwd=project, capture_output=True, check=False)
    assert refused.returncode == 2
    assert b"asks for no token" in refused.stderr


async def test_a_module_that_ends_its_process_costs_one_page(address: str, project: Path) -> None:
    (project / "travel.py").write_text("import os\nos._exit(7)\n")
    async with httpx.AsyncClient(base_url=address.partition("/?")[0], timeout=60) as client:
        assert "The project cannot be read" in (await client.get("/", params={"all": ""})).text
        (project / "travel.py").write_text(ACTIONS)
        assert "no problems found" in (await client.get("/", params={"all": ""})).text


async def test_a_project_without_a_definition_is_told_to_make_one(address: str, project: Path) -> None:
    for file in (project / "definitions").iterdir():
        file.unlink()
    async with httpx.AsyncClient(base_url=address.partition("/?")[0], timeout=60) as client:
        page = (await client.get("/", params={"all": ""})).text
        assert "there is no definition in definitions" in page
        assert "cannot be read" not in page
        missing = await client.get("/", params={"file": "definitions/<b>.saga.yaml"})
        assert missing.status_code == 404
        assert "the project has no definition file definitions/&lt;b&gt;.saga.yaml" in missing.text


@pytest.mark.slow
async def test_a_definition_outside_of_the_project_is_checked_as_well(address: str, project: Path) -> None:
    elsewhere = project.parent / f"{project.name}-shared"
    elsewhere.mkdir()
    (elsewhere / "other.saga.yaml").write_text("saga: other\nsteps:\n  - {id: a, uses: nothing}\n")
    (project / "saga.toml").write_text(f'actions = ["./travel.py"]\ndefinitions = ["definitions", "{elsewhere}"]\n')
    async with httpx.AsyncClient(base_url=address.partition("/?")[0], timeout=60) as client:
        assert "there is no action" not in (await client.get("/", params={"all": ""})).text
        page = await client.get("/", params={"file": str(elsewhere / "other.saga.yaml")})
        assert (page.status_code, "there is no action `nothing`" in page.text) == (200, True)
        (elsewhere / "other.saga.yaml").unlink()
        assert (await client.get("/", params={"file": str(elsewhere / "other.saga.yaml")})).status_code == 404
        assert (await client.get("/version", params={"file": str(elsewhere / "other.saga.yaml")})).text == "0"


@pytest.mark.slow
async def test_a_new_definition_is_listed(address: str, project: Path) -> None:
    async with httpx.AsyncClient(base_url=address.partition("/?")[0], timeout=60) as client:
        assert "second.saga.yaml" not in (await client.get("/", params={"all": ""})).text
        shown = (await client.get("/version", params={"all": ""})).text
        (project / "definitions" / "second.saga.yaml").write_text(TRIP.replace("saga: trip", "saga: second"))
        assert (await client.get("/version", params={"all": ""})).text != shown
        assert "second.saga.yaml" in (await client.get("/", params={"all": ""})).text
