"""A 128-bit hash of a multiset of rows, independent of their order and partitioning.

Each row gives two 64-bit words; a table's hash is the sums of these words modulo 2⁶⁴ together with the number of rows.
Unlike XOR, sums detect duplicates. The hash detects accidental differences; it does not resist deliberate collisions.

Each value is hashed on its own (xxHash64), rotated by an amount specific to its column, and XORed with the others of
its row; the result is hashed once more, so that nothing cancels out between rows. A frequent value can therefore be
hashed once: see staging/parquet_metrics.py, which computes the same hash from Parquet files. A number of at most 64
bits gives one hash, which is a bijection of the number; everything else gives two, under two seeds.

Values are brought into a canonical form first, so that a value hashes the same in every type of its family: integers
become bigint, float becomes double, -0.0 becomes 0.0, 1.5 and 1.50 become one decimal, maps are sorted by key. Nulls
count: (null, 'a') differs from ('a', null), also inside structs, arrays and maps. Column order counts, column names
do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from sagas.portions import in_portions
from sagas.text.sql_names import backquoted

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, DecimalType, StructType

SECOND_WORD_SALT = 0x2D31_3238
"""Hashed before the value for the second word: xxHash64 chains, so it starts an independent sequence."""

FLAGS_PER_BIGINT = 62
"""Number of null flags that fit into one bigint."""

_MODULUS = 2**64

SMALL_DECIMAL_SCALE = 6
"""Scale of the decimals that Spark stores as a bigint."""


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
        parts = b"".join(number.to_bytes(8, "big") for number in (self.rows, self.first, self.second))
        return hashlib.blake2b(parts, digest_size=16).hexdigest()


def combine(parts: Iterable[Fingerprint]) -> Fingerprint:
    """The fingerprint of all rows together."""
    return reduce(Fingerprint.__add__, parts, Fingerprint())


def read_fingerprint(values: Mapping[str, Any], prefix: str = "") -> Fingerprint:
    """The fingerprint that a row or an observation has from :func:`fingerprint_aggregates`; nulls, which Spark returns
    for an empty table, count as 0.
    """

    def value(name: str) -> int:
        return int(values[prefix + name] or 0)

    if f"{prefix}word1" in values:
        return Fingerprint(value("rows"), value("word1") % _MODULUS, value("word2") % _MODULUS)
    first, second = (value(f"high{number}") * 2**32 + value(f"low{number}") for number in (1, 2))
    return Fingerprint(value("rows"), first % _MODULUS, second % _MODULUS)


def fingerprint_aggregates(words: tuple[str, str], prefix: str = "", *, wrapping: bool = False) -> list[Column]:
    """Aggregate expressions over the words of :func:`row_words`, for ``agg``, after ``groupBy``, or for an observation.

    The halves of a word are summed separately and as signed numbers, so that nothing overflows before 2³² equal rows,
    even in ANSI mode. ``wrapping`` is for frames outside ANSI mode: each word is then one sum, which is faster and
    the same modulo 2⁶⁴.
    """
    from pyspark.sql import functions as F

    sums = {"rows": "count(1)"}
    for number, word in enumerate(words, 1):
        if wrapping:
            sums[f"word{number}"] = f"sum({word})"
            continue
        low, high = signed_halves(word)
        sums |= {f"low{number}": f"sum({low})", f"high{number}": f"sum({high})"}
    return [F.expr(text).alias(f"{prefix}{name}") for name, text in sums.items()]


def signed_halves(word: str) -> tuple[str, str]:
    """The halves of a bigint as SQL: low + high · 2³² is the word. Sums of the halves do not overflow."""
    # One more where low is negative.
    return f"shiftright(shiftleft({word}, 32), 32)", f"(shiftright({word}, 32) + (shiftright({word}, 31) & 1))"


def row_hash(schema: StructType, columns: Sequence[str] | None = None) -> tuple[Column, Column]:
    """The two words of a row, as bigint columns. ``columns`` are names in significant order; None: all columns."""
    from pyspark.sql import functions as F

    first, second = row_words(schema, columns)
    return F.expr(first), F.expr(second)


def row_words(schema: StructType, columns: Sequence[str] | None = None) -> tuple[str, str]:
    """The words of :func:`row_hash` as SQL.

    Spark parses a string in one call, while building the Column objects takes hundreds.
    """
    fields = list(schema.fields) if columns is None else [schema[name] for name in columns]
    firsts: list[str] = []
    seconds: list[str] = []
    for index, field in enumerate(fields):
        parts = _canonical(backquoted(field.name), field.dataType)
        first_word = _hash(*parts)  # 42 for a null
        second_word = first_word if fits_one_word(field.dataType) else _hash(f"{SECOND_WORD_SALT}L", *parts)
        for words, word, angle in zip((firsts, seconds), (first_word, second_word), rotations(index), strict=True):
            words.append(_rotate_left(word, angle))
    first = _hash(_xor(firsts))
    return first, f"{first} ^ {_xor(seconds)}"


def rotations(position: int) -> tuple[int, int]:
    """Left-rotation amounts for the two hashes of the column at ``position``. No two of 4096 columns share a pair."""
    return position % 64, (29 * position + 17 + position // 64) % 64


def fits_one_word(data_type: DataType) -> bool:
    """Return whether the canonical form of every value, in every type of the family, is one number of at most
    64 bits.
    """
    from pyspark.sql import types as T

    numbers = (T.IntegralType, T.FloatType, T.DoubleType, T.BooleanType, T.DateType, T.TimestampType)
    return isinstance(data_type, (*numbers, T.TimestampNTZType))


def is_small_decimal(data_type: DecimalType) -> bool:
    """Return whether every value fits into decimal(18, 6), which Spark stores as a bigint."""
    return data_type.scale <= SMALL_DECIMAL_SCALE and data_type.precision - data_type.scale <= 18 - SMALL_DECIMAL_SCALE


def key_bucket(schema: StructType, key: Sequence[str], buckets: int) -> Column:
    """The bucket of a row by its key: 0 to ``buckets`` - 1, the same for equal keys in all tables that are compared."""
    from pyspark.sql import functions as F

    return F.expr(f"cast(pmod({row_words(schema, key)[0]}, {buckets}) as int)")


def _hash(*parts: str) -> str:
    return f"xxhash64({', '.join(parts)})"


def _xor(words: Sequence[str]) -> str:
    """Combine in halves, because Spark's parser recurses as deep as the expression."""
    if len(words) == 1:
        return words[0]
    half = len(words) // 2
    return f"({_xor(words[:half])} ^ {_xor(words[half:])})"


