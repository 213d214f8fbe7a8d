"""A 128-bit hash of a multiset of rows: the same for the same rows in any order, on any number of partitions.

Each row gives two 64-bit words; a table's hash is their sums modulo 2⁶⁴ together with the number of rows. Sums, unlike
XOR, see duplicates. It tells accidents from agreement; it is no protection against somebody who looks for a collision.

Each value is hashed for itself (xxHash64), turned by an angle of its column's own, and XORed with those of its row;
what comes out is hashed once more, so that nothing cancels out between rows. Hence a value that comes often can be
hashed once: see file_counts.py, which gives the same hash from Parquet files. A number of at most 64 bits gives one
hash, which is as good as the number; everything else gives two, under two seeds.

Before hashing, values get one canonical form, so that the same value is the same in every type of its family: all
integers are bigint, float is double, -0.0 is 0.0, 1.5 and 1.50 are one decimal, maps are sorted by key. Nulls count:
(null, 'a') is not ('a', null), inside structs, arrays and maps too. Names of columns do not count, their order does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType, DecimalType, StructType

SECOND_WORD_SALT = 0x2D31_3238
"""Hashed before the value for the second word: xxHash64 chains, so it starts an independent sequence."""

FLAGS_PER_BIGINT = 62
"""Null flags that fit into one bigint."""

_MODULUS = 2**64

SMALL_DECIMAL_SCALE = 6
"""Digits after the point of the decimals that are a bigint."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """``rows`` and the two sums modulo 2⁶⁴. Fingerprints of disjoint parts add up to that of the whole."""

    rows: int = 0
    first: int = 0
    second: int = 0

    def __add__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(
            self.rows + other.rows, (self.first + other.first) % _MODULUS, (self.second + other.second) % _MODULUS
        )

    @property
    def hex(self) -> str:
        """The 128-bit hash: 32 hexadecimal digits."""
        parts = b"".join(one.to_bytes(8, "big") for one in (self.rows, self.first, self.second))
        return hashlib.blake2b(parts, digest_size=16).hexdigest()


def combine(parts: Iterable[Fingerprint]) -> Fingerprint:
    """The fingerprint of all rows together."""
    return reduce(Fingerprint.__add__, parts, Fingerprint())


def read_fingerprint(values: Mapping[str, Any], prefix: str = "") -> Fingerprint:
    """What :func:`aggregates` have counted, read from a row or an observation. No rows: all of them are null."""

    def value(name: str) -> int:
        return int(values[prefix + name] or 0)

    if f"{prefix}word1" in values:
        return Fingerprint(value("rows"), value("word1") % _MODULUS, value("word2") % _MODULUS)
    first, second = (value(f"high{number}") * 2**32 + value(f"low{number}") for number in (1, 2))
    return Fingerprint(value("rows"), first % _MODULUS, second % _MODULUS)


def fingerprint_aggregates(words: tuple[Column, Column], prefix: str = "", *, wrapping: bool = False) -> list[Column]:
    """Aggregate expressions over the words of :func:`row_hash`; use them in ``agg``, after ``groupBy``, or to observe.

    The halves of a word are summed apart and as signed numbers, so that nothing overflows, in ANSI mode neither:
    not before 2³² rows that are all equal. ``wrapping``: they are used inside :func:`wrapping_sums`; then a word is
    one sum, which is faster and the same modulo 2⁶⁴.
    """
    from pyspark.sql import functions as F

    found = [F.count(F.lit(1)).alias(f"{prefix}rows")]
    for number, word in enumerate(words, 1):
        if wrapping:
            found.append(F.sum(word).alias(f"{prefix}word{number}"))
            continue
        low, high = signed_halves(word)
        found += [
            F.sum(low).alias(f"{prefix}low{number}"),
            F.sum(high).alias(f"{prefix}high{number}"),
        ]
    return found


def signed_halves(word: Column) -> tuple[Column, Column]:
    """Of a bigint: low + high · 2³² is the word. Sums of them do not overflow."""
    from pyspark.sql import functions as F

    low = F.shiftright(F.shiftleft(word, 32), 32)
    return low, F.shiftright(word, 32) + F.shiftright(word, 31).bitwiseAND(F.lit(1))  # one more where low is negative


@contextmanager
def wrapping_sums(spark: SparkSession) -> Iterator[None]:
    """Sums of bigints in frames that are made inside wrap around instead of failing, whenever the frames run.

    Only for the classic session, which decides it when a frame is made; Spark Connect decides when it runs.
    """
    name = "spark.sql.ansi.enabled"
    before = spark.conf.get(name)
    assert before is not None  # it has a default
    spark.conf.set(name, "false")
    try:
        yield
    finally:
        spark.conf.set(name, before)


def row_hash(schema: StructType, columns: Sequence[str] | None = None) -> tuple[Column, Column]:
    """The two words of a row, as bigint columns. ``columns`` are names in the order that counts; None: all."""
    from pyspark.sql import functions as F

    first, second = _row_words(schema, columns)
    return F.expr(first), F.expr(second)


def _row_words(schema: StructType, columns: Sequence[str] | None) -> tuple[str, str]:
    """As SQL: Spark takes a text in one call, and an expression made of columns in hundreds."""
    fields = list(schema.fields) if columns is None else [schema[name] for name in columns]
    firsts: list[str] = []
    seconds: list[str] = []
    for at, field in enumerate(fields):
        parts = _canonical(quote_name(field.name), field.dataType)
        one = _hash(*parts)  # 42 for a null
        other = one if fits_one_word(field.dataType) else _hash(f"{SECOND_WORD_SALT}L", *parts)
        for words, word, angle in zip((firsts, seconds), (one, other), rotations(at), strict=True):
            words.append(_rotate_left(word, angle))
    first = _hash(_xor(firsts))
    return first, f"{first} ^ {_xor(seconds)}"


def rotations(position: int) -> tuple[int, int]:
    """By how many bits the two hashes of the values of column ``at`` are turned to the left. No two of 4096 columns
    have the same pair."""
    return position % 64, (29 * position + 17 + position // 64) % 64


def fits_one_word(data_type: DataType) -> bool:
    """Is the canonical form of each value, in each type of the family, one number of at most 64 bits?"""
    from pyspark.sql import types as T

    numbers = (T.IntegralType, T.FloatType, T.DoubleType, T.BooleanType, T.DateType, T.TimestampType)
    return isinstance(data_type, (*numbers, T.TimestampNTZType))


def is_small_decimal(data_type: DecimalType) -> bool:
    """Does each value fit into decimal(18, 6), a bigint inside?"""
    return data_type.scale <= SMALL_DECIMAL_SCALE and data_type.precision - data_type.scale <= 18 - SMALL_DECIMAL_SCALE


def key_bucket(schema: StructType, key: Sequence[str], buckets: int) -> Column:
    """In which of ``buckets`` a row belongs by its key: 0 to ``buckets`` - 1, the same for equal keys on all sides."""
    from pyspark.sql import functions as F

    return F.expr(f"cast(pmod({_row_words(schema, key)[0]}, {buckets}) as int)")


def quote_name(name: str) -> str:
    """A column name for Spark's own parser: a dot in it is no path."""
    return "`" + name.replace("`", "``") + "`"


