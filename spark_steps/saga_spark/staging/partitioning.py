"""Groups the rows of an output by the partitions of its table, so that each staged file holds one partition.

Iceberg's transforms are defined on UTC and on bytes. The expressions here give the same partitions in every time zone
of the session. The sink computes the partition of each file again from its values, and refuses a file that has several.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from saga_spark.job.job_spec import Output
from saga_spark.settings import SparkSettings
from sagas.errors import UsageError, did_you_mean
from sagas.text.sql_names import backquoted

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

PARTITION_COLUMN = "saga_partition"
"""The column that names the folders. No leading underscore: Spark hides such folders."""

_MICROSECONDS = {"day": 86_400_000_000, "hour": 3_600_000_000}

_ZERO_SEED = -1693959553
"""An int whose murmur3 hash with Spark's seed 42 is 0: hashed before a value, it gives the seed 0 that Iceberg uses."""

_PARAMETER = re.compile(r"(bucket|truncate)\[(\d+)\]")


def partition_key(output: Output, schema: StructType, settings: SparkSettings) -> Column | None:
    """One string for each partition: of an existing table, else of ``partition_by``. None without partitions.

    A digest: values may be null, empty, or longer than the name of a folder.

    Raises UsageError: a transform that only Iceberg itself computes, or a column that does not exist.
    """
    from pyspark.sql import functions as F

    keys = []
    types = {field.name: field.dataType for field in schema.fields}
    for name, transform in _partition_fields(output, settings):
        if name not in types:
            hint = did_you_mean(name, tuple(types))
            raise UsageError(f"the output {output.name} is partitioned by {name}, but has no such column{hint}")
        key = _transformed(F.col(backquoted(name)), types[name], transform)
        if key is None:
            raise UsageError(
                f"the table {output.destination} is partitioned by {transform}({name}), which a spark step cannot "
                "write; partition by columns, years, months, days, hours, buckets or truncated values"
            )
        keys.append(key.alias(f"p{len(keys)}"))
    return F.sha2(F.to_json(F.struct(*keys)), 256) if keys else None


def _partition_fields(output: Output, settings: SparkSettings) -> list[tuple[str, str]]:
    if output.kind == "iceberg":
        from saga_spark.sinks.iceberg.catalog import TableName, load_table, open_catalog

        table_name = TableName.parse(output.destination)
        table = load_table(open_catalog(settings, table_name.catalog), table_name)
        if table is not None:
            schema = table.schema()
            return [
                (schema.find_column_name(field.source_id) or "", str(field.transform))
                for field in table.spec().fields
                if str(field.transform) != "void"
            ]
    return [(name, "identity") for name in output.partition_by]


def _transformed(column: Column, kind: DataType, transform: str) -> Column | None:
    """A value that is equal for two rows exactly if ``transform`` is; None if the transform is not supported."""
    if transform == "identity":
        return _exact_value(column, kind)
    if transform in ("year", "month", "day", "hour"):
        return _time_key(column, kind, transform)
    parameter = _PARAMETER.fullmatch(transform)
    if parameter is None:
        return None
    number = int(parameter[2])
    return _bucket(column, kind, number) if parameter[1] == "bucket" else _truncated(column, kind, number)


