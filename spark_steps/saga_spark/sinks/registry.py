"""Which sink serves which kind of output."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Literal

from saga_spark.job import Output
from saga_spark.settings import SparkSettings
from saga_spark.sinks.sink import Sink
from sagas.errors import UsageError

Kind = Literal["iceberg", "parquet", "postgresql", "topic"]

# Imported on first use: a project that only writes Parquet loads neither pyiceberg nor psycopg.
_SINKS: dict[Kind, tuple[str, str]] = {
    "iceberg": ("saga_spark.sinks.iceberg", "IcebergSink"),
    "parquet": ("saga_spark.sinks.parquet", "ParquetSink"),
    "postgresql": ("saga_spark.sinks.postgresql", "PostgreSqlSink"),
    "topic": ("saga_spark.sinks.topic", "TopicSink"),
}


def sink_for(kind: Kind, settings: SparkSettings) -> Sink:
    """The sink for outputs of this kind. It holds no connection between two calls, so it may be made each time."""
    module, name = _SINKS[kind]
    return getattr(import_module(module), name)(settings)


def validate_together(outputs: Sequence[Output], settings: SparkSettings) -> None:
    """Refuse `publish: together` where no single commit spans all outputs. May ask a catalog, so it blocks.

    Raises UsageError, one sentence; Infrastructure: a catalog does not answer.
    """
    kinds: list[Kind] = sorted({output.kind for output in outputs})
    if len(kinds) > 1:
        raise UsageError(f"no single commit can publish outputs of the kinds {' and '.join(kinds)} together")
    for kind in kinds:
        sink_for(kind, settings).validate_together(outputs)
