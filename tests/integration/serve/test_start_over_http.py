"""Sagas that other systems start through `saga serve`: a real server, worker and API process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sqlite3
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from temporalio.client import Client as Temporal

from saga_workers.runtime.http_server import HttpServer
from saga_workers.serve import request_body
from sagas.protocol.payloads import VIEW_QUERY
from tests.helpers.database_servers import HOST
from tests.helpers.forked_commands import run_command
from tests.helpers.free_ports import free_port
from tests.helpers.processes import CommandProcess, TemporalServer, WorkerProcess
from tests.helpers.waiting import LIMIT, until

TOML = """
[temporal]
address = "{address}"
task_queue = "over-http"
[serve]
token = {{env = "READ_TOKEN"}}
starts_per_second = 40
max_body_bytes = 20000
[serve.tokens.shop]
secret = {{env = "SHOP_TOKEN"}}
scopes = ["read", "start"]
[serve.tokens.writer]
secret = {{env = "WRITER_TOKEN"}}
scopes = ["start"]
[serve.tokens.ada]
secret = {{env = "ADA_TOKEN"}}
scopes = ["read", "start", "operate"]
[connections.books]
url = "sqlite:///{books}"
[ledger]
connection = "books"
"""
TOKENS = {
    "READ_TOKEN": "reads-only",
    "SHOP_TOKEN": "reads-and-starts",
    "WRITER_TOKEN": "starts-only",
    "ADA_TOKEN": "operates-them",
}
QUICK = """
saga: quick
description: Check a number.
id: "quick-${{ input.n }}"
input:
  type: object
  required: [n]
  properties: {n: {$ref: "#/$defs/count"}, note: {type: string}}
  $defs: {count: {type: integer, minimum: -10}}
steps:
  - {id: positive, uses: require, with: {that: "${{ input.n >= 0 }}", message: the number is negative}}
output: {n: "${{ input.n }}"}
"""
SLOW = """
saga: slow
steps:
  - {id: go, uses: wait, with: {signal: go, timeout: 1h}}
"""
PARKS = """
saga: parks
input: {type: object, properties: {ready: {type: boolean}, card: {type: string, x-sensitive: true}}}
steps:
  - {id: check, uses: require, with: {that: "${{ input.ready }}", message: not ready}, on_failure: park}
  - {id: go, uses: wait, with: {signal: go, timeout: 1h}}
