"""Kafka topics: each staged file becomes one transaction, which includes the record of the publication's progress.

Consumers (read_committed) see each row once, but file by file: the files of one output do not appear atomically.
Records in a topic cannot be reverted, so an undo after the first file needs an operator.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyarrow import parquet as pq

from saga_activities.json_results import UnusableResult, to_json_value
from saga_activities.kafka import hanging_transactions, record_codec
from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError
from saga_activities.kafka.config import require_client
from saga_activities.kafka.errors import classify_kafka_error
from saga_activities.kafka.record_codec import record_value
from saga_activities.kafka.transactional_producer import KafkaTransactionError, PartitionRecord, TransactionalProducer
from saga_activities.messaging.outbox import key_text
from saga_spark.job.job_spec import Output
from saga_spark.manifest import Target
from saga_spark.settings import SparkSettings
from saga_spark.sinks.column_names import column_name_problems
from saga_spark.sinks.kafka import topic_progress
from saga_spark.sinks.kafka.topic_progress import TopicProgress
from saga_spark.sinks.sink import CommitConflict, Publication, Published, UndoConflict, refuse_other_manifest
from saga_spark.storage import resolve_uri
from sagas.errors import InfrastructureError, Rejected, UsageError
from sagas.text.exact_json import decode_json


class TopicSink:
    """Implements :class:`~saga_spark.sinks.sink.Sink`.

    Publishers of one output fence each other by the transactional id. A reverted publication is closed permanently,
    published or not, so that a late publisher is refused.
    """

    def __init__(self, settings: SparkSettings) -> None:
        self._kafka = settings.kafka

    def validate(self, output: Output) -> None:
        """Raises UsageError."""
        if output.mode != "append":
            raise UsageError(
                f"the output {output.name} is a topic, which supports the mode append only, not {output.mode}"
            )
        if output.partition_by:
            raise UsageError(f"the output {output.name} is a topic; set `key` instead of `partition_by`")
        if len(output.key) > 1:
            raise UsageError(f"the output {output.name} is a topic; set one column as `key` of its records")
        require_client()
        _ = self._kafka.servers

    def validate_together(self, outputs: Sequence[Output]) -> None:
        """Raises UsageError."""
        raise UsageError(
            f"the output {outputs[0].name} is a topic, which cannot be published together with others; "
            "remove `publish: together`"
        )

    def check(self, publication: Publication) -> list[str]:
        """Problems with the topic, the permissions, and every row."""
        output = publication.output
        columns = [field["name"] for field in publication.manifest.schema.get("fields", ())]
        named = [*output.key, *([output.value] if output.value else [])]
        problems = column_name_problems("topic", publication.manifest.schema)
        problems += [
            f"the output has no column {name}, which the topic {output.destination} needs"
            for name in named
            if name not in columns
        ]
        with _translate_errors():
            cluster = KafkaAdmin(self._kafka)
            missing = cluster.unusable_topics([output.destination])
            if missing:
                return [*problems, f"the topic {output.destination} cannot be used: {missing[output.destination]}"]
            problems += _missing_acls(cluster, output.destination, "WRITE") or self._transaction_problems(
                cluster, publication
            )
        return problems or self._row_problems(publication)

    def prepare(self, publication: Publication) -> None:
        """Create the progress topic; rows cannot be prepared in a topic."""
        with _translate_errors():
            topic_progress.ensure_progress_topic(self._kafka)

    def read_state(self, publications: Sequence[Publication]) -> None:
        """Nothing to read: the publisher reads the progress itself, once it has fenced all others."""

    def publish(self, publications: Sequence[Publication], state: Any, *, together: bool) -> list[Published]:
        """One transaction per file that is not published yet.

        Raises CommitConflict if the publication was reverted or another publisher is active; Rejected if Kafka refuses
        the output permanently.
        """
        if together:
            self.validate_together([publication.output for publication in publications])
        return [self._publish(publication) for publication in publications]

    def revert(self, publications: Sequence[Publication], *, together: bool) -> list[Published]:
        """Close the publication. Raises UndoConflict if some of its files are already in the topic, where they stay."""
        return [self._close_publication(publication) for publication in reversed(publications)][::-1]

    def close(self, publication: Publication) -> None:
        """Nothing to record: the undo has closed the publication before it parked."""

    def find(self, output: Output, target: Target) -> Published | None:
        """The publication of this target, also if only some of its files are visible."""
        with _translate_errors():
            progress = topic_progress.read_progress(self._kafka, target.name)
        return _to_published(progress, adopted=True) if progress is not None and progress.visible else None

    def clean_up(self, publication: Publication) -> None:
        """Nothing is kept outside the topic. Raises CommitConflict if the publication is visible."""
        if self.find(publication.output, publication.tag.target) is not None:
            raise CommitConflict(
                f"the output is visible in the topic {publication.output.destination} and cannot be cleaned up"
            )

    def drop_undo_data(self, publication: Publication) -> None:
        """The progress records stay, because they keep a late publisher from publishing again."""

    def _publish(self, publication: Publication) -> Published:
        tag, files = publication.tag, len(publication.manifest.files)
        with self._open_producer(tag.target) as producer:
            recorded = topic_progress.read_progress(self._kafka, tag.target.name)
            progress = recorded or TopicProgress(publication.output.destination, tag.properties())
            report = {"found_in_sink": dict(progress.mark), "expected": tag.properties()}
            refuse_other_manifest(progress.mark["saga.manifest"], publication, **report)
            if progress.closed:
                raise CommitConflict(f"the output {publication.output.name} was reverted, so it cannot be published")
            if progress.done:
                return _to_published(progress, adopted=True)
            if progress.files < files:
                # Such a transaction has not succeeded: success would be in the progress.
                unfinished_ids = event_ids(publication, progress.files)
                hanging_transactions.abort_hanging_events(
                    self._kafka, producer, publication.output.destination, unfinished_ids
                )
            started_at = time.time()
            for number in range(progress.files, files) or [-1]:
                progress = replace(progress, files=max(number + 1, progress.files), done=number + 1 in (files, 0))
                records = self._transaction_records(publication, number, progress, started_at)
                producer.write(records, [publication.output.destination])
        return _to_published(progress, adopted=False, rows=publication.manifest.rows)

    def _transaction_records(
        self, publication: Publication, number: int, progress: TopicProgress, started_at: float
    ) -> Iterator[PartitionRecord]:
        """The rows of a file (-1: none), then the progress record: last, to block its partition only briefly."""
        if number >= 0:
            for record in row_records(publication, number, prefix=self._kafka.prefix, time=started_at):
                yield publication.output.destination, -1, record
        yield topic_progress.progress_record(self._kafka, publication.tag.target.name, progress)

    def _close_publication(self, publication: Publication) -> Published:
        tag, topic = publication.tag, publication.output.destination
        with self._open_producer(tag.target) as producer:
            recorded = topic_progress.read_progress(self._kafka, tag.target.name)
            progress = replace(recorded or TopicProgress(topic, tag.properties()), closed=True)
            if progress != recorded:
                producer.write([topic_progress.progress_record(self._kafka, tag.target.name, progress)])
        if progress.files:
            raise UndoConflict(
                f"the rows of the output {publication.output.name} are in the topic {topic}, where they cannot be "
                "reverted; send compensating events, then resolve the step by hand",
                {"topic": topic, "files": progress.files, "of": len(publication.manifest.files)},
                by_hand=f"send events to {topic} that compensate its records of the saga {tag.target.saga_id}",
            )
        return Published(None, "closed", details={"was_published": recorded is not None and recorded.visible})

    def _transaction_problems(self, cluster: KafkaAdmin, publication: Publication) -> list[str]:
        """Errors that the first transaction would meet, found while the saga can still be compensated."""
        producer = self._producer(publication.tag.target)
        try:
            topic_progress.ensure_progress_topic(self._kafka)
            producer.fence_and_open()
        except KafkaOperationError as error:
            if error.error_info is None or classify_kafka_error(error.error_info).action != "refused":
                raise
            return [error.message]
        except KafkaTransactionError as error:
            if error.verdict.action != "refused":
                raise
            return [f"Kafka refuses the output: {error}"]
        finally:
            producer.close()
        return _missing_acls(cluster, topic_progress.progress_topic(self._kafka), "READ", "WRITE")

    def _row_problems(self, publication: Publication) -> list[str]:
        """The first row that Kafka would refuse, found while the saga can still be compensated."""
        max_bytes, topic = self._kafka.max_message_bytes, publication.output.destination
        for number in range(len(publication.manifest.files)):
            try:
                for index, record in enumerate(row_records(publication, number, prefix=self._kafka.prefix, time=0.0)):
                    if record.size > max_bytes:
                        return [
                            f"row {index} of file {number} has {record.size} bytes as an event, more than {max_bytes}"
                        ]
            except UnusableRow as error:
                return [f"the topic {topic}: {error}"]
        return []

    @contextlib.contextmanager
    def _open_producer(self, target: Target) -> Iterator[TransactionalProducer]:
        """The producer of an output. Raises CommitConflict, Rejected, InfrastructureError."""
        producer = self._producer(target)
        with _translate_errors():
            topic_progress.ensure_progress_topic(self._kafka)
            try:
                yield producer.fence_and_open()
            finally:
                producer.close()

    def _producer(self, target: Target) -> TransactionalProducer:
        return TransactionalProducer(self._kafka, f"{topic_progress.progress_topic(self._kafka)}-{target.publish_key}")


def _missing_acls(cluster: KafkaAdmin, topic: str, *needed: str) -> list[str]:
    """The ACLs that this user lacks."""
    allowed = cluster.authorized_operations(topic)
    if not allowed or "ALL" in allowed:  # unknown, or all operations
        return []
    return [f"the ACL {operation} for the topic {topic} is missing" for operation in needed if operation not in allowed]


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate Kafka errors into the errors of sinks."""
    try:
        yield
    except KafkaOperationError as error:
        raise InfrastructureError(f"{error.message}; check [kafka] in saga.toml and the brokers") from error
    except KafkaTransactionError as error:
        if error.verdict.fenced:
            raise CommitConflict("another publisher of this output is active") from error
        if error.verdict.action == "refused":
            raise Rejected(f"Kafka refuses the output: {error}") from error
        raise InfrastructureError(
            f"Kafka is not available: {error}; check [kafka] in saga.toml and the brokers"
        ) from error


