"""A participant on Kafka that keeps all of its promises, or all but the one of a named check."""

from __future__ import annotations

import itertools
import json
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from saga_workers.participant.trial import COPIES
from tests.helpers.kafka_broker import Broker

PARTITIONS = COPIES
"""Of the topic of commands: concurrent duplicates then have a partition each, and one key otherwise has only one."""

ARRIVAL_SECONDS = 0.25
"""How long a batch waits for duplicates of a command, on a machine that is busy."""

Reply = tuple[str, Any]
"""`sagaoutcome` and the value."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command as the participant reads it."""

    partition: int
    headers: dict[str, str]
    body: Any

    @property
    def key(self) -> str:
        return self.headers["sagakey"]

    @property
    def op(self) -> str:
        return self.headers["sagaop"]


class FaultyResponder:
    """``fault`` is the name of the check that it fails; None: it passes all of them. ``app`` counts its effects.

    Two faults that no single check describes: ``token`` replaces the one of each command, and without
    ``repeats_replies`` nothing is replied to a key that comes again.
    """

    def __init__(self, fault: str | None = None, *, token: str | None = None, repeats_replies: bool = True) -> None:
        self.fault = fault
        self.token = token
        self.repeats_replies = repeats_replies
        self.app = Starlette(routes=[Route("/count", self.on_count)])
        self.replies: dict[str, tuple[Any, Reply]] = {}
        self.effects: dict[int, str] = {}
        self.refused: set[str] = set()
        self.undone: set[str] = set()
        self.rejected: set[str] = set()
        self.confirmed: set[str] = set()
        self.ids = itertools.count(1)
        self.last_do: Any = None
        self.deliveries: defaultdict[str, list[Command]] = defaultdict(list)

    async def on_count(self, _: Request) -> JSONResponse:
        return JSONResponse(len(self.effects))

    def run(self, kafka: Broker, topic: str, stopping: threading.Event) -> None:
        """Reply to the commands of ``topic``, from its beginning, in the calling thread."""
        from confluent_kafka import Consumer, Producer, TopicPartition

        producer = Producer({"bootstrap.servers": kafka.address, "enable.idempotence": True, "linger.ms": 0})
        group = {"group.id": f"{topic}-responder", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": kafka.address, "isolation.level": "read_committed", **group})
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        try:
            while not stopping.is_set():
                batch = self.next_batch(consumer)
                # All commands of a batch look for their key before the first of them has its effect: the fault
                # "concurrent duplicates", if a batch has more than one of them.
                replies = [self.replies.get(command.key) for command in batch]
                for command, stored in zip(batch, replies, strict=True):
                    comes_again = command.key in self.deliveries
                    outcome, value = self.reply(command, stored)
                    if comes_again and not self.repeats_replies:
                        continue
                    headers: dict[str, str | bytes | None] = {
                        "sagakey": command.key,
                        "sagatoken": self.token or command.headers["sagatoken"],
                        "sagaoutcome": outcome,
                    }
                    producer.produce(command.headers["sagareplyto"], json.dumps(value).encode(), headers=headers)
                producer.flush()
        finally:
            consumer.close()

    def next_batch(self, consumer: Any) -> list[Command]:
        """The next command, if there is one; with the fault "concurrent duplicates", those that arrive with it."""
        messages = [message for message in [consumer.poll(0.05)] if message is not None]
        batch = [_command(message) for message in messages if message.error() is None]
        is_new = any(row.op == "do" and row.key not in self.replies for row in batch)
        if is_new and self.fault == "concurrent duplicates":
            more = consumer.consume(COPIES - 1, ARRIVAL_SECONDS)
            batch += [_command(message) for message in more if message.error() is None]
        return batch

    def reply(self, command: Command, stored: tuple[Any, Reply] | None) -> Reply:
        """The reply to a command; ``stored`` are the body and the reply of the first one with its key."""
        self.deliveries[command.key].append(command)
        if command.op == "do":
            return self.on_do(command, stored)
        return self.on_undo(command, stored) if command.op == "undo" else self.on_confirm(command)

    def on_do(self, command: Command, stored: tuple[Any, Reply] | None) -> Reply:
        # The fault must not show in other checks: only a command that is exactly like the one before is repeated.
        this = (command.key, command.partition, command.body)
        is_repeated, self.last_do = self.fault == "same key twice" and this == self.last_do, this
        if command.key in self.refused:
            return "rejected", {"reason": "it was undone"}
        if command.key in self.rejected and self.fault != "remembered rejection":
            return "rejected", {"reason": "at most 100"}
        if stored is None and command.body["nights"] > 100:
            self.rejected.add(command.key)
            return "rejected", {"reason": "at most 100"}
        if stored is not None:
            body, reply = stored
            if body == command.body:
                if is_repeated:
                    self.effects[next(self.ids)] = command.key  # with the first reply: only a count shows it
                return reply
            if self.fault != "same key, other arguments":
                return "rejected", {"reason": "the key was used with other arguments"}
        id = next(self.ids)
        self.effects[id] = command.key
        return self.store(command, ("done", {"id": id}))

    def on_undo(self, command: Command, stored: tuple[Any, Reply] | None) -> Reply:
        if stored is not None and self.fault != "undo twice":
            return stored[1]
        key = command.headers["sagaundoes"]
        released = [id for id, owner in self.effects.items() if owner == key]
        for id in released:
            del self.effects[id]
        self.undone.add(key)
        if self.fault == ("do after undo" if key in self.replies else "undo before do"):
            self.replies.pop(key, None)
        else:
            self.refused.add(key)
        return self.store(command, ("done", {"released": len(released), "receipt": next(self.ids)}))

    def on_confirm(self, command: Command) -> Reply:
        key = command.headers["sagaconfirms"]
        if key in self.undone and self.fault != "confirm after undo":
            return "failed", {"reason": "it was undone"}
        if key in self.confirmed and self.fault == "confirm twice":
            return "failed", {"reason": "it is confirmed"}
        self.confirmed.add(key)
        return "done", {"confirmed": True}

    def store(self, command: Command, reply: Reply) -> Reply:
        self.replies[command.key] = (command.body, reply)
        return reply


def _command(message: Any) -> Command:
    headers = {name: text.decode() for name, text in message.headers()}
    return Command(message.partition(), headers, json.loads(message.value()))
