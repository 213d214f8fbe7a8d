"""The console of `saga serve`: sign-in, pages about every kind of saga, hostile values."""

from __future__ import annotations

import contextlib
import html
import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from saga_activities.ledger.rows import make_record
from saga_activities.ledger.schema import create_ledger
from saga_workers.client import Client
from saga_workers.runtime.http_server import HttpServer
from saga_workers.serve.api import SagaApi
from saga_workers.serve.api_tokens import Callers
from saga_workers.serve.console import saga_pages, search
from saga_workers.serve.console.sessions import COOKIE
from saga_workers.serve.console.templates import decision_path, saga_path
from saga_workers.serve.limits import SESSION_SECONDS
from saga_workers.serve.operations import Operations
from saga_workers.serve.project_sagas import ProjectSagas
from sagas import Rejected
from sagas.errors import SagaError
from sagas.machine.decisions.form import DECISIONS
from sagas.project import Project
from sagas.protocol.payloads import BATCH_PREFIX, BATCH_WORKFLOW
from sagas.protocol.saga_view import SagaView
from sagas.settings.secrets import Secret
from sagas.settings.serve import ServeSettings, ServeToken
from tests.helpers.database_servers import HOST
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import LIMIT, until
from tests.integration.engine.environment import begin, open_environment, run_saga
from tests.integration.serve.page_markup import unwanted_markup

TOKENS = {
    "STAFF": "staff-token-of-24-characters",
    "SHOP": "shop-token-of-24-characters",
    "CHIEF": "chief-token-of-24-characters",
}
SCRIPT = "<script>alert(1)<script>\"'><img src=x onerror=alert(2)>{{ 7 * 7 }}"
RIGHT_TO_LEFT = "\u202edesrever\u2066"
LONG = "x" * 10_000

ORDER = """
    saga: order
    input: {type: object, properties: {customer: {type: string}}}
    labels: {customer: "${{ input.customer }}"}
    steps:
      - {id: reserve, name: Reserve the room, uses: work, compensate: unwork}
      - {id: pay, uses: work, effect: none, on_failure: compensate}
      - {id: tell, uses: work, compensate: unwork, on_failure: park}
"""
WAITS = """
    saga: waits
    steps:
      - {id: book, name: Book the room, uses: book, compensate: unbook}
      - {id: approve, uses: wait, with: {for: 1h}}
"""
RESTS = """
    saga: rests
    steps:
      - {id: hold, name: Hold the room, uses: work, compensate: unwork}
      - {id: approve, uses: wait, with: {for: 1h}}
"""
RISKS = """
    saga: risks
    steps:
      - {id: block, uses: work, compensate: unwork}
      - {id: charge, uses: work, pivot: true, on_failure: park}
"""
PAGES = ("", "/sagas", "/sagas?q=a", "/sagas/a", "/sagas/a/graph.svg", "/sagas/a/databases", "/inbox", "/batches",
         "/batches/a", "/nothing", "/sign-out/")  # fmt: skip


@dataclass(frozen=True)
class ServedConsole:
    """A console with a saga in each of these states."""

    client: Client
    url: str
    ids: dict[str, str]

    def browser(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=LIMIT, headers={"Origin": self.url})

    @contextlib.asynccontextmanager
    async def signed_in(self, token: str = "STAFF") -> AsyncIterator[httpx.AsyncClient]:
        async with self.browser() as browser:
            answer = await browser.post("/console/sign-in", data={"token": TOKENS[token]})
            assert (answer.status_code, answer.headers["location"]) == (303, "/console")
            yield browser

    def page(self, state: str, rest: str = "") -> str:
        return f"/console/sagas/{quote(self.ids[state], safe='')}{rest}"


@contextlib.asynccontextmanager
async def serving(client: Client, *, console: bool = True) -> AsyncIterator[str]:
    """The API for the project of a client; gives its address."""
    tokens = {
        "staff": ServeToken(secret=Secret("env", "STAFF"), scopes=("read",)),
        "shop": ServeToken(secret=Secret("env", "SHOP"), scopes=("start",)),
        "chief": ServeToken(secret=Secret("env", "CHIEF"), scopes=("read", "operate")),
    }
    settings = client.project.settings.model_copy(update={"serve": ServeSettings(tokens=tokens, console=console)})
    project = Project(settings, client.project.actions)
    served = frozenset(project.definitions)
    api = SagaApi(
        client.locator,
        Callers(settings),
        sagas=served,
        settings=settings.serve,
        operations=Operations(client.locator, project, ProjectSagas(served)),
        project=project,
    )
    async with HttpServer(f"{HOST}:0", api.app, option="--listen", description="the API") as server:
        yield f"http://{HOST}:{server.port}"