def _to_published(progress: TopicProgress, *, adopted: bool, **details: Any) -> Published:
    closed = {"closed": True} if progress.closed else {}
    return Published(None, progress.files, adopted, {"topic": progress.topic, **closed, **details})


# Staged rows as records. The same file always gives the same event ids.
_BATCH_ROWS = 5_000


class UnusableRow(Exception):
    """A row that cannot become a record."""


def event_source(prefix: str, publication: Publication) -> str:
    """The CloudEvents source of a publication's events."""
    return f"/{prefix}/spark/{publication.tag.target.publish_key}"


def event_ids(publication: Publication, number: int) -> Iterator[str]:
    """The event ids of the records of file ``number`` (from 0) of the manifest."""
    for row in range(publication.manifest.files[number].rows):
        yield _event_id(publication.tag.target, number, row)


def row_records(
    publication: Publication, number: int, *, prefix: str, time: float
) -> Iterator[record_codec.EncodedRecord]:
    """The records of file ``number`` (from 0) of the manifest. Raises UnusableRow."""
    output, target = publication.output, publication.tag.target
    system, path = resolve_uri(publication.manifest.files[number].uri)
    source, row_number = event_source(prefix, publication), 0
    with system.open_input_file(path) as stream:
        for batch in pq.ParquetFile(stream).iter_batches(_BATCH_ROWS):
            for row in batch.to_pylist(maps_as_pydicts="strict"):
                try:
                    value, key = _event_value(row, output.value), _event_key(row, output.key)
                except (UnusableResult, UnicodeEncodeError, ValueError) as error:
                    raise UnusableRow(f"row {row_number} of file {number} is not an event: {error}") from error
                yield record_codec.encode(
                    value,
                    id=_event_id(target, number, row_number),
                    type=output.destination,
                    source=source,
                    time=time,
                    key=key,
                    saga_id=target.saga_id,
                    step=target.step,
                )
                row_number += 1


def _event_id(target: Target, number: int, row: int) -> str:
    return f"{target.name}-{number}-{row}"


def _event_value(row: Mapping[str, Any], column: str | None) -> str:
    """JSON of the whole row, or the value of ``column``, where a string is already JSON."""
    value = row if column is None else row[column]
    if column is not None and isinstance(value, str):
        decode_json(value)
        text = value
    else:
        text = record_value(value)
    text.encode()
    return text


def _event_key(row: Mapping[str, Any], columns: tuple[str, ...]) -> str | None:
    if not columns:
        return None
    text = key_text(to_json_value(row[columns[0]]))
    if text is not None:
        text.encode()
    return text
