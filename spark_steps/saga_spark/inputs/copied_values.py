"""Values of a database, read as text from COPY, in the types of Parquet: each exactly, or refused with its column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from saga_spark.job_errors import MAX_MESSAGE_LENGTH, UnreadableInput

MAX_PRECISION = 38
"""The digits of the longest decimal in Spark and in Iceberg."""

USUAL_SCALE = 18
"""The scale of a numeric without precision if all values fit into it, as in Spark's own JDBC source: a scale that
varied with the values would not fit a table that earlier days have created."""

_NATIVE_TYPES: dict[int, pa.DataType] = {
    16: pa.bool_(),
    20: pa.int64(),
    21: pa.int32(),
    23: pa.int32(),
    700: pa.float32(),
    701: pa.float64(),
}
"""Types all of whose values the CSV parser reads exactly."""

_CONVERTED_TYPES: dict[int, pa.DataType] = {
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", tz="UTC"),
}
_NUMERIC, _MONEY, _BYTEA = 1700, 790, 17
_DECIMAL_PARTS = r"^-?0*(?P<before>[0-9]*)(?:\.(?P<shown>(?P<after>[0-9]*?)0*))?$"
"""The digits before the point, those after it without zeros at the end, and with them."""

_NOT_FINITE = pa.array(["NaN", "Infinity", "-Infinity"])


@dataclass(frozen=True, slots=True)
class CopiedColumn:
    """A column of a query.

    ``declared`` is its type in the database. ``type`` is its type in Parquet: string for types without a counterpart
    (uuid, json, time, arrays …), None for a decimal whose scale depends on the values.
    """

    name: str
    declared: str
    type: pa.DataType | None
    as_numeric: bool = False

    @staticmethod
    def of(column: Any) -> CopiedColumn:
        """``column`` is an entry of a cursor's description."""
        code, declared = column.type_code, column.type_display
        if code == _BYTEA:
            return CopiedColumn(column.name, declared, pa.binary())
        if code == _MONEY:  # its text depends on the locale of the database
            return CopiedColumn(column.name, declared, None, as_numeric=True)
        if code == _NUMERIC:
            precision, scale = column.precision, column.scale or 0
            fits = precision is not None and precision <= MAX_PRECISION and 0 <= scale <= precision
            return CopiedColumn(column.name, declared, pa.decimal128(precision, scale) if fits else None)
        return CopiedColumn(column.name, declared, _NATIVE_TYPES.get(code) or _CONVERTED_TYPES.get(code) or pa.string())

    @property
    def copied_type(self) -> pa.DataType:
        """The type in which the CSV parser reads the column: text where it would fail, or round, without a name."""
        return self.type if self.type in _NATIVE_TYPES.values() else pa.string()


