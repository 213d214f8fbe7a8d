"""`kafka.request` with a participant that knows nothing but the message format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.integration.messaging.request_world import World, open_world, row_of, until
from tests.kafka_broker import Broker
from tests.processes import TemporalServer
from tests.servers import DatabaseServer

ORDER = """
    saga: order
    steps:
      - id: reserve
        uses: kafka.request
        with: {topic: PREFIX-commands, value: {do: "${{ input.how }}", undo: "${{ input.undo }}", lines: 3}}
        timeout: 4s
        retry: {max_attempts: 2, initial_interval: 100ms}
        compensate:
          uses: kafka.request
          with: {topic: PREFIX-commands, value: {undo: "${{ input.undo }}"}}
      - id: next
        uses: require
        with: {that: "${{ input.go }}", message: it was not to be}
    input:
      type: object
      properties:
        how: {type: string, default: done}
        undo: {type: string, default: done}
        go: {type: boolean, default: true}
    output: {reserved: "${{ steps.reserve.result }}"}
"""


@pytest.fixture(scope="module")
async def world(
    tmp_path_factory: pytest.TempPathFactory, temporal: TemporalServer, kafka: Broker, postgres_server: DatabaseServer
) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("requests")
    async with open_world(folder, temporal, kafka, postgres_server, ORDER) as found:
        yield found


async def test_done(world: World) -> None:
    story = await world.play("order")
    assert story["state"] == "COMPLETED", story
    key = f"{story['id']}/reserve"
    assert story["output"] == {"reserved": {"id": key, "op": "do"}}
    [command] = await world.sent(story["id"])
    assert command["event_key"] == story["id"], "do and undo of one saga stay in order"
    assert (await world.row(key))["outcome"] == "done"
