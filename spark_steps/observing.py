"""What the write pass counts of an output: rows, nulls, exact sums, the hash, and the numbers of the audit's checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from spark_steps.hashing import Fingerprint, aggregates, fingerprint, quoted, row_hash
from spark_steps.manifest import Column as Seen

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

MAX_PRECISION = 28
"""Digits of a decimal whose sum can not overflow Spark's 38."""


@dataclass(frozen=True, slots=True)
class Observed:
    fingerprint: Fingerprint
    columns: tuple[Seen, ...]
    counts: Mapping[str, int | str | None]

    @property
    def rows(self) -> int:
        return self.fingerprint.rows


class Metrics:
    """The aggregates over rows of a type, and how their values are read. ``counting`` are more of them by name."""

    def __init__(self, schema: StructType, counting: Mapping[str, Column]) -> None:
        self._schema = schema
        self._counting = dict(counting)

    def expressions(self) -> list[Column]:
        """For ``DataFrame.observe`` or ``DataFrame.agg``."""
        from pyspark.sql import functions as F

        found = aggregates(row_hash(self._schema), "hash_")
        for at, field in enumerate(self._schema.fields):
            column = F.col(quoted(field.name))
            found.append(F.count(column).alias(f"values_{at}"))
            found += [one.alias(f"sum_{at}_{part}") for part, one in _sums(column, field.dataType).items()]
        found += [one.alias(f"count_{at}") for at, one in enumerate(self._counting.values())]
        return found

    def read(self, values: Mapping[str, Any]) -> Observed:
        whole = fingerprint(values, "hash_")
        columns = []
        for at, field in enumerate(self._schema.fields):
            present = int(values[f"values_{at}"] or 0)
            parts = {
                part: values[f"sum_{at}_{part}"] for part in ("high", "low", "plain") if f"sum_{at}_{part}" in values
            }
            total = _total(parts, present)
            columns.append(Seen(field.name, field.dataType.simpleString(), whole.rows - present, total))
        counts = {name: _plain(values[f"count_{at}"]) for at, name in enumerate(self._counting)}
        return Observed(whole, tuple(columns), counts)


def _sums(column: Column, kind: DataType) -> dict[str, Column]:
    """The parts of an exact sum. A bigint is summed in two halves, so that no sum of bigints overflows."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    match kind:
        case T.ByteType() | T.ShortType() | T.IntegerType():
            return {"plain": F.sum(column.cast("bigint"))}
        case T.LongType():
            return {
                "high": F.sum(F.shiftright(column, 32)),
                "low": F.sum(column.bitwiseAND(F.lit(2**32 - 1))),
            }
        case T.DecimalType():
            return {"plain": F.sum(column) if kind.precision <= MAX_PRECISION else F.try_sum(column)}
        case _:
            return {}


def _total(parts: Mapping[str, Any], present: int) -> str | None:
    """As exact decimal text. None: no sum has a meaning, or it has more than 38 digits."""
    if not parts:
        return None
    if not present:
        return "0"
    if "high" in parts:
        return str(int(parts["high"]) * 2**32 + int(parts["low"]))
    return None if parts["plain"] is None else _decimal(Decimal(parts["plain"]))


def _decimal(value: Decimal) -> str:
    return format(value, "f")


def _plain(value: Any) -> int | str | None:
    match value:
        case None | int():
            return value
        case Decimal():
            return _decimal(value)
        case _:
            return str(value)
