"""Numbers keep every digit on their way through Temporal, whatever converter the worker's client has.

The worker here has a client with the SDK's own converter, which reads JSON numbers as binary floats.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from temporalio import activity
from temporalio.client import Client as Temporal
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from sagas.protocol.payloads import ENVELOPE
from sagas.text.exact_json import decode_json
from sagas.workflow.json_payloads import json_payload, raw_json, read_payload
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle, resolve, row, run_saga

TEXT = (
    '{"amount":12.50,"cents":0.10,"long":123456789012345678901234567890.123456789,"int":9007199254740993,'
    '"wide":18446744073709551617,"small":1E-7,"exponent":1.5E+30,"zero":-0.0,"whole":12.0,"nested":[[1.10],{"a":2.20}]}'
)
"""As the engine writes it: without spaces, an exponent with a capital letter and a sign."""

NUMBERS: dict[str, Any] = decode_json(TEXT)


def same(value: Any, other: Any) -> bool:
    """Equal, with the same digits."""
    return json_payload(value).data == json_payload(other).data


async def result_bytes(client: Any, saga_id: str) -> bytes:
    """The bytes of the result, as any client gets it."""
    history = await handle(client, saga_id).fetch_history()
    return history.events[-1].workflow_execution_completed_event_attributes.result.payloads[0].data


async def test_a_document_arrives_as_it_was_sent(env: Environment) -> None:
    definition = """
        saga: travel
        steps:
          - {id: one, uses: work, with: {value: "${{ input }}"}, effect: none}
          - id: items
            uses: work
            for_each: "${{ [input.long, input.cents] }}"
            with: {value: "${{ item }}"}
            effect: none
          - {id: child, uses: saga, with: {name: part, input: "${{ steps.one.result.value }}"}}
        output: "${{ steps.child.result }}"
    """
    part = """
        saga: part
        steps:
          - {id: keep, uses: plain, with: {value: "${{ input }}"}, effect: none}
        output: "${{ steps.keep.result.value }}"
    """
    async with env.serving(definition, part) as client:
        queue = client.project.settings.temporal.task_queue
        id = f"travel-{uuid.uuid4()}"
        await client.temporal.start_workflow("travel", RawValue(json_payload(NUMBERS)), id=id, task_queue=queue)
        story = await finished(client, id)
        assert story["state"] == "COMPLETED"
        assert await result_bytes(client, id) == TEXT.encode()
    seen = {call.what: call.value for call in env.asked}
    assert same(seen["do one"], NUMBERS)
    assert same(seen["do keep"], NUMBERS)
    assert (str(seen["do items#0"]), str(seen["do items#1"])) == ("123456789012345678901234567890.123456789", "0.10")
    for name in ("input", "output"):
        assert same(story[name], NUMBERS), name
    assert same(row(story, "one")["result"]["value"], NUMBERS)


async def test_computed_numbers_are_numbers(env: Environment) -> None:
    definition = """
        saga: sums
        steps:
          - {id: a, uses: work, with: {value: "${{ [input.amount * 2, input.amount + input.whole] }}"}, effect: none}
          - id: b
            uses: work
            with: {value: "v${{ input.cents }}/${{ input.exponent }}/${{ input.int + 1 }}"}
            effect: none
        output: {sum: "${{ sum([input.amount, input.cents]) }}", text: "${{ string(input.amount) }}"}
    """
    async with env.serving(definition) as client:
        id = await begin(client, "sums", NUMBERS)
        await finished(client, id)
        assert await result_bytes(client, id) == b'{"sum":12.60,"text":"12.50"}'
    values = {call.what: call.value for call in env.asked}
    assert [str(row) for row in values["do a"]] == ["25.00", "24.50"]
    assert values["do b"] == "v0.10/1500000000000000000000000000000/9007199254740994"


async def test_a_worker_in_another_language_gets_and_sends_them(env: Environment) -> None:
    queue, got = f"foreign-{uuid.uuid4()}", []

    @activity.defn(dynamic=True)
    async def foreign(args: Sequence[RawValue]) -> RawValue:
        got.append(args[0].payload.data)
        if activity.info().activity_type == "refuse":
            raise ApplicationError("no", raw_json(NUMBERS), type="Rejected", non_retryable=True)
        return raw_json(NUMBERS)

    definition = f"""
        saga: abroad
        steps:
          - {{id: ask, uses: ask, task_queue: {queue}, with: {{all: "${{{{ input }}}}", price: 1.10}}, effect: none}}
          - id: refuse
            uses: refuse
            task_queue: {queue}
            with: {{all: "${{{{ steps.ask.result }}}}"}}
            effect: none
    """
    async with env.serving(definition) as client, Worker(client.temporal, task_queue=queue, activities=[foreign]):
        story = await run_saga(client, "abroad", NUMBERS)
    sent = [decode_json(record) for record in got]
    assert all(message.pop(ENVELOPE) for message in sent)
    assert f'"all":{TEXT}'.encode() in got[0]
    assert b'"price":1.10' in got[0]
    assert f'"all":{TEXT}'.encode() in got[1]
    assert story["state"] == "COMPENSATED"
    assert same(story["reason"]["details"], NUMBERS)


async def test_messages_keep_them(env: Environment) -> None:
    definition = """
        saga: waiting
        steps:
          - {id: ask, uses: wait, with: {signal: answer}}
          - id: hold
            uses: work
            with: {value: "${{ steps.ask.result.data }}"}
            effect: none
            on_failure: park
            retry: {max_attempts: 1}
        output: "${{ steps.hold.result }}"
    """
    env.plan["do hold"] = [RuntimeError("no")]
    async with env.serving(definition) as client:
        plain = await Temporal.connect(env.address)
        id = await begin(client, "waiting")
        await plain.get_workflow_handle(id).signal("answer", RawValue(json_payload(NUMBERS)))
        story = await finished(client, id)
        assert story["state"] == "PARKED"
        assert same(env.asked[-1].value, NUMBERS)
        story = await resolve(client, id, "hold", "done", result=NUMBERS)
        assert story["state"] == "COMPLETED"
        assert await result_bytes(client, id) == TEXT.encode()
        memo = (await handle(client, id).describe()).raw_description.workflow_execution_info.memo.fields["saga"]
        assert same(read_payload(memo)["output"], NUMBERS)


async def test_a_heartbeat_shows_them(env: Environment) -> None:
    go = asyncio.Event()

    async def slow(step: Any) -> Any:
        step.heartbeat({"done": Decimal("12.50")})
        await go.wait()

    env.plan["do a"] = [slow]
    definition = """
        saga: beating
        steps: [{id: a, uses: work, effect: none, heartbeat: 10s, timeout: 60s}]
    """
    async with env.serving(definition) as client:
        id = await begin(client, "beating")

        async def progress() -> Any:
            story = await client.show(id)
            return next((step.get("progress") for step in story["steps"] if step["id"] == "a"), None)

        assert str((await until(progress))["done"]) == "12.50"
        go.set()
        await finished(client, id)
