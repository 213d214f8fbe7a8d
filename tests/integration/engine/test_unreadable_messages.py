"""Messages that no saga can read, from any client of Temporal, neither block a run nor are retried for ever."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client as Temporal
from temporalio.client import Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowFailureError, WorkflowHandle
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from sagas.builtins.signal_names import PARKED_SIGNAL
from sagas.input_limits import MAX_TASK_BYTES
from sagas.protocol.batch_record import (
    CANCEL_SIGNAL,
    CLOSED_SIGNAL,
    OPENED_SIGNAL,
    PAUSE_SIGNAL,
    PROGRESS_SIGNAL,
    RECORD_QUERY,
    BatchRecord,
)
from sagas.protocol.payloads import (
    BATCH_PREFIX,
    BATCH_WORKFLOW,
    DEFINITION_HEADER,
    GENERATION_HEADER,
    OWNER_HEADER,
)
from tests.integration.engine.environment import Environment, run_saga

WAITING = """
    saga: waiting
    input: {type: object, additionalProperties: true}
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: asked, uses: wait, with: {signal: answer, timeout: 1h}}
    output: "${{ steps.asked.result.data }}"
"""


def payload(data: bytes, encoding: bytes = b"json/plain") -> Payload:
    return Payload(metadata={"encoding": encoding}, data=data)


BROKEN = payload(b"{what")
ENCRYPTED = payload(b"\x01\x02", b"binary/encrypted")
BINARY = payload(b"\xff\xfe", b"binary/plain")
AT_BOUND = payload(b"[" * 100 + b"1" + b"]" * 100)
BEYOND_BOUND = payload(b"[" * 101 + b"1" + b"]" * 101)
REPEATED_NAME = b'{"a": 1, "a": 2}'
HALF_A_PAIR = payload(b'{"account": "\\ud800"}')
DEEP = payload(b"[" * 5_000 + b"]" * 5_000)
TASK_FAILED = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED


class Headers(Interceptor, OutboundInterceptor):
    """A client that sends headers with its starts."""

    def __init__(self, headers: Mapping[str, Payload]) -> None:
        self._headers = headers

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        OutboundInterceptor.__init__(self, next)
        return self

    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
        input.headers = {**input.headers, **self._headers}
        return await super().start_workflow(input)


async def test_a_message_that_cannot_be_read_is_ignored_and_blocks_nothing(env: Environment) -> None:
    async with env.serving(WAITING) as client:
        started = await client.start("waiting", {})
        run = client.temporal.get_workflow_handle(started.id)
        for broken in (
            BROKEN,
            ENCRYPTED,
            BINARY,
            DEEP,
            BEYOND_BOUND,
            HALF_A_PAIR,
            payload(b"[NaN]"),
            payload(b"[-Infinity]"),
        ):
            await run.signal("answer", RawValue(broken))
        for report in ({}, {"id": 5, "state": 1, "blocked": 2, "waits": 3}, {"id": "x", "residue": [5]}, {"id": []}):
            await run.signal(PARKED_SIGNAL, report)
        await run.signal("answer", RawValue(AT_BOUND))
        assert await started.result() == json.loads(AT_BOUND.data)


@pytest.mark.slow
async def test_a_result_of_another_worker_that_cannot_be_kept_is_left_out(env: Environment) -> None:
    queue = f"other-{uuid.uuid4()}"
    results = {
        "binary": BINARY,
        "deep": DEEP,
        "bound": AT_BOUND,
        "many": payload(b"[" + b"{}," * 400_000 + b"{}]"),
        "beyond": BEYOND_BOUND,
        "nan": payload(b"[NaN]"),
        "half": HALF_A_PAIR,
    }

    @activity.defn(dynamic=True)
    async def answer(_: Sequence[RawValue]) -> RawValue:
        return RawValue(results[activity.info().activity_type])

    steps = "".join(f"      - {{id: {name}, uses: {name}, task_queue: {queue}, effect: none}}\n" for name in results)
    definition = f"    saga: foreign\n    steps:\n{steps}    output: '${{{{ steps.nan.result }}}}'\n"
    async with env.serving(definition) as client, Worker(client.temporal, task_queue=queue, activities=[answer]):
        story = await run_saga(client, "foreign")
    (parked,) = story["parked"]
    assert "output: the result of nan cannot be used: NaN is not a JSON number" in parked["why"]
    returned = {row["id"]: row["result"] for row in story["steps"] if row["id"] != "bound"}
    assert returned.pop("half") == {"account": "\ud800"}
    assert {name: result["omitted"] for name, result in returned.items()} == dict.fromkeys(returned, "unreadable")
    assert returned["beyond"]["reason"] == "it is nested deeper than 100 levels"
    assert returned["nan"]["reason"] == "NaN is not a JSON number"
    assert returned["many"]["reason"] == "it has more than 100,000 values"


def large(text: bytes) -> Payload:
    """The text with white space around it: no workflow task reads so much."""
    return payload(text + b" " * MAX_TASK_BYTES)


async def test_a_large_input_is_read_by_the_activity_that_checks_it(env: Environment) -> None:
    text = "\\" * MAX_TASK_BYTES + "\u00e9"
    async with env.serving(WAITING) as client:
        plain = await Temporal.connect(env.address)
        queue = client.project.settings.temporal.task_queue
        run = await plain.start_workflow("waiting", {"given": text}, id=f"s-{uuid.uuid4()}", task_queue=queue)
        await run.signal("answer", {})
        await run.result()
        assert (await client.show(run.id))["input"] == {"given": text}
        events = [event async for event in run.fetch_history_events()]
        check, *_ = [event for event in events if event.HasField("activity_task_scheduled_event_attributes")]
        # The check may have to wait, and is sent to a worker again each time.
        assert check.activity_task_scheduled_event_attributes.input.ByteSize() < 1_000


@pytest.mark.sampled(keep=8)
@pytest.mark.parametrize(
    ("type", "input", "headers", "reason"),
    [
        ("waiting", BROKEN, {}, "the input cannot be read: it is not JSON: "),
        ("waiting", DEEP, {}, "the input cannot be read: it is nested deeper than 100 levels"),
        ("waiting", payload(b'"\xff"'), {}, "the input cannot be read: it is not UTF-8"),
        ("waiting", BEYOND_BOUND, {}, "the input cannot be read: it is nested deeper than 100 levels"),
        ("waiting", large(b"{"), {}, "the input cannot be read: it is not JSON: "),
        ("waiting", large(DEEP.data), {}, "the input cannot be read: it is nested deeper than 100 levels"),
        ("waiting", large(BEYOND_BOUND.data), {}, "the input cannot be read: it is nested deeper than 100 levels"),
        ("waiting", large(HALF_A_PAIR.data), {}, "the input cannot be read: it contains half a surrogate pair"),
        ("waiting", large(b'"\xff"'), {}, "the input cannot be read: it is not UTF-8"),
        ("waiting", payload(REPEATED_NAME), {}, "the input cannot be read: the name 'a' appears twice in one object"),
        ("waiting", large(REPEATED_NAME), {}, "the input cannot be read: the name 'a' appears twice in one object"),
        ("saga.bulk", BEYOND_BOUND, {}, "the input of saga.bulk is not a list of sagas"),
        ("saga.bulk", DEEP, {}, "the input of saga.bulk cannot be read: it is nested deeper than"),
        ("waiting", HALF_A_PAIR, {}, "the input cannot be read: it contains half a surrogate pair"),
        ("waiting", BINARY, {}, "the input cannot be read: unknown payload encoding"),
        ("waiting", payload(b"{}"), {DEFINITION_HEADER: BROKEN}, "is not one of this worker's project"),
        ("waiting", payload(b"{}"), {DEFINITION_HEADER: DEEP}, "is not one of this worker's project"),
        ("waiting", payload(b"{}"), {DEFINITION_HEADER: payload(b"{}")}, "is not one of this worker's project"),
        ("waiting", payload(b"{}"), {GENERATION_HEADER: payload(b'"x"')}, "the header saga-generation is not a number"),
        ("waiting", payload(b"{}"), {GENERATION_HEADER: payload(b"1e400")}, "saga-generation is not a number"),
        ("waiting", payload(b"{}"), {GENERATION_HEADER: payload(b"99999999999")}, "saga-generation is not a number"),
        ("saga.notify", payload(b"5"), {}, "is started by a saga only"),
        ("saga.notify", payload(b"5"), {OWNER_HEADER: BINARY}, "the header saga-owner is not the id of a saga"),
        ("saga.notify", payload(b"5"), {OWNER_HEADER: DEEP}, "the header saga-owner is not the id of a saga"),
        (
            "saga.notify",
            payload(b"5"),
            {OWNER_HEADER: payload(b"[5]")},
            "the header saga-owner is not the id of a saga",
        ),
        ("saga.notify", payload(b"5"), {OWNER_HEADER: payload(b'"s"')}, "the input of saga.notify is not a notific"),
        ("saga.notify", payload(b"{}"), {OWNER_HEADER: payload(b'"s"')}, "the input of saga.notify is not a notific"),
    ],
)
async def test_a_start_that_cannot_be_read_is_refused(
    env: Environment, type: str, input: Payload, headers: Mapping[str, Payload], reason: str
) -> None:
    async with env.serving(WAITING) as client:
        plain = await Temporal.connect(env.address, interceptors=[Headers(headers)])
        queue = client.project.settings.temporal.task_queue
        with pytest.raises(WorkflowFailureError) as failed:
            await plain.execute_workflow(type, RawValue(input), id=f"s-{uuid.uuid4()}", task_queue=queue)
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "SagaRefused"
    assert reason in cause.message
    assert env.log() == []


REPORT = BatchRecord("b", saga="waiting", client="one", total=5)
HOSTILE = (
    BROKEN,
    ENCRYPTED,
    BINARY,
    DEEP,
    BEYOND_BOUND,
    payload(b'{"total": NaN}'),
    payload(b"[" + b"1" * 4_500 + b"]"),
)


@pytest.mark.parametrize(
    ("input", "reason"),
    [
        (BROKEN, "the input of saga.batch cannot be read: it is not JSON: "),
        (BINARY, "the input of saga.batch cannot be read: unknown payload encoding"),
        (DEEP, "the input of saga.batch cannot be read: it is nested deeper than 100 levels"),
        (BEYOND_BOUND, "the input of saga.batch cannot be read: it is nested deeper than 100 levels"),
        (payload(b'{"total": NaN}'), "the input of saga.batch cannot be read: NaN is not a JSON number"),
        (payload(b"[" + b"1" * 4_100 + b"]"), "… has more than 4,000 digits"),
    ],
)
async def test_a_record_of_a_batch_that_cannot_be_read_is_refused(
    env: Environment, input: Payload, reason: str
) -> None:
    async with env.serving(WAITING) as client:
        queue = client.project.settings.temporal.task_queue
        id = f"{BATCH_PREFIX}{uuid.uuid4()}"
        run = await client.temporal.start_workflow(BATCH_WORKFLOW, RawValue(input), id=id, task_queue=queue)
        with pytest.raises(WorkflowFailureError) as failed:
            await run.result()
        cause = failed.value.cause
        assert isinstance(cause, ApplicationError)
        assert cause.type == "SagaRefused"
        assert reason in cause.message
        assert not [event async for event in run.fetch_history_events() if event.event_type == TASK_FAILED]


async def test_the_record_of_a_batch_ignores_signals_that_it_cannot_read(env: Environment) -> None:
    async with env.serving(WAITING) as client:
        queue = client.project.settings.temporal.task_queue
        id = f"{BATCH_PREFIX}{uuid.uuid4()}"
        run = await client.temporal.start_workflow(BATCH_WORKFLOW, REPORT.to_json(), id=id, task_queue=queue)
        for name in (OPENED_SIGNAL, PROGRESS_SIGNAL, CLOSED_SIGNAL, PAUSE_SIGNAL, CANCEL_SIGNAL, "unheard of"):
            for broken in HOSTILE:
                await run.signal(name, RawValue(broken))
        assert await run.query(RECORD_QUERY) == {**REPORT.to_json(), "id": id.removeprefix(BATCH_PREFIX)}
        await run.signal(PAUSE_SIGNAL, RawValue(payload(b'{"by": "m\\udcefa"}')))
        assert (await run.query(RECORD_QUERY))["by"] == "m?a (unverified)"
        await run.signal(CLOSED_SIGNAL, replace(REPORT, stopped="no file \udce4.jsonl").to_json())
        ended = await run.result()
        assert (ended["state"], ended["stopped"], ended["client"]) == ("STOPPED", "no file ?.jsonl", "one")
        assert not [event async for event in run.fetch_history_events() if event.event_type == TASK_FAILED]


async def test_a_cancel_with_words_that_are_no_strings_is_a_cancel(env: Environment) -> None:
    async with env.serving(WAITING) as client:
        started = await client.start("waiting", {})
        run = client.temporal.get_workflow_handle(started.id)
        assert await run.execute_update("cancel", {"reason": {"a": [1]}, "who": 5}) in ("accepted", "recorded")
        with pytest.raises(WorkflowFailureError):
            await run.result()
        reason = (await client.view(started.id)).reason
    assert reason is not None
    assert reason.kind == "cancelled"
    assert reason.message is None or isinstance(reason.message, str)
    assert "[1]" not in str(reason)


async def test_an_input_that_python_reads_but_cannot_write_again_is_refused(env: Environment) -> None:
    """How deep that is depends on the stack at the time: a few levels below the recursion limit."""
    async with env.serving(WAITING) as client:
        plain = await Temporal.connect(env.address)
        queue = client.project.settings.temporal.task_queue
        for levels in range(955, 990):
            input = RawValue(payload(b"[" * levels + b"]" * levels))
            with pytest.raises(WorkflowFailureError) as failed:
                await plain.execute_workflow("waiting", input, id=f"s-{uuid.uuid4()}", task_queue=queue)
            assert "the input cannot be read: " in str(failed.value.cause)
