"""Whether a table takes an output: asked in the audit, and again right before the commit."""

from __future__ import annotations

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform

from saga_spark.job import Output
from saga_spark.sinks.iceberg_schema import partition_problems, schema_problems, staged_schema
from saga_spark.sinks.sink import Publication


def misfits(metadata: TableMetadata, publication: Publication) -> list[str]:
    """One sentence for each way in which schema, partitions or properties of the table do not fit the output.

    Raises ValueError: a column's type has no counterpart in Iceberg.
    """
    output, manifest = publication.output, publication.manifest
    problems = schema_problems(metadata.schema(), staged_schema(manifest), manifest, output.place)
    problems += partition_problems(metadata.spec(), metadata.schema(), output.partition_by, output.place)
    return problems + _table_problems(metadata, output)


def _table_problems(metadata: TableMetadata, output: Output) -> list[str]:
    """What this sink cannot do with a table as it is."""
    problems = []
    if metadata.format_version > 2:
        problems.append(f"the table {output.place} has the format version {metadata.format_version}, above 2")
    parts = metadata.spec().fields
    if output.mode == "overwrite_partitions":
        if not parts:
            problems.append(f"the mode overwrite_partitions needs partitions, and the table {output.place} has none")
        elif not all(isinstance(part.transform, IdentityTransform) for part in parts):
            problems.append(f"the mode overwrite_partitions needs partitions by plain columns in {output.place}")
    mapping = metadata.name_mapping()
    if mapping is not None:
        mapped = {name for field in mapping for name in field.names}
        for column in metadata.schema().column_names:
            if "." not in column and column not in mapped:
                problems.append(f"the table's name mapping lacks {column}, so that files without field ids lose it")
    return problems
