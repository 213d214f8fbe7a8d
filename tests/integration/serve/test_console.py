"""The console of `saga serve`: sign-in, pages about every kind of saga, hostile values."""

from __future__ import annotations

import html
import re
import uuid
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import insert

from saga_activities.ledger.rows import make_record
from saga_activities.ledger.tables import circuit_breaker_table
from saga_cli.commands.run.batch_run import RunOptions, run_batch
from saga_workers.serve.console import saga_pages, search
from saga_workers.serve.console.sessions import COOKIE
from saga_workers.serve.console.templates import decision_path, saga_path
from saga_workers.serve.limits import SESSION_SECONDS
from saga_workers.start.row_starts import StartRow
from sagas.errors import SagaError
from sagas.protocol.payloads import BATCH_PREFIX, BATCH_WORKFLOW
from sagas.protocol.saga_view import SagaView
from tests.helpers.waiting import until
from tests.integration.engine.environment import begin
from tests.integration.serve.page_markup import unwanted_markup
from tests.integration.serve.served_console import (
    CARD,
    SCRIPT,
    TOKENS,
    ServedConsole,
    form_token,
    serving,
)

PAGES = ("", "/sagas", "/sagas?q=a", "/sagas/a", "/sagas/a/graph.svg", "/sagas/a/databases", "/inbox", "/batches",
         "/batches/a", "/nothing", "/sign-out/")  # fmt: skip


async def test_a_session_begins_with_a_token_and_ends(console: ServedConsole, monkeypatch: pytest.MonkeyPatch) -> None:
    async with console.browser() as browser:
        for page in PAGES:
            answer = await browser.get(f"/console{page}")
            assert answer.status_code == 303, page
            assert answer.headers["location"] == f"/console/sign-in?next={quote(f'/console{page}', safe='')}"
            assert answer.content == b""
        form = await browser.get("/console/sign-in", params={"next": "/console/sagas/a%2Fb?x=1"})
        assert 'value="/console/sagas/a%2Fb?x=1"' in form.text
        answer = await browser.post(
            "/console/sign-in", data={"token": f" {TOKENS['STAFF']} ", "next": "/console/sagas/a%2Fb"}
        )
        assert (answer.status_code, answer.headers["location"]) == (303, "/console/sagas/a%2Fb")
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"{COOKIE}=")
        attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
        assert {"httponly", "path=/console", "samesite=strict", f"max-age={SESSION_SECONDS:.0f}"} <= attributes
        assert "secure" not in attributes, "the server and the browser speak plain HTTP"
        assert TOKENS["STAFF"] not in cookie

        board = await browser.get("/console")
        assert board.status_code == 200
        assert TOKENS["STAFF"] not in board.text
        for fields in ({"form": ""}, {"form": "guessed"}, {"other": "1"}):
            assert (await browser.post("/console/sign-out", data=fields)).status_code == 403
        monkeypatch.setenv("STAFF", "another-token-of-24-characters")
        assert (await browser.get("/console")).status_code == 303, "a changed token ends its sessions"

    monkeypatch.setenv("STAFF", TOKENS["STAFF"])
    async with console.signed_in() as browser:
        page = await browser.get("/console")
        stolen = dict(browser.cookies)
        answer = await browser.post("/console/sign-out", data={"form": form_token(page.text)})
        assert (answer.status_code, answer.headers["location"]) == (303, "/console/sign-in")
        browser.cookies.update(stolen)
        assert (await browser.get("/console")).status_code == 303, "the session is over, not only forgotten"


