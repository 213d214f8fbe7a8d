"""Sends commands of `kafka.request` without a saga, and receives their replies.

A command is the record that a relay publishes, and a reply is accepted as `saga trigger` accepts it.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from saga_activities.json_results import UnusableResult
from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError
from saga_activities.kafka.config import consumer_config, producer_config
from saga_activities.kafka.errors import classify_kafka_error
from saga_activities.kafka.record_codec import STEP_KEY_HEADER, MalformedRecord, decode_headers, raw_headers
from saga_activities.messaging.kafka_request import (
    MalformedReply,
    RefusedReply,
    RequestRow,
    build_command,
    command_id,
    decode_reply,
    new_token,
    outcome_of_reply,
    verify_sender,
    with_token,
)
from saga_activities.messaging.outbox import event_row
from saga_workers.relay.outbox_table import EventRow
from saga_workers.relay.publisher import encode_event
from saga_workers.topics.topic_creation import REPLY_PARTITIONS
from sagas.actions.message_headers import UnreadableHeader
from sagas.builtins.messaging import default_reply_topic
from sagas.errors import UsageError
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import Invocation
from sagas.settings import KafkaSettings

_POLL_SECONDS = 0.2


class KafkaCommands:
    """A producer of commands and a reader of their replies. ``timeout``: seconds until a reply counts as missing."""

    def __init__(self, settings: KafkaSettings, timeout: float) -> None:
        self._settings = settings
        self._timeout = timeout
        self._tokens: dict[str, str] = {}
        self._replies: defaultdict[str, asyncio.Queue[Outcome]] = defaultdict(asyncio.Queue)
        self._readers: dict[str, _ReplyReader] = {}
        self._producer: Any = None

    async def open(self) -> KafkaCommands:
        """Connect. Raises KafkaOperationError if Kafka does not respond, UsageError if none is configured."""
        from confluent_kafka import Producer

        await asyncio.to_thread(lambda: KafkaAdmin(self._settings).broker_count())
        self._producer = Producer(producer_config(self._settings))
        return self

    async def close(self) -> None:
        """Stop reading replies."""
        for reader in self._readers.values():
            await asyncio.to_thread(reader.stop)

    async def deliver(self, invocation: Invocation, copies: int = 1) -> list[Outcome]:
        """The command, ``copies`` times in as many partitions as there are; the outcome of the reply to each of them.

        Raises UsageError if the arguments are not a command or its topic does not exist, KafkaOperationError if the
        brokers do not take it.
        """
        reply_topic = invocation.arguments.get("reply_topic") or default_reply_topic(self._settings.prefix)
        command = build_command(invocation, reply_topic)
        partitions = await asyncio.to_thread(self._partitions, command.topic)
        await self._read_replies(reply_topic)
        token = self._tokens.setdefault(invocation.key, new_token())
        try:
            # With the id of the outbox: a participant may deduplicate by `ce_id`, which is the same on redelivery.
            identified = replace(with_token(command, token), id=command_id(invocation))
            row = event_row(identified, self._settings.max_message_bytes)
        except UnusableResult as error:
            raise UsageError(str(error)) from None
        record = encode_event(
            EventRow(
                0,
                row["event_id"],
                row["topic"],
                row["event_key"],
                row["value"],
                row["headers"],
                invocation.saga_id,
                invocation.entry,
                invocation.generation,
                time.time(),
                row["event_type"],
            ),
            f"/{self._settings.prefix}/participant-test",
        )
        queue = self._replies[invocation.key]
        while not queue.empty():  # a reply to an earlier delivery, sent twice
            queue.get_nowait()
        await asyncio.to_thread(self._produce, command.topic, record, copies, partitions)
        return await asyncio.gather(*(self._reply(queue) for _ in range(copies)))

    async def _reply(self, queue: asyncio.Queue[Outcome]) -> Outcome:
        try:
            async with asyncio.timeout(self._timeout):
                return await queue.get()
        except TimeoutError:
            failure = Failure("NoReply", f"no reply within {self._timeout:g} s")
            return Outcome("unknown", failure=failure)

    def _partitions(self, topic: str) -> int:
        """The present number of partitions, which the producer then also knows."""
        from confluent_kafka import KafkaException

        try:
            metadata = self._producer.list_topics(topic, timeout=self._timeout).topics[topic]
        except KafkaException as error:
            raise KafkaOperationError(f"Kafka, topic {topic}: {classify_kafka_error(error).reason}") from None
        if metadata.error is not None:
            raise UsageError(
                f"the topic {topic} does not exist", help="create it, or start the participant that creates it"
            )
        return len(metadata.partitions)

    def _produce(self, topic: str, record: Any, copies: int, partitions: int) -> None:
        failed: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        for number in range(copies):
            # One copy has the partition of its key, as the relay sends it. Several are concurrent in other partitions.
            place = {} if copies == 1 else {"partition": number % partitions}
            headers = list(record.headers)
            self._producer.produce(topic, record.value, record.key, headers=headers, on_delivery=delivered, **place)
        if self._producer.flush(self._timeout) or failed:
            reason = classify_kafka_error(failed[0]).reason if failed else f"no answer within {self._timeout:g} s"
            raise KafkaOperationError(f"Kafka, topic {topic}: the command was not taken: {reason}")

    async def _read_replies(self, topic: str) -> None:
        if topic not in self._readers:
            loop = asyncio.get_running_loop()

            def receive(key: str, outcome: Outcome) -> None:
                loop.call_soon_threadsafe(self._replies[key].put_nowait, outcome)

            reader = _ReplyReader(self._settings, topic, self._tokens, receive)
            await asyncio.to_thread(reader.start)
            self._readers[topic] = reader


class _ReplyReader:
    """Reads one reply topic from its end in a thread. ``receive`` gets the key and the outcome of our replies."""

    def __init__(self, settings: KafkaSettings, topic: str, tokens: dict[str, str], receive: Any) -> None:
        self._settings, self._topic, self._tokens, self._receive = settings, topic, tokens, receive
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"replies of {topic}", daemon=True)
        self._consumer: Any = None

    def start(self) -> None:
        """Begin at the present end of the topic, which is created if it is missing."""
        from confluent_kafka import Consumer, TopicPartition

        admin = KafkaAdmin(self._settings)
        admin.ensure_topic(self._topic, REPLY_PARTITIONS)
        group = f"{self._settings.prefix}-replies-participant-test-{uuid.uuid4().hex[:8]}"
        self._consumer = Consumer(consumer_config(self._settings, group))
        ends = {number: offsets.high_watermark for number, offsets in admin.offsets(self._topic).items()}
        self._consumer.assign([TopicPartition(self._topic, number, end) for number, end in ends.items()])
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(_POLL_SECONDS)
            # The client retries after an error by itself; a reply that stays missing is reported as such.
            if message is None or message.error() is not None:
                continue
            try:
                headers = decode_headers(raw_headers(message))
                key = headers.get(STEP_KEY_HEADER) or ""
            except (MalformedRecord, UnreadableHeader):
                continue  # it does not say which command it is for
            if (token := self._tokens.get(key)) is not None:
                self._receive(key, self._outcome(headers, message.value(), token))

    def _outcome(self, headers: Mapping[str, str | None], value: bytes | None, token: str) -> Outcome:
        try:
            reply = decode_reply(self._topic, headers, value)
            row = RequestRow(None, None, None, self._topic, token)
            verify_sender(reply, row, not self._settings.accept_replies_without_token)
        except (MalformedReply, RefusedReply) as error:
            return Outcome("unknown", failure=Failure("MalformedReply", f"the reply is not accepted: {error}"))
        return outcome_of_reply(reply.outcome, reply.data, 1)
