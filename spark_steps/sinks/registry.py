"""Which sink serves which kind of output."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Literal

from sagas.errors import UsageError
from spark_steps.job import Output
from spark_steps.settings import SparkSettings
from spark_steps.sinks.sink import Sink

Kind = Literal["iceberg", "parquet", "postgresql"]

# Imported on first use: a project that only writes Parquet loads neither pyiceberg nor psycopg.
_SINKS: dict[Kind, tuple[str, str]] = {
    "iceberg": ("spark_steps.sinks.iceberg", "IcebergSink"),
    "parquet": ("spark_steps.sinks.parquet", "ParquetSink"),
    "postgresql": ("spark_steps.sinks.postgresql", "PostgreSqlSink"),
}


def sink_for(kind: Kind, settings: SparkSettings) -> Sink:
    """The sink for outputs of this kind. It holds no connection between two calls, so it may be made each time."""
    module, name = _SINKS[kind]
    return getattr(import_module(module), name)(settings)


def transaction_domain(output: Output) -> str | None:
    """What one atomic commit can span: outputs of the same domain can be published together. None: this output can be
    published alone only."""
    if output.kind == "iceberg":
        return f"the catalog {output.place.partition('.')[0]}"
    return f"the database of the connection {output.connection}" if output.kind == "postgresql" else None


def validate_together(outputs: Sequence[Output]) -> None:
    """Refuse `publish: together` where no single commit spans all outputs. Raises UsageError, one sentence."""
    if len(outputs) < 2:
        return
    domains = {output.name: transaction_domain(output) for output in outputs}
    for name, domain in domains.items():
        if domain is None:
            raise UsageError(
                f"the output {name} is Parquet with its own pointer, which cannot be published together with others"
            )
    if len(set(domains.values())) > 1:
        told = " and ".join(f"{name} in {domain}" for name, domain in domains.items())
        raise UsageError(f"no single commit can publish these together: {told}")


def ask_catalogs(outputs: Sequence[Output], settings: SparkSettings) -> None:
    """Refuse `publish: together` where a catalog, asked itself, has no transactions over several tables.

    Raises UsageError, one sentence; Infrastructure: a catalog does not answer.
    """
    for output in outputs:
        if output.kind == "iceberg":
            module, name = _SINKS["iceberg"]
            getattr(import_module(module), name)(settings).validate(output, together=True)
