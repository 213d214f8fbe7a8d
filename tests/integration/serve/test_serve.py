"""`saga serve` as a process: outcomes only for clients with a token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from saga_workers.client import Client
from saga_workers.devstack.service import http_get
from saga_workers.serve.api_tokens import TokenBucket
from sagas import Rejected
from tests.helpers.database_servers import HOST
from tests.helpers.forked_commands import run_command
from tests.helpers.free_ports import free_port
from tests.helpers.processes import CommandProcess, TemporalServer
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle, open_environment, resolve, run_saga

TOKEN = "a-token-that-nobody-guesses"
TOML = '[temporal]\naddress = "{address}"\n[serve]\ntoken = {{env = "SERVE_TOKEN"}}\n'


@dataclass
class Endpoint:
    """`saga serve` in a folder with nothing but a saga.toml."""

    folder: Path
    address: str

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "saga.toml").write_text(TOML.format(address=self.address))
        self.port = free_port()
        words = ("serve", "--listen", f"{HOST}:{self.port}")
        self.process = CommandProcess("serve", self.folder, *words, env={"SERVE_TOKEN": TOKEN})
        self.health = self.process.health_port

    @property
    def client(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return httpx.AsyncClient(base_url=f"http://{HOST}:{self.port}", headers=headers, timeout=60)

    async def outcome(self, saga_id: str) -> dict[str, Any]:
        async with self.client as client:
            answer = await client.get(f"/sagas/{quote(saga_id, safe='')}")
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
async def endpoint(temporal: TemporalServer, tmp_path: Path) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(tmp_path / "serve", temporal.address)
    endpoint.process.start()
    yield endpoint
    endpoint.process.kill()


@pytest.fixture
async def engine_env(temporal: TemporalServer, tmp_path: Path) -> AsyncIterator[Environment]:
    environment = await open_environment(tmp_path, temporal.address)
    yield environment
    await environment.engine.dispose()


LINE = """
    saga: line
    input: {type: object, properties: {secret: {type: string}}}
    steps:
      - {id: a, uses: work, compensate: unwork, with: {value: "${{ input.secret }}"}}
      - {id: b, uses: work, effect: none, on_failure: ON_FAILURE}
      - {id: c, uses: wait, with: {for: WAIT}}
    output: {ok: true}
    notify: [{when: completed, uses: look, with: {}}]
