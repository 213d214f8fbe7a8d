"""An input is normalised before anything sees it, also for clients that know nothing of its schema."""

from __future__ import annotations

import uuid
from decimal import Decimal

from temporalio.common import RawValue

from saga_workers.temporal.temporal_client import start_headers, to_header
from sagas.definition.snapshot import to_snapshot
from sagas.protocol.payloads import DEFINITION_HEADER
from sagas.text.exact_json import decode_json
from sagas.workflow.json_payloads import json_payload
from tests.helpers.local_worker import finished
from tests.integration.engine.environment import Environment

PART = """
    saga: part
    input:
      properties:
        n: {$ref: "#count"}
        price: {type: number}
        unit: {default: kg}
      $defs: {count: {$anchor: count, type: integer}}
    labels: {n: "${{ input.n }}"}
    steps:
      - {id: keep, uses: work, with: {value: "${{ [input.n, input.price, input.unit] }}"}, effect: none}
    output: {n: "${{ input.n }}", price: "${{ input.price }}"}
"""
WHOLE = """
    saga: whole
    input: {properties: {list: {type: array, items: {type: number}}}}
    steps:
      - {id: part, uses: saga, with: {name: part, input: {n: "${{ input.list[0] }}", price: "${{ input.list[1] }}"}}}
    output: "${{ steps.part.result }}"
"""


async def test_the_input_of_a_foreign_client_and_of_a_nested_saga_is_normalised(env: Environment) -> None:
    async with env.serving(PART, WHOLE) as client:
        queue = client.project.settings.temporal.task_queue
        for saga, text in (("part", '{"n": 1.2e1, "price": 12.00}'), ("whole", '{"list": [12.000, 12.00]}')):
            id = f"{saga}-{uuid.uuid4()}"
            value = RawValue(json_payload(decode_json(text)))
            await client.temporal.start_workflow(saga, value, id=id, task_queue=queue)
            story = await finished(client, id)
            assert story["state"] == "COMPLETED", story
            assert (type(story["output"]["n"]), str(story["output"]["price"])) == (int, "12.00")
            if saga == "part":
                assert story["input"] == {"n": 12, "price": Decimal("12.00"), "unit": "kg"}
                assert type(story["input"]["n"]) is int
                assert story["labels"] == {"n": "12"}
    given = [call.value for call in env.asked if call.what == "do keep"]
    assert [[str(part) for part in value] for value in given] == [["12", "12.00", "kg"]] * 2


async def test_the_input_of_a_start_with_a_definition_is_normalised(env: Environment) -> None:
    """A client that knows the definition, and not its schema."""
    async with env.serving(PART) as client:
        queue, definition = client.project.settings.temporal.task_queue, client.project.definition("part")
        id, value = f"part-{uuid.uuid4()}", RawValue(json_payload(decode_json('{"n": 1.2e1, "price": 1}')))
        with start_headers({DEFINITION_HEADER: to_header({"definition": to_snapshot(definition)})}):
            await client.temporal.start_workflow("part", value, id=id, task_queue=queue)
        story = await finished(client, id)
    assert story["input"] == {"n": 12, "price": 1, "unit": "kg"}
    assert type(story["input"]["n"]) is int


async def test_an_invalid_input_of_a_foreign_client_runs_nothing_and_is_not_quoted(env: Environment) -> None:
    definition = """
        saga: secret
        input:
          properties: {who: {$ref: "#p"}}
          $defs: {p: {$anchor: p, type: string, maxLength: 3, x-sensitive: true}}
        steps:
          - {id: keep, uses: work, effect: none}
    """
    async with env.serving(definition) as client:
        queue = client.project.settings.temporal.task_queue
        id = f"secret-{uuid.uuid4()}"
        await client.temporal.start_workflow(
            "secret", RawValue(json_payload({"who": "4111 hush"})), id=id, task_queue=queue
        )
        story = await finished(client, id)
    assert story["state"] == "FAILED"
    assert "input.who: the value has more characters than 3" in story["reason"]["message"]
    assert "hush" not in str(story)
    assert env.asked == []
