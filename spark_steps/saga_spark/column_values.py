"""Values of a definition (`where`, `accepted_values`) as values of a column's type: compared exactly, or refused.

Spark would compare both sides as one wider type, which can round a decimal, and would read times in the session's zone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from sagas.definition.times import utc_if_naive
from sagas.errors import UsageError, did_you_mean
from sagas.text.exact_numbers import is_exact_double, is_exact_single
from sagas.text.sql_names import backquoted

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

_LONGER_THAN_MICROSECONDS = re.compile(r"\.\d{6}\d*[1-9]")
_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_EXACT = Context(prec=80)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def filter_condition(where: str | Mapping[str, Any] | None, schema: StructType, what: str) -> Column:
    """A filter of the definition as a condition on rows with this schema; true for every row if there is none.

    SQL, or for each column a value, a list of values, or null. ``what`` is the subject of errors. Raises UsageError for
    a column that does not exist, and for a value that its type cannot have.
    """
    from pyspark.sql import functions as F

    if isinstance(where, str):
        return F.expr(where)
    combined = F.lit(True)
    types = {field.name: field.dataType for field in schema.fields}
    for name, value in (where or {}).items():
        if name not in types:
            raise UsageError(f"{what} names the column {name}, which does not exist{did_you_mean(name, tuple(types))}")
        values = value if isinstance(value, list) else [value]
        equal = has_value(name, types[name], values, what)
        combined &= equal | F.col(backquoted(name)).isNull() if None in values else equal
    return combined


def has_value(name: str, kind: DataType, values: Sequence[Any], what: str) -> Column:
    """Return whether the column of this type has one of the values, without nulls.

    Raises UsageError for a value that it cannot have.
    """
    from pyspark.sql import functions as F

    exact = exact_values(name, kind, values, what)
    return F.col(backquoted(name)).isin([_literal(kind, value) for value in exact])


def exact_values(name: str, kind: DataType, values: Sequence[Any], what: str) -> list[Any]:
    """The values in the column's type, without nulls and those that no value of the type equals: without a session.

    Raises UsageError for a value that the column cannot have.
    """
    try:
        exact = [_exact(kind, value) for value in values if value is not None]
    except _Unsuitable as error:
        help = "quote it" if isinstance(kind, _texts()) else "correct the value"
        raise UsageError(
            f"{what}: the column {name} is {kind.simpleString()} and cannot be {error.args[0]}; {help}"
        ) from None
    return [value for value in exact if value is not None]


class _Unsuitable(Exception):
    """The column can never have this value."""


class NoEqual(Exception):
    """No value of the column's type equals the value."""


def _texts() -> tuple[type[DataType], ...]:
    from pyspark.sql import types as T

    return (T.StringType, T.VarcharType, T.CharType)


def _literal(kind: DataType, exact: Any) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    return F.timestamp_micros(F.lit(exact)) if isinstance(kind, T.TimestampType) else F.lit(exact).cast(kind)


def _exact(kind: DataType, value: Any) -> Any:
    """The value in the column's type; None if no value of the type equals it. Raises _Unsuitable."""
    from pyspark.sql import types as T

    try:
        match kind:
            case T.ByteType() | T.ShortType() | T.IntegerType() | T.LongType():
                number, limit = finite_number(value), 1 << (_BITS[kind.typeName()] - 1)
                return int(number) if number == number.to_integral_value() and -limit <= number < limit else None
            case T.DecimalType():
                number = finite_number(value)
                if number and number.adjusted() >= kind.precision - kind.scale:
                    return None
                exact = number.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
                return exact if exact == number else None
            case T.FloatType() | T.DoubleType():
                number = finite_number(value)
                fits = is_exact_single(number) if isinstance(kind, T.FloatType) else is_exact_double(number)
                return float(number) if fits else None
            case T.BooleanType():
                return {"true": True, "false": False}[str(value).lower()]
            case T.DateType():
                return date.fromisoformat(plain_text(value)).isoformat()
            case T.TimestampType():
                at = iso_time(value)
                return (utc_if_naive(at) - _EPOCH) // timedelta(microseconds=1)
            case T.TimestampNTZType():
                at = iso_time(value)
                if at.tzinfo is not None:
                    raise ValueError
                return at.isoformat()
            case _:
                return plain_text(value)
    except NoEqual:
        return None
    except (ValueError, KeyError, InvalidOperation):
        raise _Unsuitable(value) from None


def finite_number(value: Any) -> Decimal:
    """A number, which may be written as text. Raises ValueError, InvalidOperation."""
    if isinstance(value, bool):
        raise ValueError
    number = Decimal(str(value))
    if not number.is_finite():
        raise ValueError
    return number


def plain_text(value: Any) -> str:
    """Raises ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError
    return value


def iso_time(value: Any) -> datetime:
    """A time in ISO 8601, naive without a zone. Raises ValueError; NoEqual for a part of a microsecond."""
    text = plain_text(value).upper()
    if _LONGER_THAN_MICROSECONDS.search(text):  # Python would cut it off
        datetime.fromisoformat(text)
        raise NoEqual
    return datetime.fromisoformat(text)
