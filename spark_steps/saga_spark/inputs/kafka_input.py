"""Freezes a range of a topic as a Parquet file: every partition up to its end at the time of freezing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError
from saga_activities.kafka.config import require_client
from saga_activities.kafka.dead_letter_headers import is_resent
from saga_activities.kafka.range_reader import offsets_since, read_ranges
from saga_activities.kafka.record_codec import LAST_MILLISECOND, known_headers
from saga_activities.kafka.topic_end import topic_end
from saga_activities.kafka.truncation import ReadPlace, first_unread
from saga_spark.job_errors import JobFailed
from saga_spark.settings import SparkSettings
from saga_spark.storage import create_folder, resolve_uri
from sagas.definition.times import utc_if_naive
from sagas.errors import InfrastructureError, UsageError

TOPIC_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
_BATCH_ROWS = 20_000


def freeze_topic(
    settings: SparkSettings,
    name: str,
    values: Mapping[str, Any],
    uri: str,
    on_progress: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Write the committed records of a topic, from the first one or from the time ``since``, to the file ``uri``.

    The range has all that was committed when it was first looked at, and no record of aborted transactions.
    ``on_progress`` may raise. Raises UsageError, JobFailed (the topic cannot be read), InfrastructureError (Kafka, or
    an open transaction hides records of the range: another attempt may find it decided).
    """
    topic = values["topic"]
    require_client()
    try:
        cluster = KafkaAdmin(settings.kafka)
        for reason in cluster.unusable_topics([topic]).values():
            raise JobFailed(f"the input {name}: the topic {topic} cannot be read: {reason}")
        topic_id = cluster.topic_id(topic)
        end = topic_end(settings.kafka, topic, wait=settings.kafka.transaction_timeout)
        if end.hidden():
            raise end.open_transaction(f"records of {topic} cannot be read yet,")
        starts = None
        if values.get("since") is not None:
            starts = offsets_since(settings.kafka, topic, _epoch_seconds(name, values["since"]), end.offsets)
        ranges = end.readable(starts)
        rows = _write_records(settings, name, topic, ranges, uri, on_progress)
        if cluster.topic_id(topic) != topic_id:
            raise KafkaOperationError(f"the topic {topic} was deleted and created again while it was read")
        ends = {partition: ReadPlace(ranges[partition][1], end.offsets[partition].epoch) for partition in ranges}
        if first_unread(cluster, topic, ends, cluster.offsets(topic)):
            raise KafkaOperationError(f"the topic {topic} was truncated while it was read")
    except KafkaOperationError as problem:
        raise InfrastructureError(f"the input {name}: {problem.message}") from problem
    offset_ranges = {str(partition): list(ranges[partition]) for partition in sorted(ranges)}
    return {
        "files": [uri],
        "rows": rows,
        "fingerprint": {"kind": "topic", "topic": topic, "offsets": offset_ranges, "rows": rows},
    }


def _write_records(
    settings: SparkSettings,
    name: str,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    uri: str,
    on_progress: Callable[[dict[str, Any]], None],
) -> int:
    create_folder(uri.rpartition("/")[0])
    system, path = resolve_uri(uri)
    rows: list[dict[str, Any]] = []
    count = 0
    with (
        system.open_output_stream(path) as stream,
        pq.ParquetWriter(stream, TOPIC_SCHEMA, compression="zstd") as writer,
    ):
        for message in read_ranges(settings.kafka, topic, ranges):
            headers = known_headers(message)
            if is_resent(topic, headers):
                continue
            rows.append(_record_row(message, headers))
            if len(rows) == _BATCH_ROWS:
                writer.write_table(pa.Table.from_pylist(rows, TOPIC_SCHEMA))
                count += len(rows)
                rows.clear()
                on_progress({"input": name, "rows": count})
        writer.write_table(pa.Table.from_pylist(rows, TOPIC_SCHEMA))
    return count + len(rows)


def _record_row(message: Any, headers: Mapping[str, str]) -> dict[str, Any]:
    kind, milliseconds = message.timestamp()
    has_time = kind and 0 <= milliseconds <= LAST_MILLISECOND
    return {
        "key": _decode(message.key()),
        "value": _decode(message.value()),
        "headers": list(headers.items()),
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": datetime.fromtimestamp(milliseconds / 1000, UTC) if has_time else None,
    }


def _decode(raw: bytes | str | None) -> str | None:
    """Decode bytes, escaping invalid UTF-8: one malformed record must not stop the job."""
    return raw.decode(errors="backslashreplace") if isinstance(raw, bytes) else raw


def _epoch_seconds(name: str, text: str) -> float:
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        raise UsageError(
            f"the input {name}: `since` is a timestamp such as 2026-01-31T08:00:00Z, not {text!r}"
        ) from None
    return utc_if_naive(time).timestamp()
