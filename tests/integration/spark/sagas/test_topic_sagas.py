"""Spark jobs of real sagas that write to a topic of a real broker, and read it: nothing is visible before the commit
point, each row once after it, and an undo needs an operator."""

from __future__ import annotations

import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from saga_spark.reconcile.extracts import ReconciliationScope
from saga_spark.reconcile.output_checks import check_output, collect_evidence, read_output_records
from saga_spark.settings import spark_settings
from saga_spark.sinks.parquet.parquet_pointer import read_pointer
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.spark.day_close_project import DayCloseProject, open_day_close_project
from tests.integration.spark.sagas.crash_runner import clear_stage, of_saga
from tests.integration.spark.sagas.topic_outputs import (
    events_of,
    kafka_toml,
    must_be_settled,
    named,
    never_written,
    topic_outputs,
)

TIMEOUT = "300s"

REPLAY = """
saga: replay
steps:
  - id: sales
    uses: spark
    retry: {max_attempts: 5}
    with:
      job: replays:sales
      inputs: {events: {topic: TOPIC}}
      output: {parquet: out/replayed}
      audit:
        - rows: {equals: 10}
        - sum: {column: amount, equals: "50.00"}
"""

REPLAYS = """
from __future__ import annotations

from pathlib import Path

from pyspark.sql import functions as F

ROOT = Path(__file__).parent


def sales(spark, inputs):
    amounts = inputs.events.select(F.get_json_object("value", "$.amount").cast("decimal(12,2)").alias("amount"))
    if not (ROOT / "more.was.written").exists():
        (ROOT / "waits").touch()
        raise RuntimeError("more events come before the next attempt")
    return amounts
"""


@pytest.mark.slow
async def test_a_topic_is_published_rejected_parked_and_read(
    temporal: TemporalServer, server: DatabaseServer, kafka: Broker, tmp_path: Path
) -> None:
    outputs = topic_outputs(kafka)
    topic = named(outputs)
    day_close = await open_day_close_project(
        tmp_path / "shop", server, temporal.address, outputs, more=kafka_toml(kafka)
    )
    (day_close.folder / "replay.saga.yaml").write_text(REPLAY.replace("TOPIC", topic))
    (day_close.folder / "replays.py").write_text(REPLAYS)
    async with running_worker(day_close.project) as client:
        refused = f"refused-{uuid.uuid4()}"
        await client.start("day", {"day": "2026-01-01", "refuse": True}, id=refused)
        story = await finished(client, refused, TIMEOUT)
        assert (story["state"], story["reason"]["message"]) == ("COMPENSATED", "the agency refuses the commission")
        assert never_written(kafka, topic, refused), "nothing was ever visible"
        assert day_close.staged() == []

        tampered = f"tampered-{uuid.uuid4()}"
        await client.start("day", {"day": "2026-01-01", "factor": "1.1"}, id=tampered)
        story = await finished(client, tampered, TIMEOUT)
        assert story["state"] == "COMPENSATED"
        assert story["reason"]["message"].startswith("the audit rejected the output")
        assert never_written(kafka, topic, tampered)

        good = f"good-{uuid.uuid4()}"
        run = await client.start("day", {"day": "2026-01-01"}, id=good)
        assert await run.result() == {"rows": 10}
        records = events_of(kafka, topic, good)
        assert sorted(record.key for record in records if record.key) == [str(number) for number in range(10)]
        assert sum(Decimal(record.json()["amount"]) for record in records) == Decimal("50.00")
        assert {(record.headers["sagastep"], record.headers["ce_type"]) for record in records} == {("facts", topic)}
        must_be_settled(kafka, day_close, topic)
        assert files_of(day_close, "totals") == 3

        await reads_the_same_again(client, day_close, kafka, topic)

        await client.undo(good, reason="wrong day", who="ada")
        story = await finished(client, good, TIMEOUT)
        while story["state"] == "COMPLETED":
            story = await finished(client, good, TIMEOUT)
        assert story["state"] == "PARKED", story
        [waits] = story["parked"]
        assert (waits["step"], waits["op"]) == ("facts", "undo")
        assert "where they cannot be reverted; send compensating events" in waits["why"]
        assert files_of(day_close, "totals") == 0, "what can be reverted is"
        assert len(events_of(kafka, topic, good)) == 10

        for attempt in ("retry", "done"):
            decision = {"step": "facts", "decision": attempt, "reason": "told them", "evidence": "events", "who": "ada"}
            await client.resolve(good, decision)
            story = await finished(client, good, TIMEOUT)
            assert story["state"] == ("PARKED" if attempt == "retry" else "COMPENSATED")
        assert len(events_of(kafka, topic, good)) == 10
        await clear_stage(day_close)
        assert of_saga(day_close, good) == []
        assert await what_reconciliation_says(day_close, good) == []


async def reads_the_same_again(client: Any, day_close: DayCloseProject, kafka: Broker, topic: str) -> None:
    """The second attempt of a job reads what the first has read, despite later records."""
    saga = f"replay-{uuid.uuid4()}"
    run = await client.start("replay", {}, id=saga)
    await until((day_close.folder / "waits").exists, limit=240)
    kafka.produce(topic, {"amount": "1000.00"}, key="late", headers={"sagaid": "other", "ce_id": "late"})
    (day_close.folder / "more.was.written").touch()
    await run.result()
    rows = [row for file in read_pointer(str(day_close.folder / "out" / "replayed")) for row in rows_of(file)]
    assert sum(row["amount"] for row in rows) == Decimal("50.00")
    story = await finished(client, saga, TIMEOUT)
    assert story["steps"][0]["attempts"] > 1


async def what_reconciliation_says(day_close: DayCloseProject, saga: str) -> list[Any]:
    engine = create_async_engine(day_close.url.replace("postgresql://", "postgresql+psycopg://"))
    rows = await read_output_records(engine, ReconciliationScope(saga_id=saga))
    await engine.dispose()
    settings = spark_settings(day_close.project.settings)
    assert len(rows) == 2
    return [
        finding for row in rows if (finding := check_output(collect_evidence(row, settings), "COMPENSATED")) is not None
    ]


def files_of(day_close: DayCloseProject, name: str) -> int:
    return sum(len(rows_of(file)) for file in read_pointer(str(day_close.folder / "out" / name)))


def rows_of(file: str) -> list[dict[str, Any]]:
    return pq.read_table(file).to_pylist()
