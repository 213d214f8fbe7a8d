"""Signals of a topic to one run are bounded: Temporal terminates a run whose history they have filled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.signals import signal_limit
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import (
    count,
    ended,
    fresh,
    fully_consumed,
    project_of,
    triggering,
)

WAITS = """
    saga: {saga}
    id: "{saga}-${{{{ input.order }}}}"
    input: {{type: object, required: [order], properties: {{order: {{type: integer}}}}}}
    triggers:
      kafka:
        - {{topic: {topic}, filter: trigger.headers.kind == "order"}}
        - topic: {topic}
          id: "{saga}-${{{{ trigger.value.order }}}}"
          filter: trigger.headers.kind == "other"
          signal: other
    steps:
      - {{id: pay, uses: wait, with: {{signal: paid, timeout: 5m, on_timeout: reject}}}}
      - {{id: other, uses: wait, with: {{signal: other, timeout: 5m, on_timeout: reject}}}}
"""


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("bound", ["signals", "bytes", "history"])
async def test_further_signals_are_dead_letters(
    kafka: Broker, temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    topic, saga = kafka.create_topic(), fresh("signals")
    settings = kafka.settings().model_copy(update={"max_signals": 5 if bound == "signals" else 1000})
    text = {"other": "x" * 1000}
    if bound == "bytes":
        monkeypatch.setattr(signal_limit, "MAX_BYTES", 6_000)
    if bound == "history":
        monkeypatch.setattr(signal_limit, "MAX_HISTORY_BYTES", 8_000)
    definitions = {saga: WAITS.format(saga=saga, topic=topic)}
    project = project_of(tmp_path, settings, temporal.address, definitions=definitions)
    async with running_worker(project) as client, triggering(project) as metrics:
        kafka.produce(topic, {"order": 1}, {"order": 2}, key="a", headers={"kind": "order"})
        kafka.produce(topic, *[{"order": 1, **text}] * 20, key="a", headers={"kind": "other"})
        kafka.produce(topic, {"order": 2, **text}, key="a", headers={"kind": "other"})
        await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-trigger-{saga}-{topic}", topic))
        taken = count(metrics, "saga_trigger_signalled_total")
        assert 4 <= taken <= 12
        if bound == "signals":
            assert taken == 6  # five for the first saga, one for the second
        for order in (1, 2):  # they go on
            await client.signal(f"{saga}-{order}", "paid", {})
            assert (await ended(client, f"{saga}-{order}"))["state"] == "COMPLETED"
    reasons = [letter.headers["sagadlqreason"] for letter in kafka.read_committed(f"{topic}.dlq")]
    assert len(reasons) == 21 - taken
    assert all(reason.startswith(f"{saga}-1 accepts no more signals: ") for reason in reasons)


async def test_a_signal_that_is_repeated_in_an_outage_counts_once(
    kafka: Broker, temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, saga = kafka.create_topic(), fresh("outage")
    settings = kafka.settings().model_copy(update={"max_signals": 2})
    monkeypatch.setattr(signal_limit, "MAX_BYTES", 3_500)  # each has more than a thousand
    project = project_of(tmp_path, settings, temporal.address, definitions={saga: WAITS.format(saga=saga, topic=topic)})
    send, failures = WorkflowHandle.signal, 4

    async def failing(handle: Any, *arguments: Any) -> None:
        nonlocal failures
        if arguments[0] == "other" and failures:
            failures -= 1
            raise RPCError("no connection", RPCStatusCode.UNAVAILABLE, b"")
        await send(handle, *arguments)

    monkeypatch.setattr(WorkflowHandle, "signal", failing)
    async with running_worker(project) as client, triggering(project) as metrics:
        kafka.produce(topic, {"order": 1}, key="a", headers={"kind": "order"})
        kafka.produce(topic, *[{"order": 1, "other": "x" * 1000}] * 3, key="a", headers={"kind": "other"})
        await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-trigger-{saga}-{topic}", topic))
        assert failures == 0
        assert count(metrics, "saga_trigger_signalled_total") == 2
        await client.signal(f"{saga}-1", "paid", {})
        assert (await ended(client, f"{saga}-1"))["state"] == "COMPLETED"
    [letter] = kafka.read_committed(f"{topic}.dlq")
    assert "it was sent 2 with" in letter.headers["sagadlqreason"]