async def test_who_may_not_sign_in(console: ServedConsole) -> None:
    async with console.browser() as browser:

        async def sign_in(token: str, **headers: str) -> httpx.Response:
            return await browser.post("/console/sign-in", data={"token": token}, headers=headers)

        assert (await sign_in("wrong-token-of-24-characters")).status_code == 401
        refused = await sign_in(TOKENS["SHOP"])
        assert refused.status_code == 403
        assert "does not have the scope read" in refused.text
        own = console.url
        for origin in ("http://evil.example", "http://[", "null", "", f"{own}0", own.replace("http", "file")):
            foreign = await sign_in(TOKENS["STAFF"], Origin=origin)
            assert (foreign.status_code, "set-cookie" in foreign.headers) == (403, False), origin
        encrypted = await sign_in(TOKENS["STAFF"], Origin=console.url.replace("http", "https"))
        assert "Secure" in encrypted.headers["set-cookie"], "a proxy has TLS"
        for content in (b"token=%FF", b"&".join([b"a=1"] * 30)):
            answer = await browser.post("/console/sign-in", content=content, headers={"Content-Type": FORM})
            assert answer.status_code == 400
        large = await browser.post(
            "/console/sign-in", content=b"token=" + b"x" * 20_000, headers={"Content-Type": FORM}
        )
        assert large.status_code == 413
        assert (await browser.post("/console/sign-in", json={"token": TOKENS["STAFF"]})).status_code == 415


FORM = "application/x-www-form-urlencoded"


async def test_pages_about_sagas(console: ServedConsole) -> None:
    async with console.signed_in() as browser:

        async def text(page: str) -> str:
            answer = await browser.get(page)
            assert answer.status_code == 200, (page, answer.text)
            return answer.text

        async def counts() -> dict[str, int]:
            rows = re.findall(r'state=(\w+)">.*?<td class="number">([\d,]+)</td>', await text("/console"), re.DOTALL)
            return {state: int(count) for state, count in rows}

        async def counted() -> bool:  # the visibility store lags
            return {state: (await counts()).get(state) for state in console.ids} == dict.fromkeys(console.ids, 1)

        await until(counted)
        board = await text("/console")
        assert "The oldest decision" in board
        assert "Nothing is paused" in board
        await console.client.pause(console.ids["RUNNING"], reason="a stocktaking", who="kim")

        async def told_of_the_pause() -> bool:
            told = "1 saga is paused one by one" in await text("/console")
            return told and "paused by kim (unverified) since" in await text("/console/sagas")

        await until(told_of_the_pause)
        assert "Nothing is paused" not in await text("/console")
        assert "because: a stocktaking" in await text("/console/sagas")
        await console.client.resume(console.ids["RUNNING"])

        completed, parked = await text(console.page("COMPLETED")), await text(console.page("PARKED"))
        assert "Reserve the room: done" in completed
        assert "An undo of this saga would undo, in this order:" in completed
        assert "tell waits for a decision" in parked
        assert all(f"<dt>{decision}</dt>" in parked for decision in ("retry", "done", "skip"))
        running = await text(console.page("RUNNING"))
        assert re.search(r"now, this would be undone, in this order:</p>\s*<ol><li>Book the room</li></ol>", running)
        undone = await text(console.page("COMPENSATED"))
        assert "Reserve the room: undo done" in undone
        effects = await text(console.page("RUNNING", "/databases"))
        assert re.search(r">book</th>\s*<td[^>]*>shop</td>\s*<td[^>]*>✔ there</td>", effects)
        graph = await browser.get(console.page("RUNNING", "/graph.svg"))
        assert graph.headers["content-type"] == "image/svg+xml"
        assert "Book the room" in graph.text

        inbox = await text("/console/inbox")
        assert inbox.count('<article class="card"') == 1
        assert "order: tell" in inbox
        assert "There are no batches" in await text("/console/batches")

        async def shown(**asked: str) -> set[str]:
            page = await browser.get("/console/sagas", params=asked)
            assert page.status_code == 200, page.text
            return {state for state in console.ids if f'href="{console.page(state)}"' in page.text}

        assert await shown() == set(console.ids)
        assert await shown(state="PARKED") == {"PARKED"}
        assert await shown(saga="waits", since="1h") == {"RUNNING"}
        assert await shown(label="customer=bob") == {"COMPENSATED"}
        assert await shown(q=console.ids["COMPLETED"][:12]) == {"COMPLETED"}
        assert await shown(q=console.ids["PARKED"]) == {"PARKED"}, "an id that Temporal's filters cannot compare"
        assert await shown(q="nobody-has-it") == set()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search, "LIST_TIMEOUT", 0.0)
            assert "only the newest" in await text("/console/sagas"), "a slow list is shown as far as it was read"
        for wrong in ({"since": "1y"}, {"state": "LOST"}):
            assert (await browser.get("/console/sagas", params=wrong)).status_code == 400


