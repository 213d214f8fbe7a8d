"""Extracts from the topics of the outboxes the events that read_committed consumers see, as Parquet. Blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError, PartitionOffsets, TopicDescription
from saga_activities.kafka.config import require_client
from saga_activities.kafka.dead_letter_headers import is_resent
from saga_activities.kafka.range_reader import offsets_since, read_ranges
from saga_activities.kafka.record_codec import SAGA_ID_HEADER, STEP_HEADER, known_headers
from saga_activities.kafka.topic_end import topic_end
from saga_spark.reconcile.extracts import READ_MARGIN, ParquetRowWriter, ReconciliationScope
from sagas.settings import KafkaSettings

RECORDS_FILE = "topics/records.parquet"
RECORD_SCHEMA = pa.schema(
    [
        ("connection", pa.string()),  # of the outbox that the event names as its source
        ("event_id", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("saga_id", pa.string()),
        ("step", pa.string()),
        ("timestamp", pa.float64()),
        ("is_hidden", pa.bool_()),  # behind an open transaction: consumers may see it when this has ended
    ]
)
NEVER = float(2**62)


@dataclass(slots=True)
class TopicsRead:
    """``rows`` were read, of which ``compared`` are in the window and not in the margin before it.

    ``floors``: topic → time (seconds since 1970) before which published events may be gone from the topic and are not
    reported as missing. ``unclaimed_since``: the outbox may have purged events published before it.
    """

    rows: int
    compared: int
    unclaimed_since: float
    floors: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"floors": self.floors, "unclaimed_since": self.unclaimed_since}


def read_topics(
    settings: KafkaSettings, folder: Path, scope: ReconciliationScope, began: float, connections: Mapping[str, str]
) -> TopicsRead | None:
    """Read the topics of the events in the extracted outboxes; None if there are no topics.

    ``connections``: those that have an outbox, each with the one through which it was read. Raises SagaError if Kafka
    cannot be queried.
    """
    oldest_events = _oldest_events(folder)
    if not oldest_events:
        return None
    require_client()
    sources = {f"/{settings.prefix}/{name}": reader for name, reader in connections.items()}
    result = TopicsRead(0, 0, began - settings.retention + READ_MARGIN)
    with ParquetRowWriter(folder / RECORDS_FILE, RECORD_SCHEMA) as out:
        for name in sorted(oldest_events):
            topic = _describe(settings, name)
            if topic is not None:  # a deleted topic has none of its events
                start = _read_from(scope, oldest_events[name], result.unclaimed_since)
                result.floors[name], compared = _read_topic(settings, topic, start, began, scope, sources, out)
                result.compared += compared
        result.rows = out.count
    return result


def _describe(settings: KafkaSettings, name: str) -> TopicDescription | None:
    """The description of a topic; None if it does not exist. Raises KafkaOperationError if it may not be described."""
    try:
        return KafkaAdmin(settings).describe(name)
    except KafkaOperationError as problem:
        if problem.error_info is None or problem.error_info.name not in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
            raise
        return None


def _oldest_events(folder: Path) -> dict[str, float]:
    """Topic → time of the oldest event written for it."""
    oldest: dict[str, float] = {}
    for file in sorted((folder / "outbox").glob("*.parquet")):
        table = pq.read_table(file, columns=["topic", "created_at"])
        grouped = table.group_by("topic").aggregate([("created_at", "min")])
        for row in grouped.to_pylist():
            oldest[row["topic"]] = min(row["created_at_min"], oldest.get(row["topic"], NEVER))
    return oldest


def _read_from(scope: ReconciliationScope, oldest: float, unclaimed_since: float) -> float:
    if scope.read_since is not None:
        return scope.read_since
    return (oldest if scope.saga_id is not None else min(oldest, unclaimed_since)) - READ_MARGIN


def _read_topic(
    settings: KafkaSettings,
    topic: TopicDescription,
    start: float,
    began: float,
    scope: ReconciliationScope,
    sources: Mapping[str, str],
    out: ParquetRowWriter,
) -> tuple[float, int]:
    """Write the records that come from our outboxes; returns the topic's floor, and the number of compared records."""
    end = topic_end(settings, topic.name, wait=settings.transaction_timeout)
    ranges = end.readable(offsets_since(settings, topic.name, start, end.offsets))
    oldest: dict[int, float] = {}
    compared = 0
    visible = ((message, False) for message in read_ranges(settings, topic.name, ranges))
    hidden = ((message, True) for message in read_ranges(settings, topic.name, end.hidden(), uncommitted=True))
    for message, is_hidden in chain(visible, hidden):
        headers = known_headers(message)
        kind, milliseconds = message.timestamp()
        time = milliseconds / 1000 if kind else 0.0
        oldest.setdefault(message.partition() or 0, time)
        connection, saga_id = sources.get(headers.get("ce_source", "")), headers.get(SAGA_ID_HEADER, "")
        if connection is None or not _in_scope(saga_id, scope) or is_resent(topic.name, headers):
            continue  # a dead letter that was sent again is not the outbox's
        position = (topic.name, message.partition(), message.offset())
        compared += not is_hidden and (scope.since is None or time >= scope.since)
        out.add(connection, headers.get("ce_id"), *position, saga_id, headers.get(STEP_HEADER), time, is_hidden)
    return _complete_since(topic, end.offsets, ranges, oldest, began), compared


def _in_scope(saga_id: str, scope: ReconciliationScope) -> bool:
    return scope.saga_id is None or saga_id == scope.saga_id or saga_id.startswith(f"{scope.saga_id}/")


def _complete_since(
    topic: TopicDescription,
    offsets: Mapping[int, PartitionOffsets],
    ranges: Mapping[int, tuple[int, int]],
    oldest: Mapping[int, float],
    began: float,
) -> float:
    """The time since which the topic has everything that was published to it."""
    if topic.cleanup_policy is not None and "compact" in topic.cleanup_policy:
        return NEVER  # compaction may have removed it in favour of a later event of the same key
    floor = 0.0
    for partition, partition_offsets in offsets.items():
        if partition_offsets.log_start == 0 or ranges[partition][0] > partition_offsets.log_start:
            continue  # nothing was deleted, or only records older than the range
        gone_by = oldest.get(partition, began if topic.retention is None else began - topic.retention)
        floor = max(floor, gone_by + 1.0)
    return floor
