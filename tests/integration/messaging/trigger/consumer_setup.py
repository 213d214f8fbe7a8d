"""One database with the engine's tables, and consumers of it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sqlalchemy import text

from saga_activities.connections import DatabaseConnections
from saga_workers.trigger.commands import CommandHandler
from saga_workers.trigger.consumed_record import ConsumedRecord
from saga_workers.trigger.dead_letters import DeadLetters
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from sagas import Message, consumer
from sagas.actions.consumers import HANDLER_ATTRIBUTE, message_id
from sagas.settings import KafkaSettings, SqlConnection

NOWHERE = KafkaSettings(bootstrap_servers="127.0.0.1:1")


class RawRecord:
    """A record as the client library gives it."""

    def __init__(self, topic: str, offset: int, value: Any, headers: Mapping[str, str]) -> None:
        self._topic, self._offset = topic, offset
        self._value = value if isinstance(value, bytes) else json.dumps(value).encode()
        self._headers = [(name, text.encode()) for name, text in headers.items()]

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return self._value

    def headers(self) -> list[tuple[str, bytes]]:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000


class ConsumerSetup:
    """One database with the engine's tables, and consumers of it: each as in a process of its own."""

    def __init__(self, url: str) -> None:
        self.databases = DatabaseConnections([SqlConnection(name="shop", url_setting=url)], pool_size=8)
        self.others = DatabaseConnections([SqlConnection(name="shop", url_setting=url)], pool_size=8)
        self.engine = self.databases.engine("shop")
        self.metrics = TriggerMetrics()
        self.topic = f"orders-{uuid.uuid4().hex[:8]}"
        self.name = f"note-{uuid.uuid4().hex[:8]}"

    def consuming(
        self, function: Callable[..., Any], settings: KafkaSettings = NOWHERE, *, other: bool = False, **options: Any
    ) -> CommandHandler:
        made = getattr(consumer(self.topic, connection="shop", name=self.name, **options)(function), HANDLER_ATTRIBUTE)
        databases = self.others if other else self.databases
        return CommandHandler(
            made,
            databases.guard("shop"),
            f"group-{self.name}",
            DeadLetters(settings, self.metrics),
            self.metrics,
            asyncio.Event(),
            max_bytes=10_000,
            threads=ThreadPoolExecutor(4),
        )

    def record(self, offset: int, value: Any, **headers: str) -> ConsumedRecord:
        return ConsumedRecord(RawRecord(self.topic, offset, value, headers))

    def message_id(self, offset: int) -> str:
        """The id of a record without one of its own."""
        return message_id({}, self.topic, 0, offset)

    async def rows(self, question: str, **values: Any) -> list[tuple[Any, ...]]:
        async with self.engine.connect() as connection:
            return [tuple(row) for row in await connection.execute(text(question), values)]

    async def effects(self) -> list[tuple[Any, ...]]:
        return await self.rows("select what, number from effect where consumer = :name order by number", name=self.name)

    async def inbox(self) -> list[tuple[Any, ...]]:
        question = "select event_id, status from saga_inbox where consumer = :name order by event_id"
        return await self.rows(question, name=self.name)

    async def outbox(self, topic: str) -> list[Any]:
        rows = await self.rows("select value from saga_outbox where topic = :topic order by id", topic=topic)
        return [json.loads(value) for (value,) in rows]


async def note(message: Message, name: str, what: str, number: int) -> None:
    statement = "insert into effect (consumer, what, number) values (:name, :what, :number)"
    await message.sql.execute(statement, name=name, what=what, number=number)
