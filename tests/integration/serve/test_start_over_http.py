"""Sagas that other systems start through `saga serve`: a real server, worker and API process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.client import Client as Temporal

from saga_workers.runtime.http_server import HttpServer
from saga_workers.serve import request_body
from saga_workers.serve.api_tokens import TokenBucket
from tests.helpers.database_servers import HOST
from tests.helpers.forked_commands import run_command
from tests.helpers.free_ports import free_port
from tests.helpers.processes import CommandProcess, TemporalServer, WorkerProcess

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
"""
TOKENS = {"READ_TOKEN": "reads-only", "SHOP_TOKEN": "reads-and-starts", "WRITER_TOKEN": "starts-only"}
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


@dataclass
class Api:
    port: int
    process: CommandProcess

    def client(self, token: str = TOKENS["SHOP_TOKEN"]) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.AsyncClient(base_url=f"http://{HOST}:{self.port}", headers=headers, timeout=60)


@pytest.fixture(scope="module")
def project(temporal: TemporalServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("over-http")
    (folder / "saga.toml").write_text(TOML.format(address=temporal.address))
    (folder / "definitions").mkdir()
    (folder / "definitions" / "quick.saga.yaml").write_text(QUICK)
    (folder / "definitions" / "slow.saga.yaml").write_text(SLOW)
    return folder


@pytest.fixture(scope="module")
async def api(project: Path) -> AsyncIterator[Api]:
    port = free_port()
    process = CommandProcess("serve", project, "serve", "--listen", f"{HOST}:{port}", env=TOKENS)
    worker = WorkerProcess("worker", project)
    worker.start()
    process.start()
    yield Api(port, process)
    process.kill()
    worker.kill()


async def test_a_start_that_waits_answers_with_the_outcome(api: Api) -> None:
    async with api.client() as shop:
        answer = await shop.post("/sagas/quick", json={"input": {"n": 1}, "wait": "30s"})
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
                content=f'{{"input": {{"n": {written}}}, "wait": "30s"}}',
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
        first = await shop.post("/sagas/quick", json={"input": {"n": 2}, "wait": "30s"})
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
        rejected = await shop.post("/sagas/quick", json={"input": {"n": -1}, "wait": "30s"})
        assert (rejected.status_code, rejected.json()["outcome"]["state"]) == (200, "COMPENSATED")
        assert rejected.json()["outcome"]["reason"]["message"] == "the number is negative"
        again = await shop.post("/sagas/quick", json={"input": {"n": -1}})
        assert (again.status_code, again.json()["state"]) == (409, "COMPENSATED")
        await shop.post("/sagas/quick", json={"input": {"n": 3}, "wait": "30s"})
        other_input = await shop.post("/sagas/quick", json={"input": {"n": 4}, "id": "quick-3"})
        assert (other_input.status_code, "another input" in other_input.json()["error"]) == (409, True)
        other_saga = await shop.post("/sagas/slow", json={"id": "quick-3"})
        assert (other_saga.status_code, "belongs to a run of the saga quick" in other_saga.text) == (409, True)
        handle = (await Temporal.connect(temporal.address)).get_workflow_handle("slow-ended")
        await shop.post("/sagas/slow", json={"id": "slow-ended"})
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
        yield b'{"input": {"n": 6}, "wait": "30s"'
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
    start = {"input": {"n": 7}, "wait": "30s"}
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
    reads = {"/sagas/{id}", "/sagas/{id}/notifications"}
    assert set(read_only["paths"]) == reads
    assert set(document["paths"]) == reads | {"/sagas/quick", "/sagas/slow"}
    body = document["paths"]["/sagas/quick"]["post"]["requestBody"]["content"]["application/json"]["schema"]

    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(body)
    validator = Draft202012Validator(body)
    assert validator.is_valid({"input": {"n": 1}, "id": "a", "wait": "1s"})
    assert not validator.is_valid({"input": {"n": -11}}), "the references of the saga's schema are resolved"
    references = set(_references(document)) - {"#/$defs/count"}
    assert references == {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [reference for item in value.values() for reference in _references(item)]
    return [reference for item in value for reference in _references(item)] if isinstance(value, list) else []


async def test_a_token_that_starts_too_much_has_to_wait(api: Api) -> None:
    async with api.client(TOKENS["WRITER_TOKEN"]) as writer:
        answers = await asyncio.gather(*(writer.post("/sagas/quick", content=b"") for _ in range(120)))
        limited = [answer for answer in answers if answer.status_code == 429]
        assert limited
        assert {answer.status_code for answer in answers} == {415, 429}
        assert limited[0].headers["retry-after"] == "1"
        async with api.client() as shop:
            assert (await shop.post("/sagas/quick", json={"input": {"n": 8}, "wait": "30s"})).status_code == 200


def test_a_token_bucket_allows_its_rate() -> None:
    now = 0.0
    bucket = TokenBucket(2, lambda: now)
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    now = 0.5
    assert [bucket.take() for _ in range(2)] == [True, False]
    now = 100.0
    assert [bucket.take() for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("serve", "message"),
    [
        ('[serve.tokens.shop]\nscopes = ["start"]', "serve.tokens.shop.secret is missing"),
        ('[serve.tokens.shop]\nsecret = {env = "A"}\nscopes = ["strat"]', "unknown scope strat; did you mean start?"),
        pytest.param(
            "[serve.tokens.shop]\nscope = 1",
            "[serve.tokens.shop]: unknown setting scope; did you mean scopes?",
            marks=pytest.mark.slow,
        ),
        pytest.param("[serve]\ntokens = {shop = 5}", "serve.tokens.shop must be a table", marks=pytest.mark.slow),
        pytest.param(
            "[serve]\nmax_body_bytes = 5000000",
            "serve.max_body_bytes must be a whole number from 1 to 2000000",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_mistake_in_the_settings(tmp_path: Path, serve: str, message: str) -> None:
    (tmp_path / "saga.toml").write_text(serve + "\n")
    ended = run_command(["serve", "--listen", f"{HOST}:{free_port()}"], tmp_path, env={"A": "a"})
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)
    assert message in ended.stderr