def _hash(*parts: str) -> str:
    return f"xxhash64({', '.join(parts)})"


def _xor(words: Sequence[str]) -> str:
    """In halves: Spark's parser goes as deep as the expression."""
    if len(words) == 1:
        return words[0]
    half = len(words) // 2
    return f"({_xor(words[:half])} ^ {_xor(words[half:])})"


def _struct_field(column: str, name: str) -> str:
    """A field of a struct. Not with a dot: `t`.`f` may be the column f of a table t."""
    literal = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"{column}['{literal}']"


def _rotate_left(word: str, bits: int) -> str:
    """The bits of a bigint, turned to the left. Neither shifts nor OR can overflow, in ANSI mode neither."""
    return word if bits == 0 else f"(shiftleft({word}, {bits}) | shiftrightunsigned({word}, {64 - bits}))"


def _null_flags_and_values(values: Sequence[tuple[str, DataType, bool]], depth: int) -> str:
    """What is hashed of some values, as a struct: their null flags, packed, then the canonical values. xxHash64 skips
    nulls."""
    flags: list[str] = []
    for start in range(0, len(values), FLAGS_PER_BIGINT):
        bits = [
            f"if({column} is null, {1 << place}L, 0L)"
            for place, (column, _, nullable) in enumerate(values[start : start + FLAGS_PER_BIGINT])
            if nullable
        ]
        flags.append(" | ".join(bits) or "0L")
    parts = [part for column, kind, _ in values for part in _canonical(column, kind, depth)]
    return f"struct({', '.join([*flags, *parts])})"


