"""Two sides in the same types, so that equal values look, and hash, the same whatever system they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from saga_spark.frames import condition
from saga_spark.hashing import quoted
from saga_spark.reconcile.spec import Spec
from sagas.errors import UsageError
from sagas.settings.model import did_you_mean

_DIGITS = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 19}
_TEXTS = (T.StringType, T.CharType, T.VarcharType)
_MOMENTS = (T.DateType, T.TimestampNTZType, T.TimestampType)
_NESTED = (T.ArrayType, T.StructType)
_PRECISION = 38


@dataclass(frozen=True, slots=True)
class Aligned:
    """Both sides with columns ``k0 …`` (the key) and ``v0 …`` (what is compared), in the same types.

    ``numbers`` are the positions of the values to which a tolerance applies.
    """

    left: DataFrame
    right: DataFrame
    key: tuple[str, ...]
    values: tuple[str, ...]
    numbers: Mapping[int, Literal["exact", "float"]]


def align(left: DataFrame, right: DataFrame, spec: Spec) -> Aligned:
    """Raises UsageError: a column is missing, or two columns hold things that cannot be compared."""
    right = _renamed(right, spec)
    compare = spec.compare
    if compare is None:
        compare = tuple(name for name in left.columns if name in right.columns and name not in spec.key)
    for name in (*spec.key, *compare):
        for side, frame in (("left", left), ("right", right)):
            if name not in frame.columns:
                known = did_you_mean(name, tuple(frame.columns))
                raise UsageError(f"the {side} side has no column {name}{known}")
    if spec.filter is not None:
        left, right = left.where(condition(spec.filter)), right.where(condition(spec.filter))
    types = {
        name: common_type(name, left.schema[name].dataType, right.schema[name].dataType)
        for name in (*spec.key, *compare)
    }

    def chosen(frame: DataFrame) -> DataFrame:
        columns = [(f"k{at}", name) for at, name in enumerate(spec.key)]
        columns += [(f"v{at}", name) for at, name in enumerate(compare)]
        return frame.select(
            *(_cast(F.col(quoted(name)), frame.schema[name].dataType, types[name]).alias(to) for to, name in columns)
        )

    numbers: dict[int, Literal["exact", "float"]] = {}
    for at, name in enumerate(compare):
        if isinstance(types[name], T.NumericType):
            numbers[at] = "float" if isinstance(types[name], T.DoubleType) else "exact"
    return Aligned(chosen(left), chosen(right), spec.key, compare, numbers)


def common_type(name: str, left: T.DataType, right: T.DataType) -> T.DataType:
    """The type in which both sides' values of a column are compared. Raises UsageError: there is none."""
    if isinstance(left, T.NullType):
        return right
    if isinstance(right, T.NullType):
        return left
    pair = (left, right)
    if all(type(one) in _DIGITS for one in pair):
        return T.LongType()
    if all(isinstance(one, T.NumericType) for one in pair):
        exact = all(isinstance(one, T.DecimalType) or type(one) in _DIGITS for one in pair)
        return _decimal(left, right) if exact else T.DoubleType()
    if all(isinstance(one, _TEXTS) or type(one) in _DIGITS for one in pair):
        return T.StringType()  # a number kept as text, as ids often are
    if all(isinstance(one, _MOMENTS) for one in pair):
        return max(pair, key=lambda one: _MOMENTS.index(type(one)))
    for plain in (T.BooleanType, T.BinaryType):
        if all(isinstance(one, plain) for one in pair):
            return plain()
    if all(isinstance(one, _NESTED) for one in pair) and type(left) is type(right):
        return T.StringType()  # as JSON with its nulls
    raise UsageError(
        f"the column {name} is {left.simpleString()} on the left and {right.simpleString()} on the right, "
        "which cannot be compared",
        help="cast one of them, with `query` or in the job",
    )


def _decimal(left: T.DataType, right: T.DataType) -> T.DecimalType:
    """One decimal type that holds both: decimal(10,1) and decimal(10,2) hash differently."""
    sizes = [
        (one.precision - one.scale, one.scale) if isinstance(one, T.DecimalType) else (_DIGITS[type(one)], 0)
        for one in (left, right)
    ]
    scale = max(scale for _, scale in sizes)
    whole = max(whole for whole, _ in sizes)
    return T.DecimalType(min(_PRECISION, whole + scale), scale)


def _cast(column: Column, found: T.DataType, wanted: T.DataType) -> Column:
    if isinstance(found, _NESTED):
        return F.to_json(column, {"ignoreNullFields": "false"})
    column = column.cast(wanted)
    if isinstance(wanted, T.DoubleType):  # -0.0 equals 0.0 and has other bits
        return F.when(column == F.lit(0.0), F.lit(0.0)).otherwise(column)
    return column


def _renamed(right: DataFrame, spec: Spec) -> DataFrame:
    for to, name in spec.mapping.items():
        if name not in right.columns:
            known = did_you_mean(name, tuple(right.columns))
            raise UsageError(f"`mapping`: the right side has no column {name}{known}")
        if to != name and to in right.columns:
            right = right.drop(to)
        right = right.withColumnRenamed(name, to)
    return right