async def test_a_saga_that_only_the_ledger_has_is_found_by_the_begin_of_its_id(console: ServedConsole) -> None:
    now = datetime.now(UTC)
    kept = SagaView(
        id=f"kept-{uuid.uuid4()}", saga="order", state="COMPENSATED", started_at=now.isoformat(),
        ended_at=now.isoformat(),
    )  # fmt: skip
    row = make_record(kept.to_json(), saga_id=kept.id, labels=None, updated_at=now, input_digest="0" * 64)
    assert row is not None
    await console.client.locator.ledger.write([row])
    async with console.signed_in() as browser:
        for begin, is_shown in (("kept-", True), ("keep-", False), ("kept-\0", False)):
            answer = await browser.get("/console/sagas", params={"q": begin})
            assert (answer.status_code, saga_path(kept.id) in answer.text) == (200, is_shown), begin


async def test_a_parked_saga_shows_its_input_and_its_call(console: ServedConsole) -> None:
    async with console.signed_in("CHIEF") as chief:
        for page, titles in (
            (console.page("PARKED"), ("Called with", "What the saga was started with")),
            (decision_path(console.ids["PARKED"], "tell", "retry"), ("It was called with",)),
        ):
            shown = (await chief.get(page)).text
            for title in titles:
                values = re.search(rf"<summary>{title}</summary><pre>(.*?)</pre>", shown, re.DOTALL)
                assert values, title
                assert SCRIPT in html.unescape(values[1]).replace('\\"', '"')
                assert '"card": "•••"' in html.unescape(values[1])
            assert CARD not in shown
        failed = html.unescape((await chief.get(console.page("COMPENSATED"))).text)
        assert "<summary>Called with</summary>" in failed, "of each step that has failed"
        begun = await begin(console.client, "waits", {"list": ["long"] * 10_000})
        shown = (await chief.get(saga_path(begun))).text
        assert '<details class="json"><summary>What the saga was started with' in shown, "it is folded"
        assert len(shown) < 60_000


async def test_hostile_values_are_only_text(console: ServedConsole) -> None:
    pages = ["/console", "/console/sagas", "/console/inbox", "/console/nothing", f"/console/sagas/{quote(SCRIPT)}"]
    pages += [console.page(state, rest) for state in ("PARKED", "COMPENSATED") for rest in ("", "/databases")]
    async with console.signed_in() as browser:
        for page in (*pages, f"/console/sagas?q={quote(SCRIPT)}&label={quote(SCRIPT)}", "/console/sagas?saga=%22%3E"):
            answer = await browser.get(page)
            assert not set("\u202e\u2066") & set(answer.text), page
            assert len(answer.text) < 60_000, page
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; style-src 'self'")
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            assert unwanted_markup(answer.text) == [], page
        assert "{{ 7 * 7 }}" in html.unescape((await browser.get(console.page("PARKED"))).text)
        graph = await browser.get(console.page("PARKED", "/graph.svg"))
        assert "<script" not in graph.text