@pytest.fixture(scope="module")
async def console(temporal: TemporalServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedConsole]:
    """A worker and a console for two definitions."""
    environment = await open_environment(tmp_path_factory.mktemp("console"), temporal.address)
    environment.plan["do pay"] = [1, 1, Rejected(SCRIPT + RIGHT_TO_LEFT), 1]
    environment.plan["do tell"] = [1, Rejected(f"{SCRIPT} {RIGHT_TO_LEFT} {LONG}"), Rejected("closed on Sundays"), 1]
    environment.plan["do charge"] = [Rejected("the line was busy")]
    environment.plan["undo block"] = [Rejected("nobody was there")]
    environment.ledger = "shop"
    await create_ledger(environment.engine)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in TOKENS.items():
            patch.setenv(name, value)
        async with environment.serving(ORDER, WAITS, RESTS, RISKS) as client:
            hostile = f"{SCRIPT} {uuid.uuid4()}"
            ids = {
                "COMPLETED": (await run_saga(client, "order", {"customer": "ada"}))["id"],
                "PARKED": (await run_saga(client, "order", {"customer": SCRIPT}, id=hostile))["id"],
                "COMPENSATED": (await run_saga(client, "order", {"customer": "bob"}))["id"],
                "RUNNING": await begin(client, "waits"),
            }
            async with serving(client) as url:
                yield ServedConsole(client, url, ids)
    await environment.engine.dispose()


def form_token(page: str) -> str:
    """The token that each form of a session has."""
    match = re.search(r'name="form" value="([^"]+)"', page)
    assert match, page
    return match[1]


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

        completed, parked = await text(console.page("COMPLETED")), await text(console.page("PARKED"))
        assert "Reserve the room: done" in completed
        assert "An undo of this saga would undo, in this order:" in completed
        assert "tell waits for a decision" in parked
        assert all(f"<dt>{decision}</dt>" in parked for decision in ("retry", "done", "skip"))
        running = await text(console.page("RUNNING"))
        assert "If it were cancelled now, this would be undone, in this order:" in running
        undone = await text(console.page("COMPENSATED"))
        assert "Reserve the room: undo done" in undone
        effects = await text(console.page("RUNNING", "/databases"))
        assert re.search(r">book</th>\s*<td>shop</td>\s*<td>✔ there</td>", effects)
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


def hidden_fields(page: str) -> dict[str, str]:
    """The fields that the form of a decision has without the person who fills it in."""
    [form] = re.findall(r'<form class="decide".*?</form>', page, re.DOTALL)
    return {name: html.unescape(value) for name, value in re.findall(r'type="hidden" name="(\w+)" value="(.*?)"', form)}


async def test_an_operator_decides_about_a_parked_step(console: ServedConsole) -> None:
    parked = (await run_saga(console.client, "order", {"customer": "carl"}))["id"]
    page = saga_path(parked)
    async with console.signed_in() as staff, console.signed_in("CHIEF") as chief:
        shown = html.unescape((await chief.get(page)).text)
        links = re.findall(r'href="([^"]*/resolve[^"]*)"', shown)
        assert links == [f"{page}/resolve?step=tell&decision={decision}" for decision in DECISIONS]
        inbox = "/console/inbox"
        for shown_to_all in (page, inbox):
            assert "/resolve" not in (await staff.get(shown_to_all)).text, "who may not decide sees no button"

        async def in_inbox() -> bool:  # the visibility store lags
            return html.escape(links[0]) in (await chief.get(inbox)).text

        await until(in_inbox)
        form = (await chief.get(links[0])).text
        assert "<li>do tell: call work with" in form
        fields = {**hidden_fields(form), "go": "send", "reason": SCRIPT}
        assert (fields["step"], fields["decision"]) == ("tell", "retry")
        look = await chief.post(f"{page}/resolve", data={**fields, "go": "look", "with": '{"other":\r\n1}'})
        assert (look.status_code, "{&#34;other&#34;:\n1}</textarea>" in look.text) == (200, True)
        for wrong, status, message in (
            ({"form": "guessed"}, 403, "earlier session"),
            ({"reason": " "}, 400, "needs the string `reason`"),
            ({"with": "{"}, 400, "The field with is not JSON"),
            ({"decision": "forget"}, 400, "There is no decision `forget`"),
            ({"step": "pay"}, 409, "pay"),
        ):
            refused = await chief.post(f"{page}/resolve", data={**fields, **wrong})
            assert (refused.status_code, message in refused.text) == (status, True), refused.text
            assert ("with" in wrong) <= (SCRIPT in html.unescape(refused.text)), "the form keeps what was written"
            assert refused.text.count('role="alert"') == 1
        foreign = await chief.post(f"{page}/resolve", data=fields, headers={"Origin": "http://evil.example"})
        assert foreign.status_code == 403
        own_form = {**fields, "form": form_token((await staff.get(page)).text)}
        for refused in (await staff.get(links[0]), await staff.post(f"{page}/resolve", data=own_form)):
            assert (refused.status_code, "does not have the scope operate" in refused.text) == (403, True)

        decided = await chief.post(f"{page}/resolve", data=fields, follow_redirects=True)
        assert (decided.status_code, "The saga has accepted it" in decided.text) == (200, True), decided.text
        assert decided.history[0].status_code == 303, "who loads the answer again sends nothing"
        assert (await chief.get(str(decided.url))).text == decided.text

        async def has_ended() -> bool:
            return (await console.client.show(parked))["state"] == "COMPLETED"

        await until(has_ended)
        late = await chief.post(f"{page}/resolve", data=fields)
        assert (late.status_code, "has already ended COMPLETED" in late.text) == (409, True)
        assert (await chief.get(links[0])).status_code == 404
        story = await chief.get(page)
        assert "chief has decided tell retry, because &lt;script&gt;" in story.text
        assert unwanted_markup(story.text + look.text + decided.text + late.text) == []