def _struct_field(column: str, name: str) -> str:
    """A field of a struct. Not with a dot: `t`.`f` may be the column f of a table t."""
    literal = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"{column}['{literal}']"


def _rotate_left(word: str, bits: int) -> str:
    """Rotate the bits of a bigint to the left. Neither shifts nor OR can overflow, even in ANSI mode."""
    return word if bits == 0 else f"(shiftleft({word}, {bits}) | shiftrightunsigned({word}, {64 - bits}))"


def _null_flags_and_values(values: Sequence[tuple[str, DataType, bool]], depth: int) -> str:
    """A struct to be hashed: the packed null flags of the values, then the canonical values. xxHash64 skips nulls."""
    flags: list[str] = []
    for portion in in_portions(values, FLAGS_PER_BIGINT):
        bits = [
            f"if({column} is null, {1 << bit}L, 0L)" for bit, (column, _, nullable) in enumerate(portion) if nullable
        ]
        flags.append(" | ".join(bits) or "0L")
    parts = [part for column, kind, _ in values for part in _canonical(column, kind, depth)]
    return f"struct({', '.join([*flags, *parts])})"


def _canonical(column: str, data_type: DataType, depth: int = 0) -> list[str]:
    """One value as one or more expressions, of which xxHash64 takes those that are not null.

    ``depth`` is the nesting depth of arrays and maps; it makes the names of lambda variables unique.
    """
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
            fields = [(_struct_field(column, field.name), field.dataType, True) for field in data_type.fields]
            return [f"if({column} is not null, {_null_flags_and_values(fields, depth)}, null)"]
        case T.ArrayType():
            parts = _null_flags_and_values([(item, data_type.elementType, True)], depth + 1)
            items = f"transform({column}, {item} -> {parts})"
            # Not `size`, which is -1 for null outside ANSI mode.
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
    """A decimal without its scale: as decimal(18, 6) where it fits, else as decimal(38, 18), else as text.

    The first is a bigint inside Spark, hence cheap; most money columns fit by type and never evaluate the others.
    """
    if is_small_decimal(data_type):
        return [f"cast({column} as decimal(18, 6))"]
    # Compared in the type of the column: the common type of two decimals of very different scales rounds both.
    own_type = f"decimal({data_type.precision}, {data_type.scale})"
    small = f"try_cast({column} as decimal(18, 6))"
    fits_small = f"coalesce(try_cast({small} as {own_type}) = {column}, false)"
    if data_type.scale <= 18 and data_type.precision - data_type.scale <= 20:
        return [f"if({fits_small}, {small}, null)", f"if({fits_small}, null, cast({column} as decimal(38, 18)))"]
    wide = f"try_cast({column} as decimal(38, 18))"
    fits_wide = f"coalesce(try_cast({wide} as {own_type}) = {column}, false)"
    text = f"trim(trailing '.' from trim(trailing '0' from cast({column} as string)))"
    return [
        f"if({fits_small}, {small}, null)",
        f"if(not {fits_small} and {fits_wide}, {wide}, null)",
        f"if(not {fits_small} and not {fits_wide}, {text}, null)",
    ]