"""
PLAIN = LINE.replace("WAIT", "1ms").replace("ON_FAILURE", "compensate")
INPUT = {"secret": "the input stays in the house"}


async def test_the_outcome_in_every_state(engine_env: Environment, endpoint: Endpoint) -> None:
    parks = LINE.replace("saga: line", "saga: parks").replace("WAIT", "1ms").replace("ON_FAILURE", "park")
    waits = LINE.replace("saga: line", "saga: waits").replace("WAIT", "1h").replace("ON_FAILURE", "compensate")
    engine_env.plan["do b"] = [1, Rejected("no"), Rejected("no"), Rejected("no"), 1]
    async with engine_env.serving(PLAIN, parks, waits) as client:
        completed = await run_saga(client, "line", INPUT)
        compensated = await run_saga(client, "line", INPUT)
        parked = await run_saga(client, "parks", INPUT)
        engine_env.plan["undo a"] = [Rejected("cannot")]
        residue = (await run_saga(client, "line", INPUT))["id"]
        await resolve(client, residue, "a", "skip")
        running = await begin(client, "waits", INPUT)
        await until(lambda: _runs(client, running))
        terminated = await begin(client, "waits", INPUT)
        await handle(client, terminated).terminate(reason="a mistake")

        first = await endpoint.outcome(completed["id"])
        assert first == {
            "id": completed["id"],
            "saga": "line",
            "state": "COMPLETED",
            "phase": "committed",
            "reason": None,
            "output": {"ok": True},
            "started_at": completed["started_at"],
            "committed_at": completed["committed_at"],
            "ended_at": completed["ended_at"],
            "paused": None,
            "incomplete": None,
            "verified": False,  # it serves from a folder without the key of the worker
            "source": None,
        }
        second = await endpoint.outcome(compensated["id"])
        assert (second["state"], second["output"]) == ("COMPENSATED", None)
        assert (second["reason"]["kind"], second["reason"]["step"]) == ("rejected", "b")
        for saga_id, state in ((parked["id"], "PARKED"), (residue, "RESIDUE"), (running, "RUNNING")):
            assert (await endpoint.outcome(saga_id))["state"] == state
        ended = await endpoint.outcome(terminated)
        assert (ended["state"], ended["reason"]["message"].endswith("a mistake")) == ("TERMINATED", True)
    # Without a worker finished sagas are still known, and running ones are reported as far as possible.
    assert (await endpoint.outcome(completed["id"]))["output"] == {"ok": True}
    open_ = await endpoint.outcome(running)
    assert open_["state"] == "RUNNING"


async def _runs(client: Client, saga_id: str) -> bool:
    return any(row["id"] == "c" and row["state"] == "RUNNING" for row in (await client.show(saga_id))["steps"])


async def test_authorization_and_routes(engine_env: Environment, endpoint: Endpoint) -> None:
    async with engine_env.serving(PLAIN) as client:
        saga_id = (await run_saga(client, "line", INPUT, id="the order #1 ü"))["id"]
        path = f"/sagas/{quote(saga_id, safe='')}"
        bare = httpx.AsyncClient(base_url=f"http://{HOST}:{endpoint.port}", timeout=30)
        async with bare, endpoint.client as http:
            for header in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": f"Basic {TOKEN}"},
                           {"Authorization": "Bearer"}, 
                           {"Authorization": TOKEN}):  # fmt: skip
                refused = await bare.get(path, headers=header)
                assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
                assert list(refused.json()) == ["error"]
            assert (await bare.get("/nothing/here")).status_code == 401, (
                "without a token nothing is learned about pages"
            )

            answer = await http.get(path)
            assert answer.json()["id"] == saga_id
            assert "the input stays" not in answer.text
            assert "a-token" not in answer.text
            head = await http.head(path)
            assert (head.status_code, head.content) == (200, b"")

            async def delivered() -> Any:
                [row] = (await http.get(f"{path}/notifications")).json()
                return row["state"] == "DELIVERED"

            await until(delivered)
            for lost in ("/sagas/nobody-knows-it", "/sagas/", "/sagas", "/", "/sagas/a/b/c", "/sagas/" + "x" * 3000,
                         f"{path}~notify-0-completed"):  # fmt: skip
                answer = await http.get(lost)
                assert (answer.status_code, list(answer.json())) == (404, ["error"]), lost
            assert (await http.post(path, json={})).status_code == 403, "this token only reads"
            for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
                answer = await http.request(method, path)
                assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")
    assert TOKEN not in endpoint.process.tail(1000)
    _, text = http_get(endpoint.health, "/metrics")
    assert all(f'saga_serve_requests_total{{status="{status}"}}'.encode() in text for status in (403, 405))


@pytest.mark.slow
async def test_many_concurrent_requests(engine_env: Environment, endpoint: Endpoint) -> None:
    async with engine_env.serving(PLAIN) as client:
        stories = await asyncio.gather(*(run_saga(client, "line", INPUT) for _ in range(5)))
    async with endpoint.client as http:
        paths = [f"/sagas/{story['id']}" for story in stories] * 10
        answers = await asyncio.gather(*(http.get(path) for path in paths))
    assert [answer.status_code for answer in answers] == [200] * 50
    assert [answer.json()["id"] for answer in answers] == [path.removeprefix("/sagas/") for path in paths]
    status, text = http_get(endpoint.health, "/metrics")
    assert (status, b'saga_serve_requests_total{status="200"}' in text) == (200, True)


@pytest.mark.slow
async def test_many_requests_for_a_saga_without_its_worker(engine_env: Environment, endpoint: Endpoint) -> None:
    """The workflow task waits for the worker, and concurrent queries of the run end one after the other."""
    waits = LINE.replace("saga: line", "saga: waits").replace("WAIT", "1h").replace("ON_FAILURE", "compensate")
    async with engine_env.serving(waits) as client:
        running = await begin(client, "waits", INPUT)
        await until(lambda: _runs(client, running))
    await handle(client, running).signal("signal", "nobody takes it")
    async with endpoint.client as http:
        answers = await asyncio.gather(*(http.get(f"/sagas/{running}") for _ in range(20)))
    assert [answer.status_code for answer in answers] == [200] * 20
    assert {(answer.json()["state"], answer.json()["incomplete"] is None) for answer in answers} == {("RUNNING", False)}


@pytest.mark.slow
async def test_while_temporal_is_down_requests_get_503(tmp_path: Path) -> None:
    server = TemporalServer(tmp_path / "temporal").start()
    endpoint = Endpoint(tmp_path / "serve", server.address)
    try:
        endpoint.process.start()
        async with endpoint.client as http:
            assert (await http.get("/sagas/some")).status_code == 404
            server.kill()
            answers = await asyncio.gather(*(http.get("/sagas/some") for _ in range(5)))
            assert [answer.status_code for answer in answers] == [503] * 5
            assert answers[0].json()["error"].startswith("Temporal does not answer")
            assert answers[0].headers["retry-after"] == "5"
            assert http_get(endpoint.health, "/livez")[0] == 200
            assert http_get(endpoint.health, "/readyz")[0] == 503
            server.start()
            endpoint.process.wait()

            async def back() -> bool:
                return (await http.get("/sagas/some")).status_code == 404

            await until(back)
        assert endpoint.process.stop() == 0
        assert "Traceback" not in endpoint.process.tail(1000)
    finally:
        endpoint.process.kill()
        server.kill()


@pytest.mark.parametrize(
    ("serve", "env", "message"),
    [
        ("", {}, "serve.token is missing"),
        pytest.param(
            '[serve]\ntoken = "plain"\n', {}, "serve.token must be a reference, {env = ", marks=pytest.mark.slow
        ),
        ('[serve]\ntoken = {env = "NOT_SET"}\n', {}, "environment variable NOT_SET, which is not set"),
        pytest.param(
            '[serve]\ntoken = {env = "EMPTY"}\n', {"EMPTY": " "}, "serve.token is empty", marks=pytest.mark.slow
        ),
        pytest.param('[serve]\ntoken = {file = "nowhere"}\n', {}, "which failed: No such file", marks=pytest.mark.slow),
        pytest.param('[serve]\ntokens = "a"\n', {}, "serve.tokens must be a table", marks=pytest.mark.slow),
    ],
)
def test_serve_without_a_token_does_not_start(tmp_path: Path, serve: str, env: dict[str, str], message: str) -> None:
    (tmp_path / "saga.toml").write_text(serve)
    ended = run_command(["serve", "--listen", f"{HOST}:{free_port()}"], tmp_path, env=env)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


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
        ('[serve.tokens.shop]\nsecret = {env = "A"}\nscopes = ["operate"]', "scope operate, which needs a ledger"),
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
