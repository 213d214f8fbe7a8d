"""What every sink can do: check, publish in one atomic commit, and take back exactly what it published.

All methods are synchronous (they run in a thread) and idempotent. Atomic means: a reader sees the state before or the
state after, never a mix. Every commit carries its :class:`~saga_spark.manifest.CommitTag`, so "is it there already?" is
of the sink itself and a lost answer does no harm.

Fencing: a publication is compared and swapped against the state of the sink that was read before the caller's guarded
transaction decided. ``unpublish`` always moves that state, even when it finds nothing to take back, so that a frozen
``publish`` that wakes later fails instead of bringing the data back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, Protocol

from saga_spark.job.job_spec import Output
from saga_spark.manifest import CommitTag, Manifest, Target
from saga_spark.settings import SparkSettings
from sagas.errors import UsageError


class CommitConflict(Exception):
    """Somebody else changed the sink meanwhile; nothing was published. Trying again may help."""


class UndoConflict(Exception):
    """What was published cannot be taken back exactly: others came after. ``report`` says who."""

    def __init__(self, message: str, report: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.report = dict(report)


@dataclass(frozen=True, slots=True)
class Published:
    """One publication as the sink has it. ``before`` and ``after`` are the sink's own references (snapshot ids,
    versions) as JSON values; ``adopted`` is True when it was there already."""

    before: Any
    after: Any
    adopted: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"before": self.before, "after": self.after, "adopted": self.adopted, **self.details}


@dataclass(frozen=True, slots=True)
class Publication:
    """One thing to publish or to take back."""

    output: Output
    manifest: Manifest
    tag: CommitTag


class Sink(Protocol):
    """A sink for all outputs of one kind. ``read_state`` and the other methods take several publications, which a sink
    that can do so commits together (``together`` True) and otherwise one after the other."""

    def validate(self, output: Output) -> None:
        """Refuse what this sink cannot do (a mode, a missing key). Raises UsageError, one sentence."""
        ...

    def validate_together(self, outputs: Sequence[Output]) -> None:
        """Refuse outputs that no single commit of this sink can publish together; where only a catalog can say, it is
        asked. Raises UsageError, one sentence; Infrastructure: it does not answer."""
        ...

    def check(self, publication: Publication) -> list[str]:
        """Everything that could refuse a later publish: schema, permission, space. One sentence for each problem."""
        ...

    def prepare(self, publication: Publication) -> None:
        """Bring the rows to where they will live, still invisible: files linked or copied, a stage table loaded. Done
        before the commit point, so that publishing is short and has little left that could fail."""
        ...

    def read_state(self, publications: Sequence[Publication]) -> Any:
        """The state that a publish is compared against. Taken before the guard decides."""
        ...

    def publish(self, publications: Sequence[Publication], state: Any, *, together: bool) -> list[Published]:
        """Make them visible, or find them there. Raises Conflict."""
        ...

    def unpublish(self, publications: Sequence[Publication], *, together: bool) -> list[Published]:
        """Take them back: roll back where the head is ours, else remove exactly ours. Raises UndoConflict, Conflict."""
        ...

    def find(self, output: Output, target: Target) -> Published | None:
        """The visible publication of this target and generation; None: it is not visible."""
        ...

    def clean_up(self, publication: Publication) -> None:
        """Remove what this sink keeps beside the visible data (placed files, stage tables) for a publication that is
        not and will not be visible."""
        ...

    def drop_undo_data(self, publication: Publication) -> None:
        """No undo may come any more, for what was published or taken back: drop what is kept only for that. Raises
        Conflict."""
        ...


# Which sink serves which kind of output.


SinkKind = Literal["iceberg", "parquet", "postgresql", "topic"]

# Imported on first use: a project that only writes Parquet loads neither pyiceberg nor psycopg.
_SINK_CLASSES: dict[SinkKind, tuple[str, str]] = {
    "iceberg": ("saga_spark.sinks.iceberg.iceberg_sink", "IcebergSink"),
    "parquet": ("saga_spark.sinks.parquet.parquet_sink", "ParquetSink"),
    "postgresql": ("saga_spark.sinks.postgresql.postgresql_sink", "PostgreSqlSink"),
    "topic": ("saga_spark.sinks.kafka.topic_sink", "TopicSink"),
}


def sink_for(kind: SinkKind, settings: SparkSettings) -> Sink:
    """The sink for outputs of this kind. It holds no connection between two calls, so it may be made each time."""
    module, name = _SINK_CLASSES[kind]
    return getattr(import_module(module), name)(settings)


def validate_together(outputs: Sequence[Output], settings: SparkSettings) -> None:
    """Refuse `publish: together` where no single commit spans all outputs. May ask a catalog, so it blocks.

    Raises UsageError, one sentence; Infrastructure: a catalog does not answer.
    """
    kinds: list[SinkKind] = sorted({output.kind for output in outputs})
    if len(kinds) > 1:
        raise UsageError(f"no single commit can publish outputs of the kinds {' and '.join(kinds)} together")
    for kind in kinds:
        sink_for(kind, settings).validate_together(outputs)
