"""Callbacks of `http`: a participant accepts a request now and answers it later, through `saga serve`."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError

from saga_workers.client import Client
from saga_workers.input_limits import MAX_CALLBACKS_AT_ONCE, MAX_WRONG_TOKENS
from sagas.builtins.callbacks import CALLBACK_UPDATE, MAX_CALLBACK_BYTES
from sagas.protocol import payloads
from sagas.text.digests import sha256_hex
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.sdk_flags import SINGLE_BATCH, default_flags
from tests.helpers.waiting import LIMIT, until
from tests.integration.engine.environment import resolve
from tests.integration.serve.accepting_bank import CHARGE, AcceptingBank, CallbackProject, call_back
from tests.replay.scenario import EARLY

BOOKED = {"status": "booked", "id": "c-1"}


@pytest.fixture
def bank() -> Iterator[AcceptingBank]:
    with AcceptingBank() as running:
        yield running


class Desk:
    """Starts sagas of one project with a worker and `saga serve`."""

    def __init__(self, folder: Path, address: str, bank: AcceptingBank, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._address, self._bank, self._monkeypatch = folder, address, bank, monkeypatch
        self.made: CallbackProject | None = None

    @contextlib.asynccontextmanager
    async def open(self, timeout: str = "10m", definition: str = CHARGE) -> AsyncIterator[Client]:
        self.made = self.made or CallbackProject(self._folder, self._address, self._bank, definition, timeout)
        async with running_worker(self.made.project) as client, self.made.serving(client, self._monkeypatch):
            yield client


@pytest.fixture
def desk(temporal: TemporalServer, tmp_path: Path, bank: AcceptingBank, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path / "project", temporal.address, bank, monkeypatch)


async def begin(client: Client, **input: Any) -> str:
    return (await client.start("charge", input, id=f"pay-{uuid.uuid4()}")).id


async def test_the_first_conclusive_callback_is_the_outcome(desk: Desk, bank: AcceptingBank) -> None:
    async with desk.open() as client:
        saga = await begin(client)
        address = await bank.address()
        assert bank.requests[0]["json"] == {"answer_to": address}
        assert bank.requests[0]["headers"]["idempotency-key"] == f"{saga}/charge"
        assert (await call_back(address, {"status": "pending"})).status_code == 200
        waiting = (await client.show(saga))["steps"][0]["progress"]["doing"]
        assert waiting.startswith("waiting for the callback until 2")
        first, second = await asyncio.gather(call_back(address, BOOKED), call_back(address, {**BOOKED, "id": "c-2"}))
        story = await finished(client, saga)
        assert sorted((first.status_code, second.status_code)) == [200, 409]
        expected = "c-1" if first.status_code == 200 else "c-2"
        assert (story["state"], story["output"]) == ("COMPLETED", {"charge": expected})
        assert (await call_back(address, BOOKED)).status_code in (409, 410)
        history = str([event async for event in client.temporal.get_workflow_handle(saga).fetch_history_events()])
        assert address.rpartition("/")[2] not in history, "who reads histories cannot answer for the participant"


async def test_a_no_is_a_rejection_however_often_the_request_was_sent(desk: Desk, bank: AcceptingBank) -> None:
    bank.statuses = [503, 202]
    async with desk.open() as client:
        saga = await begin(client)
        await until(lambda: len(bank.requests) == 2)
        assert (await call_back(await bank.address(), {"status": "declined", "why": "no credit"})).status_code == 200
        story = await finished(client, saga)
    assert (story["state"], story["reason"]["kind"], story["steps"][0]["attempts"]) == ("COMPENSATED", "rejected", 2)
    assert "no credit" in story["reason"]["message"]
    assert bank.paths() == ["/charges", "/charges"], "there is nothing to undo"


async def test_a_callback_before_the_response(desk: Desk, bank: AcceptingBank) -> None:
    answers: list[int] = []

    def answer(request: dict[str, Any]) -> None:
        if request["path"] == "/charges":
            answers.append(httpx.post(request["headers"]["saga-callback"], json=BOOKED, timeout=60).status_code)

    bank.on_request = answer
    async with desk.open() as client:
        story = await finished(client, await begin(client))
    assert (story["state"], story["output"], answers) == ("COMPLETED", {"charge": "c-1"}, [200])


async def test_without_a_callback_in_time_the_outcome_is_unknown(desk: Desk, bank: AcceptingBank) -> None:
    """The undo has a callback, too; that of the forward request is late."""
    async with desk.open("2s") as client:
        saga = await begin(client)
        late = await bank.address()
        await bank.address("/refunds")
        assert (await call_back(late, BOOKED)).status_code == 410
        assert (await call_back(await bank.address("/refunds"), {})).status_code == 200
        story = await finished(client, saga)
    charge = story["steps"][0]
    assert (story["state"], story["reason"]["kind"], charge["outcome"]) == ("COMPENSATED", "unknown", "unknown")
    assert "no callback has arrived within 2s" in story["reason"]["message"]
    assert charge["compensation"]["state"] == "DONE"


@pytest.mark.parametrize("way", ["by update", "natively in a single batch"])
async def test_a_cancel_ends_the_wait(desk: Desk, bank: AcceptingBank, way: str) -> None:
    flags = [] if way == "by update" else [SINGLE_BATCH]
    with default_flags(*flags):
        async with desk.open() as client:
            saga = await begin(client)
            address = await bank.address()
            assert (await call_back(address, {"status": "pending"})).status_code == 200, "it waits"
            if way == "by update":
                await client.cancel(saga, reason="changed my mind")
            else:
                await client.temporal.get_workflow_handle(saga).cancel()
            refund = await bank.address("/refunds")
            assert (await call_back(address, BOOKED)).status_code == 410
            assert (await call_back(refund, {})).status_code == 200
            story = await finished(client, saga)
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "cancelled")
    assert bank.paths() == ["/charges", "/refunds"]


async def test_a_callback_during_a_pause_is_received(desk: Desk, bank: AcceptingBank) -> None:
    async with desk.open() as client:
        saga = await begin(client)
        address = await bank.address()
        assert (await call_back(address, {"status": "pending"})).status_code == 200
        await client.pause(saga, who="mia", reason="the shop is closed")
        assert (await call_back(address, BOOKED)).status_code == 200
        view = await client.view(saga)
        assert view.paused is not None
        assert [step.state for step in view.steps] == ["DONE", "RUNNING"], "the next step is held back"
        await client.resume(saga)
        assert (await finished(client, saga))["state"] == "COMPLETED"


async def test_an_undo_of_a_completed_saga_is_called_back(desk: Desk, bank: AcceptingBank) -> None:
    undoable = CHARGE.replace(", pivot: true}", ", effect: none}")
    async with desk.open(definition=undoable) as client:
        saga = await begin(client)
        await call_back(await bank.address(), BOOKED)
        assert (await finished(client, saga))["state"] == "COMPLETED"
        undone = asyncio.create_task(client.undo(saga, reason="returned", who="mia"))
        assert (await call_back(await bank.address("/refunds"), {})).status_code == 200
        await undone
        await until(lambda: _is(client, saga, "COMPENSATED"))


async def _is(client: Client, saga: str, state: str) -> bool:
    return (await client.show(saga))["state"] == state


async def test_a_worker_may_change_meanwhile(desk: Desk, bank: AcceptingBank) -> None:
    """Without a worker the participant is told to come again; the request is not sent again."""
    async with desk.open() as client:
        saga = await begin(client)
        address = await bank.address()
        assert (await call_back(address, {"status": "pending"})).status_code == 200
    assert desk.made is not None
    async with desk.open() as client:
        assert (await call_back(address, BOOKED)).status_code == 200
        assert (await finished(client, saga))["state"] == "COMPLETED"
    assert bank.paths() == ["/charges"]


async def test_forged_callbacks_are_refused(desk: Desk, bank: AcceptingBank) -> None:
    async with desk.open() as client:
        saga = await begin(client)
        address = await bank.address()
        base, _, token = address.rpartition("/")
        other = address.replace(f"/{saga}/", f"/{saga}x/")
        forged = (f"{base}/{token[:-1]}", f"{base}/{'0' * 76}", f"{base}/{token}x", other, f"{base}/undo/{token}")
        for wrong in forged:
            assert (await call_back(wrong, BOOKED)).status_code == 404, wrong
        async with httpx.AsyncClient() as http:
            assert (await http.post(address, content=b"x" * (MAX_CALLBACK_BYTES + 1))).status_code == 413
            assert (await http.post(address, content=b"\xff")).status_code == 400
        message = {"key": f"{saga}/charge", "response": {"headers": {}, "text": '{"status": "booked"}'}}
        run = client.temporal.get_workflow_handle(saga)
        for unsigned in (message, {**message, "signature": {"key": token[:12], "hmac": token[12:]}}, {}, {"key": 1}):
            with pytest.raises(WorkflowUpdateFailedError):
                await run.execute_update(CALLBACK_UPDATE, unsigned)
        assert (await client.show(saga))["state"] == "RUNNING"
        assert (await call_back(address, BOOKED)).status_code == 200
        assert (await finished(client, saga))["output"] == {"charge": "c-1"}


async def test_addresses_are_not_guessed_without_end(desk: Desk, bank: AcceptingBank) -> None:
    async with desk.open() as client:
        saga = await begin(client)
        address = await bank.address()
        statuses = [(await call_back(f"{address[:-20]}{number:020}", BOOKED)).status_code for number in range(30)]
        assert statuses[:MAX_WRONG_TOKENS] == [404] * MAX_WRONG_TOKENS
        assert statuses[-5:] == [429] * 5
        assert (await call_back(address, BOOKED)).status_code == 200, "a guesser keeps no participant out"
        assert (await finished(client, saga))["output"] == {"charge": "c-1"}


async def test_slow_callbacks_to_some_addresses_keep_no_others_out(desk: Desk, bank: AcceptingBank) -> None:
    async with desk.open() as client:
        slow_saga, saga = await begin(client), await begin(client)
        await until(lambda: len(bank.requests) == 2)
        addresses = {each: header for each in (slow_saga, saga) for header in bank.callbacks() if f"/{each}/" in header}
        slow = urlsplit(addresses[slow_saga])
        head = f"POST {slow.path} HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n{{".encode()
        async with contextlib.AsyncExitStack() as opened:
            readers: list[asyncio.StreamReader] = []
            for _ in range(MAX_CALLBACKS_AT_ONCE + 2):
                reader, writer = await asyncio.open_connection(slow.hostname, slow.port)
                opened.callback(writer.close)
                writer.write(head)
                readers.append(reader)
            refusals = [asyncio.create_task(reader.readline()) for reader in readers]
            done, _ = await asyncio.wait(refusals, timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
            assert b" 503 " in done.pop().result()
            assert (await call_back(addresses[saga], BOOKED)).status_code == 200
            assert (await call_back(addresses[slow_saga], BOOKED)).status_code == 200, "its own are not in its way"
            for waiting in refusals:
                waiting.cancel()


async def test_a_callback_that_cannot_be_read_leaves_the_outcome_unknown(desk: Desk, bank: AcceptingBank) -> None:
    async with desk.open("10m", CHARGE.replace("result: response.json.id", "result: response.json.id + 1")) as client:
        saga = await begin(client)
        assert (await call_back(await bank.address(), BOOKED)).status_code == 200
        assert (await call_back(await bank.address("/refunds"), {})).status_code == 200
        story = await finished(client, saga)
    assert (story["state"], story["steps"][0]["outcome"]) == ("COMPENSATED", "unknown")
    assert "bank has called back, and it is unknown with what" in story["reason"]["message"]


async def test_what_is_sent_in_vain_leaves_no_trace_in_the_history(desk: Desk, bank: AcceptingBank) -> None:
    """Temporal terminates a run with a long history, and takes no update after 2,000."""
    waiting = CHARGE.replace("  - {id: ship", "  - {id: pause, uses: wait, with: {signal: go}}\n  - {id: ship")
    async with desk.open(definition=waiting) as client:
        saga = await begin(client)
        address = await bank.address()
        assert (await call_back(address, BOOKED)).status_code == 200

        async def pauses() -> bool:
            states = {step["id"]: step["state"] for step in (await client.show(saga))["steps"]}
            return states["pause"] == "RUNNING"

        await until(pauses)  # until then its own events make the history longer
        run = client.temporal.get_workflow_handle(saga)
        before = (await run.describe()).history_length
        assert {(await call_back(address, BOOKED)).status_code for _ in range(10)} == {409}
        assert (await run.describe()).history_length <= before + 3
        await client.cancel(saga, reason="test")
        refund = await bank.address("/refunds")
        assert {(await call_back(address, BOOKED)).status_code for _ in range(10)} == {409}
        assert (await call_back(refund, {})).status_code == 200
        assert (await finished(client, saga))["state"] == "COMPENSATED"


async def test_a_late_callback_counts_for_a_retry(desk: Desk, bank: AcceptingBank) -> None:
    parking = CHARGE.replace("    timeout: 2m", "    on_failure: park\n    timeout: 2m")
    async with desk.open("1s", parking) as client:
        saga = await begin(client)
        address = await bank.address()
        assert (await finished(client, saga))["state"] == "PARKED"
        assert [(await call_back(address, BOOKED)).status_code for _ in range(3)] == [410] * 3
        story = await resolve(client, saga, "charge", "retry")
    assert (story["state"], story["output"], len(bank.requests)) == ("COMPLETED", {"charge": "c-1"}, 2)


async def test_a_late_no_is_believed_after_a_retry(desk: Desk, bank: AcceptingBank) -> None:
    parking = CHARGE.replace("    timeout: 2m", "    on_failure: park\n    timeout: 2m")
    async with desk.open("1s", parking) as client:
        saga = await begin(client)
        address = await bank.address()
        assert (await finished(client, saga))["state"] == "PARKED"
        assert (await call_back(address, {"status": "declined"})).status_code == 410
        story = await resolve(client, saga, "charge", "retry")
    assert (story["steps"][0]["outcome"], len(bank.requests)) == ("rejected", 2)


async def test_a_callback_counts_whatever_the_response_says(desk: Desk, bank: AcceptingBank) -> None:
    """The first response is lost after the callback has come; the second says that the key is in progress."""
    bank.statuses = [503, 409]

    def answer(request: dict[str, Any]) -> None:
        if not bank.requests:
            assert httpx.post(request["headers"]["saga-callback"], json=BOOKED, timeout=60).status_code == 200

    bank.on_request = answer
    async with desk.open() as client:
        story = await finished(client, await begin(client))
    assert (story["state"], story["output"]) == ("COMPLETED", {"charge": "c-1"})


@pytest.fixture(scope="module")
def small_history_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    server = TemporalServer(tmp_path_factory.mktemp("small-history"), extra=[EARLY]).start()
    yield server
    server.kill()


async def test_the_wait_survives_continue_as_new(
    small_history_server: TemporalServer, tmp_path: Path, bank: AcceptingBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path / "project", small_history_server.address, bank, monkeypatch)
    async with desk.open() as client:
        saga = await begin(client)
        address = await bank.address()
        run = client.temporal.get_workflow_handle(saga)
        first = (await run.describe()).run_id

        async def has_moved() -> bool:
            await run.signal("unexpected", 1)
            return (await run.describe()).run_id != first

        await until(has_moved)
        second = (await run.describe()).run_id
        for _ in range(12):  # they alone make the history long
            answer = await call_back(address, {"status": "pending"})
            assert answer.status_code == 200, answer.text
        await until(lambda: _has_moved(run, second))
        assert (await call_back(address, BOOKED)).status_code == 200
        story = await finished(client, saga)
    assert (story["state"], story["output"], bank.paths()) == ("COMPLETED", {"charge": "c-1"}, ["/charges"])


async def _has_moved(run: WorkflowHandle[Any, Any], first: str) -> bool:
    return (await run.describe()).run_id != first


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize(
    "head",
    [
        "ADDRESS\r\n\r\n",
        "HTTP/1.1 200 ADDRESS\r\ncontent-length: -1\r\n\r\n",
        "HTTP/1.1 500 ADDRESS\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n@ADDRESS\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx: \x00ADDRESS\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: ADDRESS\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: ADDRESS\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-encoding: ADDRESS\r\ncontent-length: 1\r\n\r\nx",
        "HTTP/1.1 302 Found\r\nlocation: ADDRESS\r\ncontent-length: 0\r\n\r\n",
    ],
    ids=["status line", "length", "reason", "header line", "header", "transfer", "digits", "encoding", "location"],
)
async def test_no_history_and_no_log_has_an_address_that_the_participant_repeats(
    desk: Desk, bank: AcceptingBank, caplog: pytest.LogCaptureFixture, head: str
) -> None:
    bank.heads = [head]
    async with desk.open() as client:
        saga = await begin(client)
        await until(lambda: len(bank.requests) == 2, "the next attempt")
        address = await bank.address()
        handle = client.temporal.get_workflow_handle(saga)
        async for event in handle.fetch_history_events():
            assert address.rpartition("/")[2] not in str(event)
        assert address.rpartition("/")[2] not in str(await client.show(saga))
        assert (await call_back(address, BOOKED)).status_code == 200
        assert (await finished(client, saga))["state"] == "COMPLETED"
        texts = [str(event) async for event in handle.fetch_history_events()]
    token = address.rpartition("/")[2]
    assert not [text for text in [*texts, caplog.text] if token[:40] in text]


async def test_an_input_of_numbers_with_large_exponents_costs_its_size(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, bank: AcceptingBank
) -> None:
    """The digest is made by who starts it again, and in the workflow task that makes the address of the callback."""
    lengths: list[int] = []

    def measured(text: str) -> str:
        lengths.append(len(text))
        return sha256_hex(text)

    monkeypatch.setattr(payloads, "sha256_hex", measured)
    numbers, id = [Decimal("1e999")] * 160_000, f"pay-{uuid.uuid4()}"
    async with desk.open() as client:
        for _ in range(2):
            assert (await client.start("charge", {"numbers": numbers}, id=id)).id == id
        assert (await call_back(await bank.address(), BOOKED)).status_code == 200
        assert (await finished(client, id))["state"] == "COMPLETED"
    assert max(lengths) > 1_000_000, "the digest of the input"
    assert max(lengths) < 10 * len(numbers)
