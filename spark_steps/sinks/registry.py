"""Which sink serves which kind of output."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Literal

from sagas.errors import UsageError
from spark_steps.job import Output
from spark_steps.settings import SparkSettings
from spark_steps.sinks.sink import Sink

Kind = Literal["iceberg", "parquet", "postgresql", "topic"]

# Imported on first use: a project that only writes Parquet loads neither pyiceberg nor psycopg.
_SINKS: dict[Kind, tuple[str, str]] = {
    "iceberg": ("spark_steps.sinks.iceberg", "IcebergSink"),
    "parquet": ("spark_steps.sinks.parquet", "ParquetSink"),
    "postgresql": ("spark_steps.sinks.postgresql", "PostgreSqlSink"),
    "topic": ("spark_steps.sinks.topic", "TopicSink"),
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