def _canonical(column: str, data_type: DataType, depth: int = 0) -> list[str]:
    """One value as one or more expressions of which xxHash64 takes those that are not null. ``depth``: of arrays and
    maps, whose items each have a name of their own."""
    from pyspark.sql import types as T

    item = f"item{depth}"
    match data_type:
        case T.IntegerType() | T.ShortType() | T.ByteType() | T.NullType():
            return [f"cast({column} as bigint)"]
        case T.FloatType() | T.DoubleType():
            return [f"cast({column} as double) + 0D"]
        case T.DecimalType():
            return _canonical_decimal(column, data_type)
        case T.StructType():
            fields = [(_struct_field(column, one.name), one.dataType, True) for one in data_type.fields]
            return [f"if({column} is not null, {_null_flags_and_values(fields, depth)}, null)"]
        case T.ArrayType():
            parts = _null_flags_and_values([(item, data_type.elementType, True)], depth + 1)
            items = f"transform({column}, {item} -> {parts})"
            # Not `size`, which is -1 for null where the session is not in ANSI mode.
            return [f"cast(array_size({column}) as bigint)", items]
        case T.MapType():
            key = _null_flags_and_values([(_struct_field(item, "key"), data_type.keyType, False)], depth + 1)
            value = _null_flags_and_values([(_struct_field(item, "value"), data_type.valueType, True)], depth + 1)
            entries = f"map_entries({column})"
            pairs = f"transform({entries}, {item} -> struct({key} as key, {value} as value))"
            return [f"cast(array_size({entries}) as bigint)", f"array_sort({pairs})"]
        case T.VariantType():
            return [f"to_json({column})"]
        case T.DayTimeIntervalType() | T.YearMonthIntervalType() | T.CalendarIntervalType() | T.TimeType():
            return [f"cast({column} as string)"]
        case _:
            return [column]


def _canonical_decimal(column: str, data_type: DecimalType) -> list[str]:
    """A decimal without its scale: as decimal(18, 6) what fits there, as decimal(38, 18) what fits there, else as text.

    The first is a bigint inside and cheap; most money fits, and for its types the others are not even looked at.
    """
    if is_small_decimal(data_type):
        return [f"cast({column} as decimal(18, 6))"]
    small = f"try_cast({column} as decimal(18, 6))"
    fits_small = f"coalesce({small} = {column}, false)"
    if data_type.scale <= 18 and data_type.precision - data_type.scale <= 20:
        return [f"if({fits_small}, {small}, null)", f"if({fits_small}, null, cast({column} as decimal(38, 18)))"]
    wide = f"try_cast({column} as decimal(38, 18))"
    fits_wide = f"coalesce({wide} = {column}, false)"
    text = f"trim(trailing '.' from trim(trailing '0' from cast({column} as string)))"
    return [
        f"if({fits_small}, {small}, null)",
        f"if(not {fits_small} and {fits_wide}, {wide}, null)",
        f"if(not {fits_small} and not {fits_wide}, {text}, null)",
    ]
