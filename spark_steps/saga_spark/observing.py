"""What the write pass counts of an output: rows, nulls, exact sums, the hash, and the numbers of the audit's checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from saga_spark.hashing import Fingerprint, aggregates, fingerprint, quoted, row_hash, wrapping_sums
from saga_spark.manifest import Column as Seen
from saga_spark.sums import MAX_PRECISION

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation
    from pyspark.sql.types import DataType, StructType

    from saga_spark.file_counts import Counted

ROWS = "hash_rows"
"""The name of the number of rows among what was observed."""


@dataclass(frozen=True, slots=True)
class Observed:
    fingerprint: Fingerprint
    columns: tuple[Seen, ...]
    counts: Mapping[str, int | str | None]

    @property
    def rows(self) -> int:
        return self.fingerprint.rows


@dataclass(frozen=True, slots=True)
class Known:
    """A number that is counted of a column in any case."""

    column: str
    what: Literal["nulls", "sum"]


class Metrics:
    """The aggregates over rows of a type, and how their values are read. ``counting`` are more numbers by name.

    The nulls of plain columns are not among them: the footers of the files have their number (``in_footers``).
    """

    def __init__(self, schema: StructType, counting: Mapping[str, Column | Known]) -> None:
        self._schema = schema
        self._counting = dict(counting)
        self.in_footers = tuple(field.name for field in schema.fields if _is_plain(field.dataType))

    def expressions(self) -> list[Column]:
        """For ``DataFrame.agg``."""
        return [*self._own(wrapping=False), *self._asked()]

    def observe(self, frame: DataFrame, own: Observation | None, asked: Observation, *, classic: bool) -> DataFrame:
        """The frame, counted while it is written. What the checks ask for is evaluated as the session has it (ANSI mode
        or not), apart from the rest, which ``own`` counts. None: that is counted from the files (:meth:`in_files`)."""
        from pyspark.sql import functions as F

        if own is None:
            return frame.observe(asked, F.count(F.lit(1)).alias(ROWS), *self._asked()) if self._asked() else frame
        if classic:
            with wrapping_sums(frame.sparkSession):
                frame = frame.observe(own, *self._own(wrapping=True))
        else:
            frame = frame.observe(own, *self._own(wrapping=False))
        return frame.observe(asked, *self._asked()) if self._asked() else frame

    def observed(self, own: Observation | None, asked: Observation) -> dict[str, Any]:
        """The values that :meth:`observe` has counted, the number of rows among them (``ROWS``) if it was counted."""
        return {**({} if own is None else own.get), **(asked.get if self._asked() else {})}

    def in_files(self, counted: Counted) -> dict[str, Any]:
        """What was counted from the files, in the place of what ``own`` would have observed."""
        whole = counted.fingerprint
        values: dict[str, Any] = {ROWS: whole.rows, "hash_word1": whole.first, "hash_word2": whole.second}
        for at, field in enumerate(self._schema.fields):
            if field.name in counted.sums:
                scale = getattr(field.dataType, "scale", 0)
                values[f"sum_{at}_plain"] = Decimal(f"{counted.sums[field.name]}E-{scale}")
        return values

    def _own(self, *, wrapping: bool) -> list[Column]:
        from pyspark.sql import functions as F

        found = aggregates(row_hash(self._schema), "hash_", wrapping=wrapping)
        for at, field in enumerate(self._schema.fields):
            column = F.col(quoted(field.name))
            if field.name not in self.in_footers:
                found.append(F.count(column).alias(f"values_{at}"))
            found += [one.alias(f"sum_{at}_{part}") for part, one in _sums(column, field.dataType).items()]
        return found

    def _asked(self) -> list[Column]:
        return [
            one.alias(f"count_{at}") for at, one in enumerate(self._counting.values()) if not isinstance(one, Known)
        ]

    def read(self, values: Mapping[str, Any], nulls: Mapping[str, int]) -> Observed:
        """``nulls`` of the columns ``in_footers``, by name."""
        whole = fingerprint(values, "hash_")
        columns = []
        for at, field in enumerate(self._schema.fields):
            missing = nulls.get(field.name)
            present = int(values[f"values_{at}"] or 0) if missing is None else whole.rows - missing
            parts = {
                part: values[f"sum_{at}_{part}"] for part in ("high", "low", "plain") if f"sum_{at}_{part}" in values
            }
            total = _total(parts, present)
            columns.append(Seen(field.name, field.dataType.simpleString(), whole.rows - present, total))
        seen = {one.name: one for one in columns}
        counts = {
            name: getattr(seen[one.column], one.what) if isinstance(one, Known) else _plain(values[f"count_{at}"])
            for at, (name, one) in enumerate(self._counting.items())
        }
        return Observed(whole, tuple(columns), counts)


def _is_plain(kind: DataType) -> bool:
    """Is it one Parquet column, whose nulls are the nulls of the value?"""
    from pyspark.sql import types as T

    return isinstance(kind, T.AtomicType) and not isinstance(kind, T.VariantType)


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
