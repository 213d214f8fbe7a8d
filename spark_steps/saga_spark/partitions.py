"""By what an output is partitioned, so that each staged file holds one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saga_spark.errors import JobFailed
from saga_spark.hashing import quoted
from saga_spark.job import Output
from saga_spark.settings import SparkSettings
from sagas.errors import UsageError
from sagas.settings.model import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

FORMATS = {"year": "yyyy", "month": "yyyy-MM", "day": "yyyy-MM-dd", "hour": "yyyy-MM-dd-HH"}
"""Iceberg's transforms of times, as texts that are equal within one partition and different between two."""


def partition_columns(output: Output, schema: StructType, settings: SparkSettings) -> list[Column]:
    """One expression for each partition field: those of an existing table, else what ``partition_by`` names.

    Raises UsageError (a transform that only Iceberg itself computes), JobFailed (there is no such column).
    """
    from pyspark.sql import functions as F

    found = []
    for name, transform in _fields(output, settings):
        if name not in schema.names:
            known = did_you_mean(name, tuple(schema.names))
            raise JobFailed(f"the output {output.name} is partitioned by {name}, and has no such column{known}")
        column = F.col(quoted(name))
        if transform == "identity":
            found.append(column)
        elif transform in FORMATS:
            found.append(F.date_format(column, FORMATS[transform]))
        elif transform != "void":
            raise UsageError(
                f"the table {output.place} is partitioned by {transform}({name}), which a spark step cannot write; "
                "it writes partitions by columns, years, months, days and hours"
            )
    return found


def _fields(output: Output, settings: SparkSettings) -> list[tuple[str, str]]:
    if output.kind == "iceberg":
        from saga_spark.sinks.iceberg_catalogs import Place, load_table, open_catalog

        place = Place.parse(output.place)
        table = load_table(open_catalog(settings, place.catalog), place)
        if table is not None:
            schema = table.schema()
            return [(schema.find_column_name(one.source_id) or "", str(one.transform)) for one in table.spec().fields]
    return [(name, "identity") for name in output.partition_by]
