"""`saga participant test` over HTTP: the reference passes, and each broken promise is reported by its check alone."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from saga_workers.participant.checks import CHECKS
from saga_workers.participant.json_requests import MAX_BODY_BYTES
from saga_workers.participant.participant_test import StepUnderTest, http_step, run_participant_test
from saga_workers.participant.reference_participant import ReferenceParticipant
from saga_workers.runtime.http_server import HttpServer
from sagas.errors import SagaError, UsageError
from sagas.settings import Settings, load_settings
from tests.helpers.forked_commands import ForkedCommand, run_command
from tests.helpers.sampling import mostly_slow
from tests.integration.participant.faulty_participant import FaultyParticipant

PAGE = Path(__file__).parents[3] / "docs/how-to/write-a-participant.md"
NAMES = [check.name for check in CHECKS]
QUICK_CHECKS = {"do after undo", "response cut off"}
DATA = {"sku": "a", "quantity": 2}
BODIES = {"data": DATA, "confirm-data": {"key": "${{ step.forward_key }}"}}
PROPOSALS = {
    "same key twice": "idempotent: false",
    "response cut off": "idempotent: false",
    "remembered rejection": "remembers_rejections: false",
    "in progress": "remembers_rejections: false",
}
"""What the test proposes for a participant that breaks this promise."""


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """The URL of an application on a free port."""
    async with HttpServer("127.0.0.1:0", app, option="--address", description="a participant") as server:
        yield f"http://127.0.0.1:{server.port}"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(tmp_path)


def step_at(settings: Settings, url: str, count: str | None = None, result: str = "response.json") -> StepUnderTest:
    requests = [f"POST {url}/{name}" for name in ("reserve", "release", "confirm")]
    counted = None if count is None else {"url": url + count, "result": result}
    bodies = [BODIES, {**BODIES, "data": {**DATA, "quantity": 500}}]
    given, rejected = (
        http_step(settings, requests[0], requests[1], requests[2], None, body, counted) for body in bodies
    )
    return replace(given, rejected=rejected)


async def broken_promises(settings: Settings, fault: str | None, count: str | None = "/count") -> dict[str, Any]:
    async with serving(FaultyParticipant(fault).app) as url:
        results = await run_participant_test(settings, step_at(settings, url, count), timeout=10)
    assert [result.check for result in results] == NAMES
    proposals, failed = {result.proposal for result in results}, {r.check for r in results if r.verdict == "failed"}
    assert {PROPOSALS[check] for check in failed & set(PROPOSALS)} <= proposals
    forgets = failed & {"remembered rejection", "in progress", "concurrent duplicates"}
    assert ("remembers_rejections: true" in proposals) == (not forgets)
    return {result.check: result.problem for result in results if result.verdict != "passed"}


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("fault", [None, *mostly_slow(NAMES, QUICK_CHECKS)])
async def test_each_broken_promise_is_reported_by_its_check_alone(settings: Settings, fault: str | None) -> None:
    # A service without memory loses the response that is cut off, too; only a count of its effects shows that.
    promises = await broken_promises(settings, fault, None if fault == "same key twice" else "/count")
    assert set(promises) == ({fault} if fault else set())


async def test_other_arguments_are_refused_but_not_rejected(settings: Settings) -> None:
    """Nothing has happened, a saga would think, although the first arguments had their effect."""
    async with serving(FaultyParticipant("rejects other arguments").app) as url:
        results = await run_participant_test(settings, step_at(settings, url), timeout=10)
    [broken] = [result for result in results if result.verdict == "failed"]
    assert (broken.check, broken.proposal) == ("same key, other arguments", None)
    assert "it rejected other arguments (422)" in (broken.problem or "")


async def test_no_advice_takes_the_status_of_other_arguments_for_a_rejection(settings: Settings) -> None:
    async with serving(FaultyParticipant().app) as url:
        results = await run_participant_test(settings, step_at(settings, url), timeout=10)
    [check] = [result for result in results if result.check == "same key, other arguments"]
    assert check.verdict == "passed"
    assert "400 Bad Request" in check.steps[1][1]
    assert "write `rejected" not in check.steps[1][1]


@pytest.mark.slow
async def test_what_only_a_count_shows_passes_without_one(settings: Settings) -> None:
    assert await broken_promises(settings, "response cut off", count=None) == {}


async def test_the_reference_participant_passes_and_keeps_nothing(settings: Settings, tmp_path: Path) -> None:
    reference = ReferenceParticipant(str(tmp_path / "reference.db"))
    async with serving(reference.app) as url:
        step = step_at(settings, url, "/reservations?key={key}", "response.json.count")
        results = await run_participant_test(settings, step, timeout=10)
        assert {result.check: result.verdict for result in results} == dict.fromkeys(NAMES, "passed")
        assert reference.count() == 1  # what the test has confirmed stays
        async with httpx.AsyncClient(base_url=url) as client:
            too_large = await client.post("/reserve", content=b"x" * (MAX_BODY_BYTES + 1))
            statuses = [
                (await client.post("/reserve", json=DATA)).status_code,
                (await client.post("/reserve", content=b"[" * 60_000, headers={"Idempotency-Key": "k"})).status_code,
                (await client.post("/confirm", json=[])).status_code,
                (await client.post("/reserve", json={}, headers={"Idempotency-Key": "k"})).status_code,
                (await client.post("/reserve", json=DATA, headers={"Idempotency-Key": "k"})).status_code,
            ]
    reference.close()
    assert too_large.status_code == 413
    # The last one: a key that was rejected is not taken for other arguments either.
    assert statuses == [400, 400, 400, 422, 400]


async def test_a_refusal_that_looks_done_ends_the_test_with_what_to_do(settings: Settings) -> None:
    """With `idempotent: false`, which a missing effect does not ask for, a saga only loses its retries."""
    routes = [
        Route("/reserve", lambda _: JSONResponse({"status": "declined"}), methods=["POST"]),
        Route("/count", lambda _: JSONResponse(0)),
    ]
    async with serving(Starlette(routes=routes)) as url:
        with pytest.raises(SagaError, match=r'has no effect of its key.*\{"status": "declined"\}') as refused:
            await run_participant_test(settings, step_at(settings, url, "/count"), timeout=10)
    assert "`rejected_when`" in (refused.value.help or "")


@pytest.mark.slow
async def test_an_undo_that_needs_the_result_is_reported(settings: Settings) -> None:
    async with serving(FaultyParticipant().app) as url:
        bodies = {**BODIES, "undo-data": {"id": "${{ steps.participant.result.id }}"}}
        step = http_step(settings, f"POST {url}/reserve", f"POST {url}/release", None, None, bodies, None)
        by_check = {check.check: check for check in await run_participant_test(settings, step, timeout=10)}
    assert by_check["undo twice"].verdict == "passed"
    assert by_check["undo before do"].verdict == "failed"
    assert "find the effect by step.forward_key" in (by_check["undo before do"].problem or "")
    assert (by_check["confirm after undo"].verdict, by_check["confirm after undo"].problem) == (
        "skipped",
        "there is no confirm",
    )


async def test_the_settings_that_fit_are_proposed(tmp_path: Path) -> None:
    """A service that takes only UUIDs as keys, and refuses in the body of a 200, or with 410."""
    inner = FaultyParticipant()

    def answering(status: int) -> Any:
        async def reserve(request: Request) -> Response:
            if "/" in request.headers["idempotency-key"]:
                return JSONResponse({"error": "the key is not a UUID"}, 400)
            response = await inner.on_reserve(request)
            gone = JSONResponse({"ok": False}, status)
            return gone if response.status_code == 409 else response

        return Route(f"/reserve{status}", reserve, methods=["POST"])

    inner.app.router.routes += [answering(200), answering(410)]
    async with serving(inner.app) as url:
        line = f'[connections.old]\nkind = "http"\nurl = "{url}"\n'
        proposals: dict[int, set[str | None]] = {}
        for status in (200, 410):
            for format in ("key", "uuid"):
                (tmp_path / "saga.toml").write_text(f'{line}idempotency = {{format = "{format}"}}\n')
                given = load_settings(tmp_path)
                step = http_step(given, f"POST /reserve{status}", "POST /release", None, "old", {"data": DATA}, None)
                if format == "key":
                    with pytest.raises(SagaError, match="with a key of the format uuid") as error:
                        await run_participant_test(given, step, timeout=10)
                    assert 'format = "uuid"' in (error.value.help or "")
                else:
                    results = await run_participant_test(given, step, timeout=10)
                    proposals[status] = {result.proposal for result in results} - {None}
    assert proposals == {200: {'rejected_when: "has(response.json.ok) && !response.json.ok"'}, 410: {"rejected: [410]"}}


@pytest.mark.slow
async def test_a_busy_participant_is_asked_again(settings: Settings) -> None:
    """409 while a duplicate is being processed must not be in `rejected`; 503 is asked again."""
    inner, seen = FaultyParticipant(), []

    async def sometimes(request: Request) -> Response:
        seen.append(request.url.path)
        if len(seen) % 3 == 1:
            return JSONResponse({}, 503, {"Retry-After": "0"})
        return await inner.on_reserve(request)

    inner.app.router.routes[0] = Route("/reserve", sometimes, methods=["POST"])
    async with serving(inner.app) as url:
        results = await run_participant_test(settings, step_at(settings, url, "/count"), timeout=10)
    assert {result.verdict for result in results} == {"passed"}


@pytest.mark.slow
async def test_a_duplicate_that_is_rejected_meanwhile_is_a_difference(settings: Settings) -> None:
    inner = FaultyParticipant(awaited=2)

    async def one_at_a_time(request: Request) -> Response:
        if request.headers["idempotency-key"] in inner.running:
            await inner.arrive(request.headers["idempotency-key"])
            return JSONResponse({"error": "in progress"}, 409)
        return await inner.on_reserve(request)

    inner.app.router.routes[0] = Route("/reserve", one_at_a_time, methods=["POST"])
    async with serving(inner.app) as url:
        results = await run_participant_test(settings, step_at(settings, url, "/count"), timeout=10)
    assert [result.check for result in results if result.verdict == "failed"] == [
        "in progress",
        "concurrent duplicates",
    ]


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("answer", ["nothing", "slow", "large", "redirect", "escapes"])
async def test_a_hostile_participant_ends_the_test_with_a_sentence(settings: Settings, answer: str) -> None:
    async def respond(_: Request) -> Response:
        if answer == "slow":
            await asyncio.sleep(3)
        if answer == "redirect":
            return RedirectResponse("/elsewhere", 307)
        return Response(b"x" * 5_000_000 if answer == "large" else b"\x1b[31m" * 100, 500)

    async with serving(Starlette(routes=[Route("/reserve", respond, methods=["POST"])])) as url:
        target = "http://127.0.0.1:1" if answer == "nothing" else url
        step = http_step(settings, f"POST {target}/reserve", None, None, None, {}, None)
        with pytest.raises(SagaError, match="has not done the first request") as error:
            await run_participant_test(settings, step, timeout=0.5)
    assert error.value.exit_code == 1
    assert len(error.value.message) < 500


@pytest.mark.parametrize(
    ("do", "undo", "confirm", "message"),
    [
        ("GET http://127.0.0.1:1/x", None, None, "only reads"),
        ("http://127.0.0.1:1/x", None, None, "must be METHOD URL"),
        ("POST http://127.0.0.1:1/x", None, "POST http://127.0.0.1:1/y", "--confirm needs --undo"),
        ("POST /x", None, None, "`path`"),
    ],
)
async def test_mistakes_of_the_user(
    settings: Settings, do: str, undo: str | None, confirm: str | None, message: str
) -> None:
    with pytest.raises(SagaError, match=message):
        await run_participant_test(settings, http_step(settings, do, undo, confirm, None, {}, None), timeout=1)


@pytest.mark.slow
def test_a_step_of_a_project_is_tested_as_it_is_written(tmp_path: Path) -> None:
    """The command, against the reference participant as a process, with the step of a definition."""
    log = tmp_path / "serve.log"
    reference = ForkedCommand(["participant", "serve", "--address", "127.0.0.1:0"], tmp_path, {}, log)
    try:
        while not (url := re.search(r"http://\S+", log.read_text("utf-8") if log.exists() else "")):
            assert reference.poll() is None, log.read_text("utf-8")
        (tmp_path / "definitions").mkdir()
        (tmp_path / "definitions" / "order.saga.yaml").write_text(
            """
            saga: order
            input: {type: object, required: [sku], properties: {sku: {type: string}, many: {type: integer}}}
            steps:
              - {id: wait_for_it, uses: wait, with: {for: 1s}}
              - id: reserve
                uses: http
                with: {connection: stock, method: POST, path: /reserve, json: {sku: "${{ input.sku }}", quantity: 1}}
                compensate:
                  uses: http
                  with: {connection: stock, method: POST, path: /release}
                confirm:
                  uses: http
                  with: {connection: stock, method: POST, path: /confirm, json: {key: "${{ step.forward_key }}"}}
              - {id: bill, uses: http, pivot: true, with: {connection: stock, method: POST, path: /nowhere}}
            """
        )
        (tmp_path / "saga.toml").write_text(f'[connections.stock]\nkind = "http"\nurl = "{url[0]}"\n')
        words = ["participant", "test", "order"]
        count = ["--count", f"{url[0]}/reservations", "--count-result", "response.json.count"]
        done = run_command([*words, "reserve", *count, "-o", "json"], tmp_path)
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)
        skipped = {"remembered rejection": "skipped"}
        assert {row["check"]: row["verdict"] for row in rows} == {**dict.fromkeys(NAMES, "passed"), **skipped}
        assert set(rows[0]) == {"check", "promise", "verdict", "steps", "problem", "proposal"}
        unreachable = run_command([*words, "bill"], tmp_path)
        assert unreachable.returncode == 1
        assert "responded 404 Not Found to POST /nowhere" in unreachable.stderr
        for wrong, message in (([*words, "wait_for_it"], "uses wait"), (words, "give the step of order")):
            refused = run_command(wrong, tmp_path)
            assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr
        request = ["--do", f"POST {url[0]}/reserve", "--data", json.dumps(DATA)]
        again = ["--undo", f"POST {url[0]}/confirm", "--undo-data", '{"key": "${{ step.forward_key }}"}']
        different = run_command([*words[:2], *request, *again], tmp_path)
        assert different.returncode == 8, different.stderr
        assert "✖" in different.stdout
    finally:
        reference.terminate()
        assert reference.wait(20) == 0


def test_the_documented_node_participant_passes(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    [listing] = re.findall(r"```js\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "participant.mjs").write_text(listing, encoding="utf-8")

    def start() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [node, "participant.mjs", "0", "journal.jsonl"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        return process, process.stdout.readline().split()[-1]

    process, url = start()
    try:
        arguments = ["participant", "test", "--do", f"POST {url}/reserve", "--undo", f"POST {url}/release"]
        arguments += ["--confirm", f"POST {url}/confirm", "--confirm-data", json.dumps(BODIES["confirm-data"])]
        arguments += ["--data", json.dumps(DATA), "--count", f"{url}/reservations", "-o", "json"]
        arguments += ["--rejected-data", json.dumps({**DATA, "quantity": 500})]
        done = run_command(arguments, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert {row["verdict"] for row in json.loads(done.stdout)} == {"passed"}
        headers = {"Idempotency-Key": "o-1/reserve"}
        first = httpx.post(f"{url}/reserve", json=DATA, headers=headers)
        process.kill()
        process.wait()
        with (tmp_path / "journal.jsonl").open("a", encoding="utf-8") as journal:
            journal.write('{"rows": {"do o-2')  # a process that is killed while it writes
        process, url = start()
        assert httpx.post(f"{url}/reserve", json=DATA, headers=headers).json() == first.json()
        assert httpx.get(f"{url}/reservations").json() == 2  # and what the test has confirmed
    finally:
        process.kill()
        process.wait()


def test_a_connection_without_keys_is_refused(tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text(
        '[connections.old]\nkind = "http"\nurl = "http://127.0.0.1:1"\nidempotency = "none"\n'
    )
    settings = load_settings(tmp_path)
    step = http_step(settings, "POST /x", None, None, "old", {}, None)
    with pytest.raises(UsageError, match="sends no idempotency key"):
        asyncio.run(run_participant_test(settings, step, timeout=1))