async def test_only_sagas_of_the_project_have_pages(console: ServedConsole) -> None:
    foreign = await console.client.temporal.start_workflow(
        "payroll", {}, id=f"pay-{uuid.uuid4()}", task_queue=f"nobody-{uuid.uuid4()}"
    )
    await foreign.terminate("a secret reason")
    async with console.signed_in() as browser:
        for saga_id in (foreign.id, "nobody-has-it", "%00", "a%00b", "x" * 1001, "%FF"):
            for rest in ("", "/graph.svg", "/databases"):
                answer = await browser.get(f"/console/sagas/{saga_id}{rest}")
                assert answer.status_code == 404, saga_id
                assert "secret" not in answer.text
        batch = f"batch-{uuid.uuid4()}"
        record = await console.client.temporal.start_workflow(
            BATCH_WORKFLOW, {}, id=BATCH_PREFIX + batch, task_queue=f"nobody-{uuid.uuid4()}"
        )
        await record.terminate()
        for name in ("nobody-has-it", batch):
            assert (await browser.get(f"/console/batches/{name}")).status_code == 404
        listed = await browser.get("/console/sagas", params={"q": foreign.id})
        assert "No saga matches" in listed.text


async def test_a_page_that_cannot_be_read_says_why(console: ServedConsole, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(*_: Any, **__: Any) -> Any:
        raise SagaError("the database shop does not answer")

    monkeypatch.setattr(saga_pages, "read_view_with_stuck", read)
    async with console.signed_in() as browser:
        answer = await browser.get(console.page("COMPLETED"))
        assert (answer.status_code, "The database shop does not answer." in answer.text) == (503, True)


async def test_the_console_is_served_on_request_only(console: ServedConsole) -> None:
    async with serving(console.client, console=False) as url, httpx.AsyncClient(base_url=url) as browser:
        for page in ("", "/sign-in", "/sagas"):
            answer = await browser.get(f"/console{page}")
            assert answer.status_code == 404
            assert "console = true under [serve]" in answer.json()["error"]
        assert (await browser.get("/consoles")).status_code == 401


async def test_the_board_and_the_pages_show_what_holds_sagas_and_how_a_batch_is(console: ServedConsole) -> None:
    client, ledger = console.client, console.client.locator.ledger
    starter = await client.starter("risks")
    rows = [StartRow(f"row {n}", f"batch-{uuid.uuid4()}", starter.make_request({})) for n in range(3)]
    await run_batch(client, "risks", rows, RunOptions("monday"), [])
    assert await ledger.begin_pause("connection", "shop", who="kim", reason="a stocktaking")
    breaker = {"connection": "crm", "opened_at": datetime.now(UTC), "reason": "5 of the last 5 attempts failed"}
    async with ledger.engine.begin() as connection:
        await connection.execute(insert(circuit_breaker_table).values(**breaker, probe_at=0.0, probing=0))
    held = await begin(client, "waits")
    async with console.signed_in() as browser:

        async def text(page: str) -> str:
            answer = await browser.get(page)
            assert answer.status_code == 200, (page, answer.text)
            return html.unescape(answer.text)

        async def is_counted() -> bool:
            return "because: a stocktaking; 1 saga waits for it" in await text("/console")

        await until(is_counted)
        board = await text("/console")
        assert "the connection shop is paused by kim since" in board
        assert "saga resume --connection shop" in board
        assert "the circuit breaker of the connection crm is open since" in board
        assert "5 of the last 5 attempts failed; 0 sagas wait for it" in board
        for page in ("/console/sagas", saga_path(held)):
            shown = await text(page)
            assert re.search(r"paused with the connection shop by kim since \S+ because: a stocktaking", shown), page
        assert "3 of 3" in await text("/console/batches")
        batch = await text("/console/batches/monday")
        assert "3 rows: 3 started, 0 existed already, 0 refused, 0 not started yet." in batch
        counts = re.findall(r'state=(\w+)&label=batch%3Dmonday">.*?<td class="number">(\d+)</td>', batch, re.DOTALL)
        assert dict(counts) == {"PARKED": "3"}
        assert await ledger.end_pause("connection", "shop")
        assert await ledger.close_breaker("crm")

        async def nothing_is_paused() -> bool:
            return "Nothing is paused, and no circuit breaker is open." in await text("/console")

        await until(nothing_is_paused)
