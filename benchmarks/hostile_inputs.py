"""Hostile inputs, and the processes that they are sent to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Consumer, Producer
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowFailureError
from temporalio.common import RawValue
from temporalio.service import RPCError

from saga_activities.kafka.config import producer_config
from saga_workers.client import Client

LINE = "{:<10} {:<34} {:>9} {:>9} {:>9}"

TOPIC = "bench-orders"

TOKENS = {name: f"a-token-of-the-benchmark-{name}" for name in ("honest", "first", "second")}

SETTINGS = """
definitions = ["."]
actions = ["./say.py"]
[kafka]
prefix = "bench"
[serve]
starts_per_second = 1000
"""

ACTIONS = """
from sagas import action

@action("say")
async def say(text: str) -> None:
    return None
"""

DEFINITION = """
saga: order
id: "${{ input.id }}"
triggers: {kafka: {topic: bench-orders, id: "${{ trigger.value.id }}"}}
input:
  type: object
  required: [id]
  properties:
    id: {type: string}
    twice: {$ref: "#/$defs/twice"}
    node: {$ref: "#/$defs/node"}
    numbers: {type: array, items: {type: integer}}
    rows:
      type: array
      uniqueItems: true
      items: {type: object, properties: {sku: {type: string, pattern: "^([a-z]+-)*[0-9]+$"}, count: {default: 1}}}
    named: {type: object, additionalProperties: {enum: [a, b, c]}}
    rest: {type: array, contains: {const: x}, unevaluatedItems: {type: string, maxLength: 3}}
    loops: {type: array, items: {type: integer}}
  $defs:
    twice:
      anyOf:
        - {type: array, items: {$ref: "#/$defs/twice"}, contains: {const: 0}}
        - {type: array, items: {$ref: "#/$defs/twice"}}
    node:
      oneOf:
        - {type: string}
        - {type: array, items: {$ref: "#/$defs/node"}}
        - {type: object, additionalProperties: {$ref: "#/$defs/node"}}
steps:
  - id: say
    uses: say
    with: {text: "${{ string(default(input.loops, []).all(a, input.loops.all(b, a + b >= 0))) }}"}
    effect: none
"""


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


HOSTILE: Mapping[str, Any] = {
    "lists inside each other": {"twice": nested(90)},
    "alternatives of alternatives": {"node": [["x"] * 10] * 20_000 + [1]},
    "many whole numbers": {"numbers": [*range(120_000), "x"]},
    "more values than are read": {"numbers": [1] * 400_000},
    "rows with a pattern": {"rows": [{"sku": "a-" * 10 + "x"}] * 30_000},
    "names": {"named": {f"n{number}": "d" for number in range(60_000)}},
    "no element of its list": {"rest": ["yyyy"] * 120_000},
    "one long text": {"rows": [{"sku": "a-" * 480_000}]},
}
"""Inputs that the schema refuses, or that take too long to check; about one megabyte at most."""

ACCEPTED: Mapping[str, Any] = {"a loop in a loop": {"loops": list(range(300))}}
"""Valid inputs whose sagas take nearly as much as expressions may."""

ALL = {**HOSTILE, **ACCEPTED}


def make_project(folder: Path) -> None:
    tokens = "".join(
        f'[serve.tokens.{name}]\nsecret = {{env = "BENCH_{name.upper()}"}}\nscopes = ["start", "read"]\n'
        for name in TOKENS
    )
    (folder / "saga.toml").write_text(SETTINGS + tokens)
    (folder / "say.py").write_text(ACTIONS)
    (folder / "order.saga.yaml").write_text(DEFINITION)


class Stage:
    """The processes that inputs are sent to."""

    def __init__(self, client: Client, http: httpx.AsyncClient, pids: Mapping[str, int]) -> None:
        self.client = client
        self.http = http
        self.pids = pids
        self.kafka = client.project.settings.kafka
        self.producer = Producer(producer_config(self.kafka))
        self._dead = Consumer(
            {"bootstrap.servers": self.kafka.servers, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
        )
        self._dead.subscribe([f"{TOPIC}.dlq"])

    async def over_http(self, document: Document, token: str = "honest") -> int:
        """Start a saga; returns the status of the response."""
        headers = {"Authorization": f"Bearer {TOKENS[token]}", "Content-Type": "application/json"}
        body = b'{"input":' + document.text + b"}"
        return (await self.http.post("/sagas/order", content=body, headers=headers)).status_code

    def produce(self, document: Document) -> float:
        """Write an event; returns when it was written."""
        self.producer.produce(TOPIC, document.text)
        assert self.producer.flush(60) == 0
        return time.time()

    async def over_kafka(self, document: Document) -> int:
        """Write an event that becomes a dead letter, and wait for it."""
        self.produce(document)
        while await asyncio.to_thread(self._dead.poll, 0.5) is None:
            pass
        return 0

    async def over_temporal(self, document: Document) -> int:
        """Start a saga as a client that checks nothing; it is refused. Its run ends if this is cancelled."""
        temporal, queue = self.client.temporal, self.client.project.settings.temporal.task_queue
        value = RawValue(Payload(metadata={"encoding": b"json/plain"}, data=document.text))
        try:
            with contextlib.suppress(WorkflowFailureError):
                await temporal.execute_workflow("order", value, id=document.id, task_queue=queue)
        except asyncio.CancelledError:
            with contextlib.suppress(RPCError):
                await temporal.get_workflow_handle(document.id).terminate("the benchmark ends")
            raise
        return 0

    def close(self) -> None:
        self._dead.close()


@dataclass(frozen=True, slots=True)
class Document:
    """An input with an id of its own, as JSON. It is encoded before the measurement: the senders of hostile inputs
    share a thread with those of the honest ones, which must not wait for it.
    """

    id: str
    text: bytes


def fresh(value: Mapping[str, Any]) -> Document:
    """The input with another id each time."""
    id = f"b-{uuid.uuid4().hex}"
    name = next((name for name, hostile in ALL.items() if hostile is value), None)
    rest = _rest(value) if name is None else _rest_of_hostile(name)
    return Document(id, b'{"id":"%s"%s' % (id.encode(), b"," + rest if rest != b"}" else rest))


@cache
def _rest_of_hostile(name: str) -> bytes:
    return _rest(ALL[name])


def _rest(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()[1:]