async def test_a_decision_that_needs_evidence_is_shown_and_asks_for_it(console: ServedConsole) -> None:
    risky = (await run_saga(console.client, "risks"))["id"]
    address = saga_path(risky, "/resolve")
    required = re.compile(r'name="evidence"[^>]* required')
    async with console.signed_in("CHIEF") as chief:

        async def look(step: str, decision: str, consequence: str) -> dict[str, str]:
            form = await chief.get(decision_path(risky, step, decision))
            assert (form.status_code, consequence in form.text) == (200, True), form.text
            assert required.search(form.text), form.text
            return {**hidden_fields(form.text), "go": "send", "reason": "they called back"}

        async def send(fields: dict[str, str], **others: str) -> httpx.Response:
            return await chief.post(address, data={**fields, **others}, follow_redirects=True)

        await look("charge", "done", "the saga ends COMPLETED")
        fields = await look("charge", "compensate", "<li>undo block: call unwork")
        refused = await send(fields)
        assert (refused.status_code, "needs --evidence" in refused.text) == (409, True), refused.text
        assert required.search(refused.text), "the form is still there"
        assert "they called back</textarea>" in refused.text
        assert "The saga has accepted it" in (await send(fields, evidence="no money came")).text

        async def has_parked() -> bool:
            return [row["op"] for row in (await console.client.show(risky))["parked"]] == ["undo"]

        await until(has_parked)
        fields = await look("block", "done", "the saga ends COMPENSATED")
        for seen in ({"op": "do"}, {"since": "2026-03-01T10:00:00Z"}):
            changed = await send(fields, evidence="I was there", **seen)
            assert (changed.status_code, "It has changed since" in changed.text) == (409, True), changed.text
            assert hidden_fields(changed.text)["op"] == "undo"
        assert "The saga has accepted it" in (await send(fields, evidence="I was there")).text
        assert (await console.client.show(risky))["state"] == "COMPENSATED"


async def test_an_operator_pauses_and_cancels_a_saga(console: ServedConsole) -> None:
    running = await begin(console.client, "rests")
    page = saga_path(running)
    async with console.signed_in("CHIEF") as chief:

        async def offered() -> list[str]:
            shown = (await chief.get(page)).text
            return re.findall(rf'class="button" href="{re.escape(page)}/(\w+)"', shown)

        async def ask(operation: str, words: str, answered: str) -> None:
            form = await chief.get(f"{page}/{operation}")
            assert (form.status_code, words in form.text) == (200, True), form.text
            sent = {**hidden_fields(form.text), "go": "send"}
            answer = await chief.post(f"{page}/{operation}", data=sent, follow_redirects=True)
            assert (answer.status_code, answered in answer.text) == (200, True), answer.text

        async def has_booked() -> bool:
            return any(row["id"] == "approve" and row["state"] == "RUNNING" for row in
                       (await console.client.show(running))["steps"])  # fmt: skip

        await until(has_booked)
        assert await offered() == ["cancel", "pause"]
        await ask("pause", "What is under way ends", "The saga is paused: in flight: approve.")
        assert await offered() == ["cancel", "resume"]
        await ask("resume", "goes on", "The saga goes on.")
        await ask("cancel", "<li>undo Hold the room</li>", "its completed steps are being undone")

        async def has_ended() -> bool:
            return (await console.client.show(running))["state"] == "COMPENSATED"

        await until(has_ended)
        assert await offered() == []
        assert "would refuse that now" in (await chief.get(f"{page}/cancel")).text
        for operation in ("redo", "graph"):
            assert (await chief.get(f"{page}/{operation}")).status_code == 404
        assert (await chief.get(f"{saga_path('nobody-has-it')}/cancel")).status_code == 404
