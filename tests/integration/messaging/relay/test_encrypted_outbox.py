"""With `[codec] outbox` events are encrypted while they wait for the relay, which publishes them in clear."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from saga_activities.connections import DatabaseConnections
from saga_activities.guard.entry_key import EntryKey
from saga_activities.messaging.outbox import insert_events
from saga_workers.relay.relay_process import run_relay
from sagas.actions.events import Event
from sagas.errors import SagaError
from sagas.protocol.messages import GuardSpec
from sagas.protocol.payloads import Invocation
from tests.helpers.waiting import until
from tests.integration.guard.conftest import clock
from tests.integration.messaging.relay.relay_environment import DATABASE, OutboxEnvironment

CANARY = "kanari"
EVENT = {"key": "kanari-key", "value": {"card": "kanari"}, "headers": {"x-card": "kanari"}}


def new_key() -> str:
    return secrets.token_hex(32)


def use_codec(env: OutboxEnvironment, key: str | None, *, outbox: bool = True) -> None:
    """Let the writers and relays of the environment have this key."""
    connection = env.settings.connections[DATABASE].model_copy(
        update={"codec_key": key, "encrypts_outbox": outbox and key is not None}
    )
    env.settings = env.settings.model_copy(update={"connections": {DATABASE: connection}})


async def emit(env: OutboxEnvironment, *events: Event) -> None:
    """Write events as a step does."""
    connections = DatabaseConnections(env.settings.sql_connections())
    entry = EntryKey(f"saga-{secrets.token_hex(4)}", "pay")
    invocation = Invocation("x", {}, str(entry), entry.saga_id, "pay", "do", 1, guard=GuardSpec(DATABASE))

    async def act(sql: Any) -> None:
        await insert_events(sql, events, invocation)

    outcome = await connections.guard(DATABASE).do(entry, None, act, **clock())
    await connections.close()
    assert outcome.kind == "done", outcome


def stored(env: OutboxEnvironment) -> str:
    return str(env.rows("select event_key, value, headers from saga_outbox order by id"))


async def test_the_relay_decrypts_what_it_publishes(env: OutboxEnvironment) -> None:
    topic, first, later = env.broker.create_topic(), new_key(), new_key()
    use_codec(env, first, outbox=False)
    await emit(env, Event(topic, "clear", 0))
    use_codec(env, first)
    await emit(env, Event(topic, **EVENT))
    use_codec(env, f"{later} {first}")
    await emit(env, Event(topic, **EVENT), Event(topic, None, None))
    assert (CANARY in stored(env), stored(env).count("saga:encrypted:")) == (False, 8)
    async with env.relaying():
        await env.all_published()
    # Each shard has a producer of its own.
    records = sorted(env.broker.read_committed(topic), key=lambda record: record.key or "")
    assert [(record.key, record.json(), record.headers.get("x-card")) for record in records] == [
        (None, None, None),
        ("clear", 0, None),
        *[("kanari-key", {"card": "kanari"}, CANARY)] * 2,
    ]
    assert CANARY not in stored(env)


async def test_a_relay_without_the_key_waits_and_refuses_nothing(
    env: OutboxEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    topic, key = env.broker.create_topic(), new_key()
    use_codec(env, key)
    await emit(env, Event(topic, **EVENT))
    use_codec(env, new_key())
    with pytest.raises(SagaError, match="which \\[codec\\] key does not have"):
        await run_relay(env.settings, once=True)
    async with env.relaying():
        await until(lambda: "which [codec] key does not have" in caplog.text)
    assert env.statuses() == {"NEW": 1}
    use_codec(env, key)
    async with env.relaying():
        await env.all_published()


async def test_a_changed_event_is_refused_and_others_are_published(env: OutboxEnvironment) -> None:
    topic, key = env.broker.create_topic(), new_key()
    use_codec(env, key)
    await emit(env, Event(topic, **EVENT))
    with env.connect() as connection:
        connection.execute("update saga_outbox_row set value = substr(value, 1, length(value) - 8) || 'AAAAAAA='")
    use_codec(env, key, outbox=False)
    await emit(env, Event(topic, "deep", 1))
    with env.connect() as connection:
        connection.execute("update saga_outbox_row set headers = repeat('[', 100000) where event_key = 'deep'")
    await emit(env, Event(topic, "saga:encrypted:x:y", "saga:encrypted:x:y"))
    async with env.relaying():
        await env.all_published()
    assert env.statuses() == {"REFUSED": 2, "PUBLISHED": 1}
    [record] = env.broker.read_committed(topic)
    assert (record.key, record.json()) == ("saga:encrypted:x:y", "saga:encrypted:x:y")