def _exact_value(column: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    match kind:
        case T.TimestampType():
            return F.unix_micros(column)  # as text, the repeated hour of a time zone is the same twice
        case T.BinaryType():
            return F.hex(column)
        case _:
            return column.cast("string")


def _time_key(column: Column, kind: DataType, transform: str) -> Column | None:
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    match kind:
        case T.DateType():
            date, hour = column, None
        case T.TimestampNTZType():
            date, hour = column.cast("date"), F.hour(column)
        case T.TimestampType():
            microseconds = F.unix_micros(column)
            if transform in _MICROSECONDS:
                return microseconds - F.pmod(microseconds, F.lit(_MICROSECONDS[transform]))
            day = F.lit(_MICROSECONDS["day"])
            date, hour = (
                F.date_from_unix_date(F.round((microseconds - F.pmod(microseconds, day)) / day).cast("int")),
                None,
            )
        case _:
            return None
    match transform:
        case "year":
            return F.year(date)
        case "month":
            return F.year(date) * 12 + F.month(date)
        case "day":
            return F.unix_date(date)
    return None if hour is None else F.unix_date(date) * 24 + hour


def _bucket(column: Column, kind: DataType, buckets: int) -> Column | None:
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    match kind:
        case T.ByteType() | T.ShortType() | T.IntegerType() | T.LongType():
            number = column.cast("bigint")
        case T.DateType():
            number = F.unix_date(column).cast("bigint")
        case T.TimestampType():
            number = F.unix_micros(column)
        case T.TimestampNTZType():
            days = F.unix_date(column.cast("date")).cast("bigint")
            seconds = F.hour(column) * 3600 + F.minute(column) * 60
            fraction = (F.extract(F.lit("SECOND"), column) * 1_000_000).cast("bigint")
            number = days * _MICROSECONDS["day"] + seconds.cast("bigint") * 1_000_000 + fraction
        case T.StringType() | T.BinaryType() | T.VarcharType() | T.CharType() | T.DecimalType():
            return F.udf(_bucket_function(buckets), "int", useArrow=False)(column)
        case _:
            return None
    hashed = F.hash(F.lit(_ZERO_SEED), number)
    return F.when(number.isNotNull(), hashed.bitwiseAND(F.lit(0x7FFFFFFF)) % buckets)


def _truncated(column: Column, kind: DataType, width: int) -> Column | None:
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    match kind:
        case T.ByteType() | T.ShortType() | T.IntegerType() | T.LongType():
            number = column.cast("decimal(20,0)")  # the lowest bigint minus its remainder is not a bigint
            return number - F.pmod(number, F.lit(width).cast("decimal(20,0)"))
        case T.StringType() | T.VarcharType() | T.CharType():
            return F.substring(column, 1, width)
        case T.BinaryType():
            return F.hex(F.substring(column, 1, width))
        case T.DecimalType():
            return F.udf(_decimal_truncation(width), "string", useArrow=False)(column)
        case _:
            return None


# Python functions of Spark's workers. They are closures, so that they travel by value: the machines of a cluster need
# neither this package nor pyiceberg.
def _bucket_function(buckets: int) -> Callable[[Any], int | None]:
    def bucket(value: Any) -> int | None:
        """Murmur3 (x86, 32 bits, seed 0) of the UTF-8 text, the bytes, or a decimal's shortest two's complement."""
        if value is None:
            return None
        if isinstance(value, str):
            data = value.encode()
        elif isinstance(value, bytes | bytearray):
            data = bytes(value)
        else:
            sign, digits, _ = value.as_tuple()
            unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
            bits = (unscaled if unscaled >= 0 else unscaled + 1).bit_length()
            data = unscaled.to_bytes(bits // 8 + 1, "big", signed=True)
        mask, hashed = 0xFFFFFFFF, 0
        whole = len(data) - len(data) % 4
        for index in range(0, len(data), 4):
            word = int.from_bytes(data[index : index + 4], "little") * 0xCC9E2D51 & mask
            word = (word << 15 | word >> 17) * 0x1B873593 & mask
            hashed ^= word
            if index < whole:
                hashed = ((hashed << 13 | hashed >> 19) * 5 + 0xE6546B64) & mask
        hashed ^= len(data)
        hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & mask
        hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & mask
        return ((hashed ^ hashed >> 16) & 0x7FFFFFFF) % buckets

    return bucket


def _decimal_truncation(width: int) -> Callable[[Any], str | None]:
    def truncate(value: Any) -> str | None:
        if value is None:
            return None
        sign, digits, _ = value.as_tuple()
        unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
        return str(unscaled - unscaled % width)

    return truncate
