"""Workers and clients in Go, TypeScript and Java: the complete examples of docs/how-to/other-languages.

Each program knows the SDK of its language and nothing of this project. The sagas are run by a worker of this process.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.common import WorkflowIDReusePolicy

from saga_workers.client import Client
from sagas.text.exact_json import decode_json, encode_json
from sagas.workflow.json_payloads import raw_json
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.interop.language_programs import DEFINITION, LANGUAGES, Language, Programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

EMPTY = b'{"flight":"AB 12","price":12.10,"invoice":9007199254740993,"seats":[],"voucher":null}'
FILLED = (
    '{"flight":"ÅB \\"34\\"","price":12345678901234567890.123456789,"invoice":-9223372036854775807,'
    '"seats":["1A","1B"],"voucher":""}'
).encode()
APPROVAL = b'{"approved":true,"limit":0.10}'


def booking(flight: str) -> bytes:
    return EMPTY.replace(b"AB 12", flight.encode())


@pytest.fixture(scope="module", params=LANGUAGES, ids=lambda language: language.name)
def programs(
    request: pytest.FixtureRequest, temporal: TemporalServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Programs]:
    """The built programs of one language, and its worker on a task queue of its own."""
    language: Language = request.param
    folder = tmp_path_factory.mktemp(language.name)
    built = Programs(language, folder, temporal.address, f"seats-{uuid.uuid4()}")
    built.build()
    built.start_worker()
    yield built
    assert built.stop_worker() in (0, 143), "SIGTERM ends the worker in order"


class Trial:
    """One running worker of the saga, and the programs of the other language."""

    def __init__(self, client: Client, programs: Programs) -> None:
        self.client, self.programs = client, programs
        self.queue = client.project.settings.temporal.task_queue

    async def start(self, input: bytes) -> str:
        """Start the saga with the client of the other language."""
        saga_id = f"booking-{uuid.uuid4()}"
        started = await self.programs.client("start", saga_id, input.decode(), task_queue=self.queue)
        assert started == {"started": saga_id}
        return saga_id

    async def start_here(self, input: bytes, saga: str = "booking", **options: Any) -> str:
        """Start a saga with Temporal's client for Python."""
        options.setdefault("id", f"{saga}-{uuid.uuid4()}")
        document = raw_json(decode_json(input))
        await self.client.temporal.start_workflow(saga, document, task_queue=self.queue, **options)
        return options["id"]

    async def wait(self, saga_id: str) -> Any:
        return await self.programs.client("wait", saga_id)

    def answers(self, saga_id: str) -> list[tuple[str, str]]:
        return [(entry["operation"], entry["answer"]) for entry in self.programs.requests(saga_id)]

    async def answered(self, saga_id: str, answer: tuple[str, str], times: int = 1) -> None:
        """Wait until the other language's worker has given an answer so often."""
        async with asyncio.timeout(60):
            while self.answers(saga_id).count(answer) < times:  # noqa: ASYNC110 - a file of another process
                await asyncio.sleep(0.1)

    async def output_bytes(self, saga_id: str) -> bytes:
        history = await self.client.temporal.get_workflow_handle(saga_id).fetch_history()
        return history.events[-1].workflow_execution_completed_event_attributes.result.payloads[0].data


def definitions(queue: str) -> dict[str, str]:
    """The saga of the page with time for a busy machine: its own timeouts for what is to time out, with and without
    a probe.
    """
    text = DEFINITION.replace("task_queue: seats", f"task_queue: {queue}").replace(
        "with: {}}", "with: {}, timeout: 60s}"
    )
    impatient = text.replace("saga: booking", "saga: impatient")
    lines = text.replace("saga: booking", "saga: unprobed").splitlines(keepends=True)
    unprobed = "".join(line for line in lines if not line.lstrip().startswith(("probe:", "settle:")))
    return {"booking": text.replace("timeout: 3s", "timeout: 60s"), "impatient": impatient, "unprobed": unprobed}


@pytest.fixture
async def trial(programs: Programs, temporal: TemporalServer, tmp_path: Path) -> AsyncIterator[Trial]:
    project = make_project(tmp_path, definitions(programs.queue), [], address=temporal.address)
    async with running_worker(project) as client:
        yield Trial(client, programs)


async def test_values_keep_every_digit_in_both_directions(trial: Trial) -> None:
    for input in (EMPTY, FILLED):
        saga_id = await trial.start(input)
        await trial.programs.client("approve", saga_id, APPROVAL.decode())
        seen = await trial.wait(saga_id)
        output = b'{"held":%s,"approval":%s}' % (input, APPROVAL)
        assert encode_json(seen) == b'{"completed":%s}' % encode_json(decode_json(output))
        assert await trial.output_bytes(saga_id) == encode_json(decode_json(output))
        [entry] = trial.programs.requests(saga_id)
        call = entry["request"].pop("_saga")
        assert encode_json(entry["request"]) == encode_json(decode_json(input))
        assert (call["key"], call["forward_key"]) == (f"{saga_id}/hold", f"{saga_id}/hold")
        again = await trial.programs.client("start", saga_id, EMPTY.decode(), task_queue=trial.queue)
        assert again == {"already_started": saga_id}