class DecimalRange:
    """The decimals seen in a column without a usable precision, and the type that holds them all."""

    def __init__(self, input_name: str, column: CopiedColumn) -> None:
        self._input_name = input_name
        self._column = column
        self._most = {"before": 0, "after": 0, "shown": 0}
        self._examples: dict[str, str] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Raises UnreadableInput for a value that no decimal holds."""
        with _naming_rows(self._input_name, batch):
            self._add(batch.column(self._column.name))

    def _add(self, texts: pa.Array) -> None:
        _refuse_not_finite(self._column, texts)
        texts = texts.drop_null()
        if not len(texts):
            return
        parts = pc.call_function("extract_regex", [texts], pc.ExtractRegexOptions(_DECIMAL_PARTS))
        lengths = {part: pc.call_function("utf8_length", [parts.field(part)]) for part in ("before", "after", "shown")}
        digits = pc.call_function("add", [lengths["before"], lengths["after"]])
        most, row = _greatest(digits)
        if most > MAX_PRECISION:
            reason = f"has {most} digits, and a decimal of Spark holds {MAX_PRECISION}"
            raise _RefusedValue(self._column, texts[row].as_py(), reason)
        for part, counts in lengths.items():
            most, row = _greatest(counts)
            if most > self._most[part]:
                self._most[part], self._examples[part] = most, texts[row].as_py()

    def decide(self) -> pa.DataType:
        """Raises UnreadableInput if no decimal holds all values seen."""
        before, after, shown = (self._most[part] for part in ("before", "after", "shown"))
        if before <= MAX_PRECISION - USUAL_SCALE and after <= USUAL_SCALE:
            return pa.decimal128(MAX_PRECISION, USUAL_SCALE)
        if before + after > MAX_PRECISION:
            raise UnreadableInput(
                f"the input {self._input_name} has the values {_shorten(self._examples['before'])} and "
                f"{_shorten(self._examples['after'])} in the column {self._column.name} ({self._column.declared}), and "
                f"no decimal of {MAX_PRECISION} digits holds both; round the column in the `query`, or read it as text "
                f"({self._column.name}::text)"
            )
        return pa.decimal128(MAX_PRECISION, max(after, min(shown, MAX_PRECISION - before)))


def _greatest(numbers: pa.Array) -> tuple[int, int]:
    """The greatest number, and its position."""
    most = pc.call_function("max", [numbers])
    return most.as_py(), pc.call_function("index", [numbers], pc.IndexOptions(most)).as_py()


def convert_batch(
    input_name: str, batch: pa.RecordBatch, columns: Sequence[CopiedColumn], types: Iterable[pa.DataType]
) -> list[pa.Array]:
    """The columns of a batch in their ``types``. Raises UnreadableInput."""
    with _naming_rows(input_name, batch):
        return [
            _convert(column, array, kind) for column, array, kind in zip(columns, batch.columns, types, strict=True)
        ]


class _RefusedValue(Exception):
    """A column has a value that cannot be read, for this reason."""

    def __init__(self, column: CopiedColumn, value: str, reason: str) -> None:
        super().__init__(reason)
        self.column, self.value, self.reason = column, value, reason


@contextmanager
def _naming_rows(input_name: str, batch: pa.RecordBatch) -> Iterator[None]:
    """Report a refused value of the batch with its column, and its row by the first other column."""
    try:
        yield
    except _RefusedValue as refused:
        column, row = refused.column, ""
        texts = batch.column(column.name)
        place = pc.call_function("index", [texts], pc.IndexOptions(pa.scalar(refused.value, texts.type))).as_py()
        other = next((name for name in batch.schema.names if name != column.name), None)
        if other is not None and place >= 0:
            row = f" of the row with {other} = {_shorten(str(batch.column(other)[place]))}"
        raise UnreadableInput(
            f"the input {input_name} has the value {_shorten(refused.value)} in the column {column.name} "
            f"({column.declared}){row}, which {refused.reason}; read the column as text in a `query` "
            f"({column.name}::text), or leave such rows out"
        ) from None


def plain_decimals(texts: pa.Array) -> pa.Array:
    """The texts without zeros at the end of a fraction: Arrow counts them as digits."""
    trimmed = pc.call_function(
        "ascii_rtrim",
        [pc.call_function("ascii_rtrim", [texts], pc.TrimOptions("0"))],
        pc.TrimOptions("."),
    )
    has_point = pc.call_function("match_substring", [texts], pc.MatchSubstringOptions("."))
    return pc.call_function("if_else", [has_point, trimmed, texts])


def _convert(column: CopiedColumn, array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if pa.types.is_binary(kind):  # PostgreSQL's text form of bytea, \x0a0b
        return pa.array([None if text is None else bytes.fromhex(text[2:]) for text in array.to_pylist()], kind)
    if pa.types.is_decimal(kind):
        _refuse_not_finite(column, array)
        return plain_decimals(array).cast(kind)
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        value = next(text for text in array.to_pylist() if text is not None and not _is_readable(text, kind))
        raise _RefusedValue(column, value, "Spark cannot read: it holds the years 1 to 9999 and no infinity") from None


def _refuse_not_finite(column: CopiedColumn, texts: pa.Array) -> None:
    special = pc.call_function("is_in", [texts], pc.SetLookupOptions(_NOT_FINITE))
    row = pc.call_function("index", [special], pc.IndexOptions(pa.scalar(True))).as_py()
    if row >= 0:
        raise _RefusedValue(column, texts[row].as_py(), "no decimal of Spark holds")


def _is_readable(text: str, kind: pa.DataType) -> bool:
    try:
        pa.array([text]).cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _shorten(value: str) -> str:
    limit = MAX_MESSAGE_LENGTH // 4
    return value if len(value) <= limit else f"{value[:limit]} … ({len(value)} characters)"
