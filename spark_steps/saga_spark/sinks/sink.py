"""The interface of every sink: check, publish in one atomic commit, and revert exactly what was published.

All methods are synchronous (they run in a thread) and idempotent. Atomic means that a reader sees the state before or
after a commit, never a mix. Every commit carries its :class:`~saga_spark.manifest.CommitTag`, so the sink itself knows
whether a publication exists, and a lost acknowledgement does no harm.

Fencing: a publication is compared and swapped against the state of the sink that was read before the caller's guarded
transaction decided. ``revert`` always advances that state, even if there is nothing to revert, so that a suspended
``publish`` that resumes later fails instead of making the data visible again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, Protocol

from saga_spark.job.job_spec import Output
from saga_spark.manifest import CommitTag, Manifest, Target
from saga_spark.settings import SparkSettings
from sagas.errors import Rejected, UsageError
from sagas.text.shell import saga_command


class CommitConflict(Exception):
    """The sink was changed concurrently and nothing was published; another attempt may succeed."""


class UndoConflict(Exception):
    """A publication cannot be reverted exactly, because of later changes.

    ``report`` lists them. Its ``samples`` are rows that differ, each with ``key``, ``before`` and ``now`` as texts, and
    ``rows`` is the number of all. ``by_hand`` is what a person can do: SQL, or a sentence. ``later``: saga id and entry
    of each later publication in the same place that can be reverted, and is to be reverted first.
    """

    def __init__(
        self,
        message: str,
        report: Mapping[str, Any],
        *,
        by_hand: str | None = None,
        later: Iterable[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.report = dict(report)
        self.by_hand = by_hand
        self.later = tuple(later)
        self.target: Target | None = None
        """The publication, where several are reverted together."""


def undo_first(saga_ids: Iterable[str]) -> str:
    """The advice to undo later publications, newest first."""
    commands = [f"`{saga_command('undo', saga_id, reason='…')}`" for saga_id in reversed(list(dict.fromkeys(saga_ids)))]
    return f"undo the later publications first, with {', then '.join(commands)}; then `retry`"


@dataclass(frozen=True, slots=True)
class Published:
    """One publication as the sink has it.

    ``before`` and ``after`` are the sink's own references (snapshot ids, versions) as JSON values; ``adopted`` is True
    if the publication already existed.
    """

    before: Any
    after: Any
    adopted: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"before": self.before, "after": self.after, "adopted": self.adopted, **self.details}


@dataclass(frozen=True, slots=True)
class Publication:
    """A staged output with its manifest and commit tag, to publish or to revert."""

    output: Output
    manifest: Manifest
    tag: CommitTag


class Sink(Protocol):
    """A sink for all outputs of one kind.

    Methods that take several publications commit them together if ``together`` is True (which a sink may refuse), and
    otherwise one after the other.
    """

    def validate(self, output: Output) -> None:
        """Refuse what this sink does not support (a mode, a missing key). Raises UsageError, one message."""
        ...

    def validate_together(self, outputs: Sequence[Output]) -> None:
        """Refuse outputs that no single commit of this sink can publish together. May query a catalog.

        Raises UsageError, one message; InfrastructureError if the catalog does not respond.
        """
        ...

    def check(self, publication: Publication) -> list[str]:
        """Everything that could make a later publish fail: schema, permissions, space. One message per problem."""
        ...

    def prepare(self, publication: Publication) -> None:
        """Transfer the rows to their destination, still invisible: files linked or copied, a stage table loaded.

        Runs before the commit point, so that publishing is short and little is left that can fail.
        """
        ...

    def read_state(self, publications: Sequence[Publication]) -> Any:
        """The state that a publish is compared against. Read before the guard decides."""
        ...

    def publish(self, publications: Sequence[Publication], state: Any, *, together: bool) -> list[Published]:
        """Make the publications visible, or adopt those that already are. Raises CommitConflict."""
        ...

    def revert(self, publications: Sequence[Publication], *, together: bool) -> list[Published]:
        """Revert the publications: roll back if the head is ours, else remove exactly our rows.

        They are in the order in which they were published, and are reverted in the reverse order.
        Raises UndoConflict, CommitConflict.
        """
        ...

    def close(self, publication: Publication) -> None:
        """Record that an operator has reverted a publication by hand: it is not published again, and blocks no undo of
        another. Does nothing where the sink itself shows what is published.
        """
        ...

    def find(self, output: Output, target: Target) -> Published | None:
        """The visible publication of this target and generation; None if it is not visible."""
        ...

    def clean_up(self, publication: Publication) -> None:
        """Remove what this sink keeps besides the visible data: placed files, stage tables.

        Only for a publication that is not and will not be visible; a sink that finds it visible deletes nothing, and
        may raise CommitConflict.
        """
        ...

    def drop_undo_data(self, publication: Publication) -> None:
        """Drop what is kept only for an undo of a published or reverted output, once no undo can follow.

        Raises CommitConflict.
        """
        ...


def refuse_other_manifest(existing: str, publication: Publication, **details: Any) -> None:
    """Raises Rejected if ``existing``, the SHA-256 of the published manifest, is not that of the publication."""
    if existing != publication.tag.sha:
        raise Rejected(
            f"another manifest is published under the key of the output {publication.output.name}; "
            "compare them with saga reconcile",
            **details,
        )


SinkKind = Literal["iceberg", "parquet", "postgresql", "topic"]

# Imported on first use: a project that only writes Parquet loads neither pyiceberg nor psycopg.
_SINK_CLASSES: dict[SinkKind, tuple[str, str]] = {
    "iceberg": ("saga_spark.sinks.iceberg.iceberg_sink", "IcebergSink"),
    "parquet": ("saga_spark.sinks.parquet.parquet_sink", "ParquetSink"),
    "postgresql": ("saga_spark.sinks.postgresql.postgresql_sink", "PostgreSqlSink"),
    "topic": ("saga_spark.sinks.kafka.topic_sink", "TopicSink"),
}


def sink_for(kind: SinkKind, settings: SparkSettings) -> Sink:
    """The sink for outputs of this kind. It holds no connection between calls, so it can be created for each use."""
    module, name = _SINK_CLASSES[kind]
    return getattr(import_module(module), name)(settings)


def validate_together(outputs: Sequence[Output], settings: SparkSettings) -> None:
    """Refuse `publish: together` if no single commit spans all outputs. Blocks: it may query a catalog.

    Raises UsageError, one message; InfrastructureError if a catalog does not respond.
    """
    kinds: list[SinkKind] = sorted({output.kind for output in outputs})
    if len(kinds) > 1:
        raise UsageError(
            f"no single commit can span outputs of the kinds {' and '.join(kinds)}; remove `publish: together`"
        )
    for kind in kinds:
        sink_for(kind, settings).validate_together(outputs)