async def test_a_rejection_is_definite_and_its_details_are_typed(trial: Trial) -> None:
    saga_id = await trial.start(booking("FULL"))
    seen = await trial.wait(saga_id)
    assert seen["failed"] == "SagaCompensated"
    assert seen["message"] == "undone: rejected at hold: the flight is sold out"
    reason = seen["story"]["reason"]
    assert (seen["story"]["state"], reason["kind"], reason["step"]) == ("COMPENSATED", "rejected", "hold")
    details = b'{"code":"sold-out","price":12.10,"invoice":9007199254740993,"seats":[],"voucher":null}'
    assert encode_json(reason["details"]) == details
    assert trial.answers(saga_id) == [("hold", "rejected")], "nothing happened, so nothing is undone"


async def test_the_undo_names_the_key_of_the_effect(trial: Trial) -> None:
    saga_id = await trial.start(EMPTY)
    await trial.programs.client("approve", saga_id, '{"approved":false,"limit":0}')
    seen = await trial.wait(saga_id)
    reason = seen["story"]["reason"]
    assert (reason["kind"], reason["step"], reason["message"]) == (
        "rejected",
        "approved",
        "the booking was not approved",
    )
    held, released = trial.programs.requests(saga_id)
    assert (held["answer"], released["answer"]) == ("held", "released")
    assert held["request"]["_saga"]["key"] == released["request"]["_saga"]["forward_key"] == f"{saga_id}/hold"
    assert released["request"]["_saga"]["key"] == f"{saga_id}/hold/undo"
    await trial.start_here(EMPTY, id=saga_id, id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE)
    story = await finished(trial.client, saga_id)
    assert (story["state"], story["reason"]["kind"], story["steps"][0]["outcome"]) == ("COMPENSATED", "late", "late")
    assert trial.answers(saga_id)[2:] == [("hold", "late")]


async def test_a_cancel_undoes_what_was_done(trial: Trial) -> None:
    saga_id = await trial.start(EMPTY)
    await trial.answered(saga_id, ("hold", "held"))
    assert await trial.programs.client("cancel", saga_id, "the guest is ill") == {"cancel": "accepted"}
    seen = await trial.wait(saga_id)
    assert (seen["failed"], seen["story"]["state"]) == ("SagaCompensated", "COMPENSATED")
    assert (seen["story"]["reason"]["kind"], seen["story"]["reason"]["message"]) == ("cancelled", "the guest is ill")
    assert trial.answers(saga_id) == [("hold", "held"), ("release", "released")]


async def test_a_probe_finds_an_effect_whose_answers_were_lost(trial: Trial) -> None:
    saga_id = await trial.start(booking("LOST"))
    await trial.programs.client("approve", saga_id, APPROVAL.decode())
    seen = await trial.wait(saga_id)
    assert encode_json(seen["completed"]["held"]) == booking("LOST")
    assert trial.answers(saga_id) == [("hold", "held"), ("hold", "held"), ("find", "done")]


async def test_an_attempt_that_comes_after_the_undo_or_the_probe_is_refused(trial: Trial) -> None:
    probed, unprobed = [await trial.start_here(booking("SLOW"), saga) for saga in ("impatient", "unprobed")]
    for seen in await asyncio.gather(trial.wait(probed), trial.wait(unprobed)):
        assert (seen["failed"], seen["story"]["state"]) == ("SagaCompensated", "COMPENSATED")
    await asyncio.gather(*(trial.answered(saga_id, ("hold", "late"), 2) for saga_id in (probed, unprobed)))
    assert set(trial.answers(probed)) == {("find", "absent"), ("hold", "late")}, "a sealed key needs no undo"
    assert trial.answers(unprobed) == [("release", "released"), ("hold", "late"), ("hold", "late")]


async def test_a_number_that_a_type_cannot_hold_ends_before_the_effect(trial: Trial) -> None:
    """An integer above 2^63 - 1: an int64 and a long refuse it, and TypeScript has no smallest or largest number."""
    saga_id = await trial.start_here(EMPTY.replace(b"9007199254740993", b"9223372036854775808"))
    if trial.programs.language == "typescript":
        await trial.answered(saga_id, ("hold", "held"))
        assert encode_json(trial.programs.requests(saga_id)[0]["request"]["invoice"]) == b"9223372036854775808"
        await trial.programs.client("cancel", saga_id, "")
    story = await finished(trial.client, saga_id)
    assert story["state"] == "COMPENSATED"
    if trial.programs.language != "typescript":
        assert set(trial.answers(saga_id)) == {("find", "absent")}, "a probe needs the key only"


async def test_a_refused_start_is_told_apart(trial: Trial) -> None:
    saga_id = await trial.start(booking(""))
    seen = await trial.wait(saga_id)
    assert (seen["failed"], seen.get("story")) == ("SagaRefused", None)
    assert "flight" in seen["message"]
    assert trial.answers(saga_id) == []
