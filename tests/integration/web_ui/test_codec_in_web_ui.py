"""The Temporal Web UI decodes what `[codec]` has encrypted, through the codec endpoint of `saga serve`."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import shutil
import ssl
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect

from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import HOST
from tests.helpers.free_ports import free_port
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.processes import CommandProcess, TemporalServer

TOKEN = "decodes-for-the-web-ui"
SETTINGS = """
definitions = ["."]
[temporal]
address = "{address}"
task_queue = "{queue}"
web_ui = "{web_ui}"
[codec]
key = {{file = "codec.key"}}
[serve.tokens.web-ui]
secret = {{env = "UI_TOKEN"}}
scopes = ["decode"]
"""
NOTE = """
saga: note
input: {type: object, properties: {card: {type: string, x-sensitive: true}}}
steps:
  - {id: keep, uses: pass, with: {result: "${{ input.card }}"}}
output: {card: "${{ steps.keep.result }}"}
"""
CARD = "kanari-4111"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not installed")
async def test_the_web_ui_decodes_with_a_token_in_the_address_and_with_that_of_its_user(
    browser: Browser, temporal: TemporalServer, tmp_path: Path
) -> None:
    settings = SETTINGS.format(address=temporal.address, queue=f"codec-{uuid.uuid4()}", web_ui=temporal.web_ui)
    (tmp_path / "saga.toml").write_text(settings)
    (tmp_path / "note.saga.yaml").write_text(NOTE)
    (tmp_path / "codec.key").write_text(secrets.token_hex(32))
    project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    saga_id, port = f"note-{uuid.uuid4().hex[:8]}", free_port()
    async with running_worker(project) as client:
        await client.start("note", {"card": CARD}, id=saga_id)
        assert (await finished(client, saga_id))["state"] == "COMPLETED"
    run = f"{temporal.web_ui}/namespaces/default/workflows/{saga_id}"
    with CommandProcess("serve", tmp_path, "serve", "--listen", f"{HOST}:{port}", env={"UI_TOKEN": TOKEN}):
        async with opened(browser, run) as page:
            assert await configure(page, f"http://{HOST}:{port}/codec") == 401
            await page.get_by_text("Result", exact=True).first.wait_for()
            assert CARD not in await page.locator("body").inner_text()
            assert await configure(page, f"http://{HOST}:{port}/codec/{TOKEN}") == 200
            await expect(page.locator("body")).to_contain_text(CARD)

        async with opened(browser, run) as page, tls_proxy(tmp_path, port) as encrypted_port:
            await sign_in(page)
            assert await configure(page, f"https://{HOST}:{encrypted_port}/codec", passes_token=True) == 200
            await expect(page.locator("body")).to_contain_text(CARD)


@asynccontextmanager
async def opened(browser: Browser, run: str) -> AsyncIterator[Page]:
    """The page of a run that has ended, in a browser without settings, which trusts any certificate."""
    context = await browser.new_context(viewport={"width": 1440, "height": 1000}, ignore_https_errors=True)
    page = await context.new_page()
    await page.goto(run)
    await page.get_by_text("Result", exact=True).first.wait_for()
    yield page
    await context.close()


async def configure(page: Page, endpoint: str, *, passes_token: bool = False) -> int:
    """Set the codec server as a user does; returns the status of its first answer."""
    await page.get_by_test_id(re.compile("data-encoder-status")).first.click()
    await page.locator("#use-local-endpoint-radio").check(force=True)
    await page.get_by_label("Codec Server browser endpoint").fill(endpoint)
    if passes_token:
        await page.get_by_text("Pass the user access token").click()
    await page.get_by_role("button", name="Apply").click()
    await page.get_by_role("button", name="Apply").wait_for(state="hidden")
    async with page.expect_response(
        lambda answer: "/decode" in answer.url and answer.request.method == "POST"
    ) as asked:
        await page.reload()
    return (await asked.value).status


async def sign_in(page: Page) -> None:
    """Sign in as with single sign-on, which the development server lacks: its settings, and the user the UI keeps."""

    async def with_sign_on(route: Route) -> None:
        answer = await route.fetch()
        await route.fulfill(response=answer, json={**await answer.json(), "Auth": {"Enabled": True, "Options": []}})

    user = json.dumps({"accessToken": TOKEN, "name": "ada", "email": "ada@example.com"})
    await page.context.add_init_script(f"localStorage.setItem('AuthUser', {json.dumps(user)})")
    await page.route(re.compile("/api/v1/settings"), with_sign_on)
    await page.reload()


@asynccontextmanager
async def tls_proxy(folder: Path, port: int) -> AsyncIterator[int]:
    """A proxy with a certificate of its own, which the UI demands before it passes on the token of its user."""
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=codec", "-days", "2")
    files = ("-keyout", "tls.key", "-out", "tls.pem")
    openssl = await asyncio.create_subprocess_exec("openssl", "req", "-x509", *new, *files, cwd=folder)
    assert await openssl.wait() == 0
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "tls.pem", folder / "tls.key")

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection(HOST, port)
        await asyncio.gather(copy(reader, behind[1]), copy(behind[0], writer), return_exceptions=True)

    async with await asyncio.start_server(serve, HOST, 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]