"""

READS = {"/sagas/{id}", "/sagas/{id}/notifications", "/openapi.json", "/callbacks/{saga}/{call}/{token}"}
STARTS = {"/sagas/quick", "/sagas/slow", "/sagas/parks"}


@dataclass
class Api:
    """``folder``: the project of the process."""

    folder: Path
    port: int
    process: CommandProcess

    def client(self, token: str = TOKENS["SHOP_TOKEN"]) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.AsyncClient(base_url=f"http://{HOST}:{self.port}", headers=headers, timeout=LIMIT)


@pytest.fixture(scope="module")
def project(temporal: TemporalServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("over-http")
    (folder / "saga.toml").write_text(TOML.format(address=temporal.address, books=folder / "books.db"))
    (folder / "definitions").mkdir()
    (folder / "definitions" / "quick.saga.yaml").write_text(QUICK)
    (folder / "definitions" / "slow.saga.yaml").write_text(SLOW)
    (folder / "definitions" / "parks.saga.yaml").write_text(PARKS)
    setup = run_command(["setup"], folder, env=TOKENS)
    assert setup.returncode == 0, setup.stderr
    return folder


@pytest.fixture(scope="module")
async def api(project: Path) -> AsyncIterator[Api]:
    port = free_port()
    process = CommandProcess("serve", project, "serve", "--listen", f"{HOST}:{port}", env=TOKENS)
    worker = WorkerProcess("worker", project)
    worker.start()
    process.start()
    yield Api(project, port, process)
    process.kill()
    worker.kill()


async def test_a_start_that_waits_answers_with_the_outcome(api: Api) -> None:
    async with api.client() as shop:
        answer = await shop.post("/sagas/quick", json={"input": {"n": 1}, "wait": "60s"})
        assert answer.status_code == 200, answer.text
        document = answer.json()
        assert (document["id"], document["started"]) == ("quick-1", True)
        assert (document["outcome"]["state"], document["outcome"]["output"]) == ("COMPLETED", {"n": 1})
        assert answer.headers["location"] == "/sagas/quick-1"
        assert (await shop.get(answer.headers["location"])).json() == document["outcome"]


async def test_a_whole_number_is_an_integer_however_it_is_written(api: Api) -> None:
    async with api.client() as shop:
        answers = [
            await shop.post(
                "/sagas/quick",
                content=f'{{"input": {{"n": {written}}}, "wait": "60s"}}',
                headers={"content-type": "application/json"},
            )
            for written in ("1200", "1200.0", "1.2e3")
        ]
    assert [answer.json()["id"] for answer in answers] == ["quick-1200"] * 3
    assert [answer.json()["started"] for answer in answers] == [True, False, False]
    assert answers[1].json()["outcome"]["output"] == {"n": 1200}
    assert b'"n":1200}' in answers[1].content.replace(b" ", b"")


async def test_a_repeated_start_runs_nothing_and_answers_with_the_stored_outcome(api: Api) -> None:
    async with api.client() as shop:
        first = await shop.post("/sagas/quick", json={"input": {"n": 2}, "wait": "60s"})
        answers = await asyncio.gather(*(shop.post("/sagas/quick", json={"input": {"n": 2}}) for _ in range(5)))
    assert [answer.status_code for answer in answers] == [200] * 5
    for answer in answers:
        assert answer.json() == {**first.json(), "started": False}


async def test_concurrent_starts_of_one_id_start_one_saga(api: Api) -> None:
    async with api.client() as shop:
        body = {"input": {}, "id": "slow-once"}
        answers = await asyncio.gather(*(shop.post("/sagas/slow", json=body) for _ in range(10)))
    assert [answer.status_code for answer in answers] == [202] * 10
    assert sorted(answer.json()["started"] for answer in answers) == [False] * 9 + [True]
    assert len({answer.json()["run_id"] for answer in answers}) == 1


async def test_a_saga_that_outlasts_the_wait_is_accepted(api: Api) -> None:
    async with api.client() as shop:
        answer = await shop.post("/sagas/slow", json={"wait": "200ms"})
    assert (answer.status_code, answer.json()["outcome"]) == (202, None)
    assert answer.json()["id"].startswith("slow-")


async def test_an_id_that_belongs_to_another_start_is_refused(api: Api, temporal: TemporalServer) -> None:
    async with api.client() as shop:
        rejected = await shop.post("/sagas/quick", json={"input": {"n": -1}, "wait": "60s"})
        assert (rejected.status_code, rejected.json()["outcome"]["state"]) == (200, "COMPENSATED")
        assert rejected.json()["outcome"]["reason"]["message"] == "the number is negative"
        again = await shop.post("/sagas/quick", json={"input": {"n": -1}})
        assert (again.status_code, again.json()["state"]) == (409, "COMPENSATED")
        await shop.post("/sagas/quick", json={"input": {"n": 3}, "wait": "60s"})
        other_input = await shop.post("/sagas/quick", json={"input": {"n": 4}, "id": "quick-3"})
        assert (other_input.status_code, "another input" in other_input.json()["error"]) == (409, True)
        other_saga = await shop.post("/sagas/slow", json={"id": "quick-3"})
        assert (other_saga.status_code, "belongs to a run of the saga quick" in other_saga.text) == (409, True)
        handle = (await Temporal.connect(temporal.address)).get_workflow_handle("slow-ended")
        await shop.post("/sagas/slow", json={"id": "slow-ended"})
        await handle.query(VIEW_QUERY)  # answered when the start has been accepted
        await handle.terminate()
        ended = await shop.post("/sagas/slow", json={"id": "slow-ended"})
        assert (ended.status_code, ended.json()["state"]) == (409, "TERMINATED")


@pytest.mark.sampled(keep=6)
@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"input": {}}, 422, "input needs `n`"),
        ({"input": {"n": "one"}}, 422, "the input of quick is not valid"),
        ({"input": {"n": 5}, "id": "a/b"}, 422, "/"),
        ({"input": {"n": 5}, "id": 7}, 400, "id must be a string"),
        ({"input": {"n": 5}, "wait": "2h"}, 400, "wait must be a duration up to 60s"),
        ({"input": {"n": 5}, "wait": 5}, 400, "wait must be a duration up to 60s"),
        ({"inputs": {"n": 5}}, 400, "unknown field 'inputs'; did you mean input?"),
        ([1], 400, "the body must be an object"),
        (b"{", 400, "the body is not JSON"),
        (b'{"input": NaN}', 400, "NaN is not a JSON number"),
        (b'{"input": {"n": 1e9999}}', 400, "more than 1,000 digits"),
        (b'{"input": {"n": 5, "note": "\\ud800"}}', 400, "half a surrogate pair"),
        (b"\xff", 400, "not UTF-8"),
        (b"[" * 15_000, 400, "the body is not JSON"),
        (b'{"input": {"n": ' + b"9" * 10_000 + b"}}", 400, "the body is not JSON"),
        (b" " * 20_001, 413, "the body may have 20000 bytes"),
    ],
    ids=range(16),
)
async def test_a_body_that_cannot_be_accepted(api: Api, body: Any, status: int, message: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body)
    async with api.client() as shop:
        answer = await shop.post("/sagas/quick", content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, list(answer.json())) == (status, ["error"]), answer.text
    assert message in answer.json()["error"]
    assert "Traceback" not in api.process.tail(1000)


async def test_a_body_of_another_type_or_without_a_known_length(api: Api) -> None:
    async def chunks(size: int) -> AsyncIterator[bytes]:
        yield b'{"input": {"n": 6}, "wait": "60s"'
        yield b" " * size
        yield b"}"

    async with api.client() as shop:
        plain = await shop.post("/sagas/quick", content='{"input": {"n": 6}}', headers={"Content-Type": "text/plain"})
        assert (plain.status_code, "Content-Type" in plain.json()["error"]) == (415, True)
        headers = {"Content-Type": "application/json; charset=utf-8"}
        assert (await shop.post("/sagas/quick", content=chunks(10), headers=headers)).status_code == 200
        assert (await shop.post("/sagas/quick", content=chunks(30_000), headers=headers)).status_code == 413


async def test_a_body_that_does_not_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from saga_workers.runtime.http_server import error_response, http_app, json_response

    async def receive(request: Request) -> Response:
        try:
            return json_response(200, len(await request_body.read_body(request, 100)))
        except request_body.BadRequest as error:
            return error_response(error.status, str(error), {"Connection": "close"})

    monkeypatch.setattr(request_body, "BODY_TIMEOUT", 0.2)
    app = http_app([Route("/a", receive, methods=["POST"])], max_body_bytes=100)
    async with HttpServer(f"{HOST}:0", app, option="--listen", description="the API") as server:
        reader, writer = await asyncio.open_connection(HOST, server.port)
        writer.write(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhalf")
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_what_each_token_may_do(api: Api) -> None:
    start = {"input": {"n": 7}, "wait": "60s"}
    async with api.client(TOKENS["READ_TOKEN"]) as reader, api.client(TOKENS["WRITER_TOKEN"]) as writer:
        refused = await reader.post("/sagas/quick", json=start)
        assert (refused.status_code, refused.json()["error"]) == (403, "this token does not have the scope start")
        assert (await writer.post("/sagas/quick", json=start)).status_code == 200
        assert (await reader.get("/sagas/quick-7")).status_code == 200
        assert (await writer.get("/sagas/quick-7")).status_code == 403
        assert (await writer.post("/sagas/nothing", json=start)).status_code == 404
        assert (await writer.post("/sagas/quick-7/notifications", json=start)).status_code == 405
    async with api.client("wrong") as nobody:
        assert (await nobody.post("/sagas/quick", json=start)).status_code == 401
        assert (await nobody.get("/openapi.json")).status_code == 401


async def test_the_openapi_document_has_what_the_token_may_do(api: Api) -> None:
    async with api.client() as shop, api.client(TOKENS["READ_TOKEN"]) as reader:
        document = (await shop.get("/openapi.json")).json()
        read_only = (await reader.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    assert set(read_only["paths"]) == READS
    assert set(document["paths"]) == READS | STARTS
    body = document["paths"]["/sagas/quick"]["post"]["requestBody"]["content"]["application/json"]["schema"]

    Draft202012Validator.check_schema(body)
    validator = Draft202012Validator(body)
    assert validator.is_valid({"input": {"n": 1}, "id": "a", "wait": "1s"})
    assert not validator.is_valid({"input": {"n": -11}}), "the references of the saga's schema are resolved"
    references = set(_references(document)) - {"#/$defs/count"}
    assert references == {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


async def test_the_openapi_document_describes_every_page(api: Api) -> None:
    document = await openapi(api)
    async with api.client(TOKENS["ADA_TOKEN"]) as ada:
        lost = (await ada.get("/nothing/here")).json()["error"]
    pages = lost.removeprefix("there is no such page; there are ").replace(":path}", "}").split(", ")
    assert set(document["paths"]) == set(pages) - {"/sagas/{name}"} | STARTS
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(set(names)) == len(names)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            parameters = [each["name"] for each in operation.get("parameters", ())]
            assert parameters == re.findall(r"{(\w+)}", path)
            assert any(status in operation["responses"] for status in ("200", "202")), path


async def openapi(api: Api) -> dict[str, Any]:
    """The document of the token that may read, start and operate."""
    async with api.client(TOKENS["ADA_TOKEN"]) as ada:
        return (await ada.get("/openapi.json")).json()


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [reference for item in value.values() for reference in _references(item)]
    return [reference for item in value for reference in _references(item)] if isinstance(value, list) else []


async def test_an_operator_pauses_signals_and_cancels_a_saga(api: Api) -> None:
    document = await openapi(api)
    saga_id = f"slow-{uuid.uuid4()}"
    async with api.client(TOKENS["ADA_TOKEN"]) as ada:

        async def ask(path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
            answer = await ada.post(f"/sagas/{saga_id}/{path}", json=body)
            assert answer.status_code == status, answer.text
            name = "signals/{signal}" if path.startswith("signals/") else path
            operation = document["paths"][f"/sagas/{{id}}/{name}"]["post"]
            if status == 200:
                schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
                Draft202012Validator(schema).validate(answer.json())
            Draft202012Validator(operation["requestBody"]["content"]["application/json"]["schema"]).validate(body)
            return answer.json()

        await ada.post("/sagas/slow", json={"id": saga_id})
        paused = await ask("pause", {"reason": "stock\u202e\nis counted"})
        assert (paused["response"], paused["held"], paused["in_flight"]) == ("paused", [], ["go"])
        told = (await ada.get(f"/sagas/{saga_id}")).json()["paused"]
        assert (told["kind"], told["name"], told["who"].split()[0], sorted(told)) == (
            None,
            None,
            "ada",
            ["at", "kind", "name", "who"],
        )
        assert (await ask("resume", {}))["response"] == "resumed"
        assert (await ada.get(f"/sagas/{saga_id}")).json()["paused"] is None
        refused = await ask("resume", {}, 409)
        wrong = await ask("signals/gone", {"data": 1}, 422)
        assert wrong == {"error": "slow has no `wait` for the signal gone; did you mean go?"}
        assert await ask("signals/go", {"data": {"n": 1}}) == {"id": saga_id, "signal": "go", "response": "sent"}
        await until(lambda: _has_ended(ada, saga_id))
        ended = await ask("cancel", {"reason": "too late"}, 409)
    # The same words as those of the commands, for the same reasons.
    in_commands = run_command(["cancel", saga_id], api.folder, env=TOKENS)
    assert (in_commands.returncode, ended["error"] in in_commands.stderr) == (9, True), in_commands
    assert "not paused" in refused["error"]
    accesses = shown(api, saga_id)["accesses"]
    assert [(each["what"], each.get("detail"), each["reason"], each["outcome"]) for each in accesses] == [
        ("pause", None, "stock\\u202e\\nis counted", "paused"),
        ("resume", None, None, "resumed"),
        ("resume", None, None, "refused"),
        ("signal", "gone", None, "not valid"),
        ("signal", "go", None, "sent"),
        ("cancel", None, "too late", "refused"),
    ]
    assert {each["who"] for each in accesses} == {"ada"}
    text = run_command(["show", saga_id], api.folder, env=TOKENS).stdout
    assert "ada has sent the signal gone: not valid" in text
    assert "ada has asked to cancel it, because too late: refused" in text


async def _has_ended(http: httpx.AsyncClient, saga_id: str) -> bool:
    return (await http.get(f"/sagas/{saga_id}")).json()["ended_at"] is not None


def shown(api: Api, saga_id: str) -> dict[str, Any]:
    """The view of the saga, without its starts over HTTP."""
    ended = run_command(["-o", "json", "show", saga_id], api.folder, env=TOKENS)
    assert ended.returncode == 0, ended.stderr
    view = json.loads(ended.stdout)
    return view | {"accesses": [each for each in view.get("accesses", ()) if each["what"] != "start"]}


async def test_an_operator_decides_about_a_parked_step(api: Api) -> None:
    saga_id, card = f"parks-{uuid.uuid4()}", "4711-0815-4711"
    decision = {"step": "check", "decision": "retry", "with": {"that": True}, "reason": f"asked about {card}"}
    async with api.client(TOKENS["ADA_TOKEN"]) as ada:

        async def decide(**fields: Any) -> tuple[int, dict[str, Any]]:
            answer = await ada.post(f"/sagas/{saga_id}/resolve", json={**decision, **fields})
            return answer.status_code, answer.json()

        async def is_parked() -> bool:
            return (await ada.get(f"/sagas/{saga_id}")).json()["state"] == "PARKED"

        await ada.post("/sagas/parks", json={"id": saga_id, "input": {"ready": False, "card": card}})
        await until(is_parked)
        status, preview = await decide(dry_run=True)
        assert (status, preview["dry_run"]) == (200, True)
        assert preview["next"] == ["the saga waits 3600 s: wait for go", "go waits for the signal go"]
        assert not shown(api, saga_id)["accesses"], "nothing is recorded of a preview"
        assert (await decide(step="other", **{"with": None}))[0] == 409
        assert (await decide(step=card, **{"with": None}))[0] == 409
        assert (await ada.post(f"/sagas/{saga_id}/signals/of-{card}", json={})).status_code == 422
        assert await decide(decision="skip") == (400, {"error": "with can only be used with `retry`, not with `skip`"})
        assert await decide() == (200, {"id": saga_id, "response": "accepted", "state": "RUNNING"})
        cancelled = await ada.post(f"/sagas/{saga_id}/cancel", json={})
        assert cancelled.json()["response"] == "accepted"
        assert (await ada.post(f"/sagas/{saga_id}/undo", json={"reason": "again"})).status_code == 409
    view = shown(api, saga_id)
    assert [(each["what"], each.get("detail"), each["outcome"]) for each in view["accesses"]] == [
        ("resolve", "other retry", "refused"),
        ("resolve", "••• retry", "refused"),
        ("signal", "of-•••", "not valid"),
        ("resolve", "check retry", "accepted"),
        ("cancel", None, "accepted"),
        ("undo", None, "refused"),
    ]
    assert {each["reason"] for each in view["accesses"]} == {"asked about •••", "again", None}
    [made, *_] = view["operator"]
    assert (made["who"], made["reason"]) == ("ada", "asked about •••")
    for file in api.folder.glob("books.db*"):
        for secret in (card, *TOKENS.values()):
            assert secret.encode() not in file.read_bytes(), "neither a value nor a token is in the ledger"


async def test_what_an_operator_may_not_do(api: Api, temporal: TemporalServer) -> None:
    saga_id = f"slow-{uuid.uuid4()}"
    paths = ("cancel", "pause", "resume", "signals/go", "resolve", "undo")
    async with api.client() as shop, api.client(TOKENS["ADA_TOKEN"]) as ada, api.client("wrong") as nobody:
        await shop.post("/sagas/slow", json={"id": saga_id})
        for path in paths:
            refused = await shop.post(f"/sagas/{saga_id}/{path}", json={})
            assert (refused.status_code, "does not have the scope operate" in refused.text) == (403, True)
            assert (await nobody.post(f"/sagas/{saga_id}/{path}", json={})).status_code == 401
        body = {"step": "a", "decision": "skip", "reason": "b"}
        client = await Temporal.connect(temporal.address)
        await client.start_workflow("of-others", id=f"of-others-{saga_id}", task_queue="nobody")
        for unknown in (f"of-others-{saga_id}", "nothing", "x" * 1500, "%00"):
            for path in paths[:-1]:
                answer = await ada.post(f"/sagas/{unknown}/{path}", json=body if path == "resolve" else {})
                assert answer.status_code == 404, (path, answer.text)
        await client.get_workflow_handle(f"of-others-{saga_id}").terminate()
        for path, sent, message in (
            ("pause", {"reason": 5}, "reason must be a string"),
            ("pause", {"reason": "x" * 1001}, "reason has 1001 characters, and may have 1000"),
            ("pause", {"data": 1}, "unknown field 'data'"),
            ("signals/go", {"reject": " "}, "reject must have the reason"),
            ("signals/go", {"reject": "a", "data": 1}, "send either data or reject"),
            (f"signals/{'x' * 1001}", {}, "the name of the signal has 1001 characters"),
            ("resolve", {**body, "reason": " "}, "a decision needs the string `reason`"),
            ("undo", {"reason": " "}, "an undo needs the string `reason`"),
            ("resolve", {**body, "decision": "skpi"}, "there is no decision `skpi`"),
            ("resolve", {**body, "with": [1]}, "with can only be used with `retry`"),
            ("resolve", {**body, "dry_run": "yes"}, "dry_run must be true or false"),
        ):
            answer = await ada.post(f"/sagas/{saga_id}/{path}", json=sent)
            assert (answer.status_code, message in answer.text) == (400, True), answer.text
    assert not shown(api, saga_id)["accesses"], "nothing is recorded of what was not asked of the saga"


async def test_what_cannot_be_recorded_is_not_done(api: Api) -> None:
    saga_id = f"slow-{uuid.uuid4()}"
    with contextlib.closing(sqlite3.connect(api.folder / "books.db", isolation_level=None)) as books:
        async with api.client(TOKENS["ADA_TOKEN"]) as ada:
            await ada.post("/sagas/slow", json={"id": saga_id})
            books.execute("alter table saga_audit rename to saga_audit_elsewhere")
            try:
                answer = await ada.post(f"/sagas/{saga_id}/cancel", json={})
            finally:
                books.execute("alter table saga_audit_elsewhere rename to saga_audit")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5"), answer.text
            assert answer.json()["error"].endswith("; nothing was done")
            assert (await ada.get(f"/sagas/{saga_id}")).json()["state"] == "RUNNING"


async def test_a_token_that_starts_too_much_has_to_wait(api: Api) -> None:
    async with api.client(TOKENS["WRITER_TOKEN"]) as writer, api.client() as shop:

        async def limited() -> httpx.Response | None:
            """The answer to a start beyond those of a second: all are sent before the first one is read."""
            api.process.freeze()
            starts = [asyncio.create_task(writer.post("/sagas/quick", content=b"")) for _ in range(100)]
            await asyncio.sleep(0.5)
            api.process.thaw()
            answers = await asyncio.gather(*starts)
            assert {415} <= {answer.status_code for answer in answers} <= {415, 429}
            return next((answer for answer in answers if answer.status_code == 429), None)

        refused = await until(limited)  # a busy machine may read fewer in a second than are allowed
        assert refused.headers["retry-after"] == "1"
        assert (await shop.post("/sagas/quick", json={"input": {"n": 8}, "wait": "60s"})).status_code == 200
