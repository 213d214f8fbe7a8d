"""A topic of Kafka: each staged file is one transaction, with the record of how far the publication has come.

Readers (read_committed) see each row once, and file by file: the files of one output do not appear together. A topic
cannot be taken back, so an undo after the first file is for a person.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from saga_activities.kafka import lost_ends
from saga_activities.kafka.config import require_client
from saga_activities.kafka.errors import classify
from saga_activities.kafka.topics import Cluster, KafkaProblem
from saga_activities.kafka.transactions import Sent, TransactionalProducer, TransactionTrouble
from saga_spark.job import Output
from saga_spark.keys import Target
from saga_spark.settings import SparkSettings
from saga_spark.sinks import topic_progress
from saga_spark.sinks.sink import Conflict, NotOurs, Publication, Published
from saga_spark.sinks.topic_progress import Progress
from saga_spark.sinks.topic_records import UnusableRow, event_ids, records
from sagas.errors import Infrastructure, Rejected, UsageError


class TopicSink:
    """Implements :class:`~saga_spark.sinks.sink.Sink`. Publishers of one output fence each other by the transactional
    id; what was taken back, published or not, is closed for good, and a late publisher finds that."""

    def __init__(self, settings: SparkSettings) -> None:
        self._kafka = settings.kafka

    def validate(self, output: Output) -> None:
        """Raises UsageError."""
        if output.mode != "append":
            raise UsageError(f"the output {output.name} is a topic and knows the mode append only, not {output.mode}")
        if output.partition_by:
            raise UsageError(f"the output {output.name} is a topic: its `key` says the partition, not `partition_by`")
        if len(output.key) > 1:
            raise UsageError(f"the output {output.name} is a topic, and the key of a record is one column")
        require_client()
        _ = self._kafka.servers

    def validate_together(self, outputs: Sequence[Output]) -> None:
        """Raises UsageError."""
        raise UsageError(
            f"the output {outputs[0].name} is a topic: it appears file by file and cannot be published together"
        )

    def check(self, publication: Publication) -> list[str]:
        """The topic, the permissions, and every row."""
        output = publication.output
        columns = [one["name"] for one in publication.manifest.schema.get("fields", ())]
        named = [*output.key, *([output.value] if output.value else [])]
        problems = [f"there is no column {name} for the topic {output.place}" for name in named if name not in columns]
        with _trouble():
            cluster = Cluster(self._kafka)
            missing = cluster.missing([output.place])
            if missing:
                return [*problems, f"the topic {output.place} cannot be used: {missing[output.place]}"]
            problems += _lacking(cluster, output.place, "WRITE") or self._refusals(cluster, publication)
        return problems or self._row_problems(publication)

    def place(self, publication: Publication) -> None:
        """Nothing can wait in a topic; only the topic that tells the progress is made."""
        with _trouble():
            topic_progress.ensure(self._kafka)

    def read_state(self, publications: Sequence[Publication]) -> None:
        """What a publish is compared with is read by the publisher itself, when nobody else can write any more."""

    def publish(self, publications: Sequence[Publication], state: Any, *, together: bool) -> list[Published]:
        """One transaction for each file that is not there yet. Raises Conflict: taken back, or another publisher is at
        it; Rejected: Kafka will never take it."""
        if together:
            self.validate_together([one.output for one in publications])
        return [self._publish(one) for one in publications]

    def unpublish(self, publications: Sequence[Publication], *, together: bool) -> list[Published]:
        """Close the publication. Raises NotOurs: some of it is in the topic already, and stays."""
        return [self._close(one) for one in reversed(publications)][::-1]

    def find(self, output: Output, target: Target) -> Published | None:
        """Also when only some of its files are there."""
        with _trouble():
            found = topic_progress.last(self._kafka, target.name)
        return _published(found, adopted=True) if found is not None and found.visible else None

    def clean(self, publication: Publication) -> None:
        """Nothing is kept beside the topic. Raises Conflict: it is visible."""
        if self.find(publication.output, publication.mark.target) is not None:
            raise Conflict(f"the topic {publication.output.place} shows this output, which cannot be cleaned up")

    def forget(self, publication: Publication) -> None:
        """What tells that it is published stays: it keeps a late publisher from doing it again."""

    def _publish(self, publication: Publication) -> Published:
        mark, files = publication.mark, len(publication.manifest.files)
        with self._producing(mark.target) as producer:
            found = topic_progress.last(self._kafka, mark.target.name)
            progress = found or Progress(publication.output.place, mark.properties())
            if progress.mark["saga.manifest"] != mark.sha:
                report = {"there": dict(progress.mark), "ours": mark.properties()}
                raise Rejected("another manifest is published under the key of this output", **report)
            if progress.closed:
                raise Conflict(f"the output {publication.output.name} was taken back, so nothing more is published")
            if progress.done:
                return _published(progress, adopted=True)
            if progress.files < files:
                tried = event_ids(publication, progress.files)  # without success: that would be in the progress
                lost_ends.end_tries_at(self._kafka, producer, publication.output.place, tried)
            begun = time.time()
            for number in range(progress.files, files) or [-1]:
                progress = replace(progress, files=max(number + 1, progress.files), done=number + 1 in (files, 0))
                producer.write(self._transaction(publication, number, progress, begun))
        return _published(progress, adopted=False, rows=publication.manifest.rows)

    def _transaction(self, publication: Publication, number: int, progress: Progress, begun: float) -> Iterator[Sent]:
        """The rows of a file (-1: none), and last how far this is: so that its partition is not held up for long."""
        if number >= 0:
            for record in records(publication, number, prefix=self._kafka.prefix, time=begun):
                yield publication.output.place, -1, record
        yield topic_progress.record(self._kafka, publication.mark.target.name, progress)

    def _close(self, publication: Publication) -> Published:
        mark, place = publication.mark, publication.output.place
        with self._producing(mark.target) as producer:
            found = topic_progress.last(self._kafka, mark.target.name)
            progress = replace(found or Progress(place, mark.properties()), closed=True)
            if progress != found:
                producer.write([topic_progress.record(self._kafka, mark.target.name, progress)])
        if progress.files:
            raise NotOurs(
                f"the rows of the output {publication.output.name} are in the topic {place}, and a topic cannot be "
                "taken back: send events that say so, then resolve the step by hand",
                {"topic": place, "files": progress.files, "of": len(publication.manifest.files)},
            )
        return Published(None, "closed", details={"found": found is not None and found.visible})

    def _refusals(self, cluster: Cluster, publication: Publication) -> list[str]:
        """What the first transaction would be told, when it is too late to go back."""
        producer = self._producer(publication.mark.target)
        try:
            topic_progress.ensure(self._kafka)
            producer.open()
        except KafkaProblem as error:
            if error.failure is None or classify(error.failure).action != "refused":
                raise
            return [error.message]
        except TransactionTrouble as error:
            if error.verdict.action != "refused":
                raise
            return [f"Kafka does not take the output: {error}"]
        finally:
            producer.close()
        return _lacking(cluster, topic_progress.topic_of(self._kafka), "READ", "WRITE")

    def _row_problems(self, publication: Publication) -> list[str]:
        """The first row that Kafka would not take: it would be found when it is too late."""
        most, place = self._kafka.max_message_bytes, publication.output.place
        for number in range(len(publication.manifest.files)):
            try:
                for at, record in enumerate(records(publication, number, prefix=self._kafka.prefix, time=0.0)):
                    if record.size > most:
                        return [f"row {at} of file {number} has {record.size} bytes as an event; {most} are allowed"]
            except UnusableRow as error:
                return [f"the topic {place}: {error}"]
        return []

    @contextlib.contextmanager
    def _producing(self, target: Target) -> Iterator[TransactionalProducer]:
        """The producer of an output. Raises Conflict, Rejected, Infrastructure."""
        producer = self._producer(target)
        with _trouble():
            topic_progress.ensure(self._kafka)
            try:
                yield producer.open()
            finally:
                producer.close()

    def _producer(self, target: Target) -> TransactionalProducer:
        return TransactionalProducer(self._kafka, f"{topic_progress.topic_of(self._kafka)}-{target.key}")


def _lacking(cluster: Cluster, topic: str, *needed: str) -> list[str]:
    """The ACLs that this user does not have."""
    allowed = cluster.allowed(topic)
    if not allowed or "ALL" in allowed:  # nobody knows, or everything
        return []
    return [f"an ACL is missing: {one} for the topic {topic}" for one in needed if one not in allowed]


@contextlib.contextmanager
def _trouble() -> Iterator[None]:
    """What Kafka says, in the words of sinks."""
    try:
        yield
    except KafkaProblem as error:
        raise Infrastructure(error.message) from error
    except TransactionTrouble as error:
        if error.verdict.fenced:
            raise Conflict("another publisher of this output is at work") from error
        if error.verdict.action == "refused":
            raise Rejected(f"Kafka does not take the output: {error}") from error
        raise Infrastructure(f"Kafka: {error}") from error


def _published(progress: Progress, *, adopted: bool, **details: Any) -> Published:
    closed = {"closed": True} if progress.closed else {}
    return Published(None, progress.files, adopted, {"topic": progress.topic, **closed, **details})
