"""Row hashes and exact sums computed from Parquet files, identical to what Spark computes over the rows.

The first part is a vectorised xxHash64 that matches Spark's `xxhash64` bit for bit: modulo 2⁶⁴ on ``uint64`` arrays,
where a seed is the hash of the values before. The second part hashes the columns of local files. It costs a fraction
of counting row by row in Spark: frequent values are hashed once, the rest is array arithmetic on all processors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from saga_spark.manifest import StagedFile, has_exact_sum
from saga_spark.row_fingerprint import SECOND_WORD_SALT, SMALL_DECIMAL_SCALE, Fingerprint, fits_one_word, rotations
from saga_spark.storage import resolve_uri

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


Words = NDArray[np.uint64]

SEED = 42
"""Spark's initial seed, which is also its hash of a null."""

_MODULUS = 2**64
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
_STRIPE = 32


def rotate_left(words: Words, bits: int) -> Words:
    if bits == 0:
        return words
    rotated = words << np.uint64(bits)
    rotated |= words >> np.uint64(64 - bits)
    return rotated


def hash_longs(values: NDArray[Any], seed: int = SEED) -> Words:
    """Hash 64-bit values: bigints, microseconds, the bits of doubles."""
    words = np.multiply(values.view(np.uint64), _P2, order="C")
    spare = np.empty_like(words)
    _rotate_in_place(words, 31, spare)
    words *= _P1
    words ^= _initial_state(seed, 8)
    _rotate_in_place(words, 27, spare)
    words *= _P1
    words += _P4
    return _avalanche(words, spare)


def hash_ints(values: NDArray[Any], seed: int = SEED) -> Words:
    """Hash 32-bit values: days, and booleans as 0 and 1."""
    words = values.view(np.uint32).astype(np.uint64)
    spare = np.empty_like(words)
    words *= _P1
    words ^= _initial_state(seed, 4)
    _rotate_in_place(words, 23, spare)
    words *= _P2
    words += _P3
    return _avalanche(words, spare)


def hash_strings(offsets: NDArray[np.int64], data: NDArray[np.uint8], seed: int = SEED) -> Words:
    """Hash strings. ``data`` are their concatenated bytes; each string spans one offset to the next."""
    begin, end = offsets[:-1].copy(), offsets[1:]
    length = end - begin
    if not len(data) or len(data) < 8:
        data = np.concatenate([data, np.zeros(8, np.uint8)])  # a window of eight bytes must fit
    words = np.full(len(begin), (seed + int(_P5)) % _MODULUS, np.uint64)
    long = np.flatnonzero(length >= _STRIPE)
    if len(long):
        words[long], begin[long] = _hash_stripes(begin[long], end[long], data, seed)
    words += length.astype(np.uint64)
    eight = _unaligned_view(data, np.uint64)
    while len(active := np.flatnonzero(end - begin >= 8)):
        part = words[active] ^ _round(eight[begin[active]])
        words[active] = rotate_left(part, 27) * _P1 + _P4
        begin[active] += 8
    active = np.flatnonzero(end - begin >= 4)
    if len(active):
        part = words[active] ^ (_unaligned_view(data, np.uint32)[begin[active]].astype(np.uint64) * _P1)
        words[active] = rotate_left(part, 23) * _P2 + _P3
        begin[active] += 4
    while len(active := np.flatnonzero(end > begin)):
        part = words[active] ^ (data[begin[active]].astype(np.uint64) * _P5)
        words[active] = rotate_left(part, 11) * _P1
        begin[active] += 1
    return _avalanche(words, np.empty_like(words))


def _hash_stripes(
    begin: NDArray[np.int64], end: NDArray[np.int64], data: NDArray[np.uint8], seed: int
) -> tuple[Words, NDArray[np.int64]]:
    """Hash the whole stripes of strings that have one; returns the hashes so far and where the remainders begin."""
    starts = (seed + int(_P1) + int(_P2), seed + int(_P2), seed, seed - int(_P1))
    lanes = [np.full(len(begin), start % _MODULUS, np.uint64) for start in starts]
    eight, begin = _unaligned_view(data, np.uint64), begin.copy()
    while len(active := np.flatnonzero(end - begin >= _STRIPE)):
        for number, lane in enumerate(lanes):
            lane[active] = rotate_left(lane[active] + eight[begin[active] + 8 * number] * _P2, 31) * _P1
        begin[active] += _STRIPE
    words = np.zeros(len(begin), np.uint64)
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        words += rotate_left(lane, bits)
    for lane in lanes:
        words = (words ^ _round(lane)) * _P1 + _P4
    return words, begin


def _round(words: Words) -> Words:
    return rotate_left(words * _P2, 31) * _P1


def _unaligned_view(data: NDArray[np.uint8], kind: Any) -> NDArray[Any]:
    """The number that begins at each byte."""
    size = np.dtype(kind).itemsize
    return np.ndarray((len(data) - size + 1,), np.dtype(kind).newbyteorder("<"), data, strides=(1,))


def _initial_state(seed: int, size: int) -> np.uint64:
    return np.uint64((seed + int(_P5) + size) % _MODULUS)


def _rotate_in_place(words: Words, bits: int, spare: Words) -> None:
    """Rotate in place, without allocation."""
    np.left_shift(words, np.uint64(bits), out=spare)
    np.right_shift(words, np.uint64(64 - bits), out=words)
    words |= spare


def _avalanche(words: Words, spare: Words) -> Words:
    for bits, factor in ((33, _P2), (29, _P3), (32, None)):
        np.right_shift(words, np.uint64(bits), out=spare)
        words ^= spare
        if factor is not None:
            words *= factor
    return words


BATCH_ROWS = 32_768
"""Rows per batch: their words stay in the processor's cache."""

MAX_INTEGER_SPAN = 1 << 17
"""Integers within a range of this size are each hashed once."""

SECOND_WORD_SEED = int(hash_longs(np.array([SECOND_WORD_SALT], np.int64))[0])

_CANONICAL_NAN = np.int64(0x7FF8_0000_0000_0000)

HashFunction = Callable[[pa.Array, int], Words]
"""A hash function of values (nulls may be any value) and a seed."""


class UnsupportedValue(Exception):
    """A value or a file that this module cannot count; Spark has to count it."""


@dataclass(frozen=True, slots=True)
class FileMetrics:
    """Counts of files. ``sums`` are by column, those of decimals unscaled. Counts of disjoint parts add up."""

    fingerprint: Fingerprint
    sums: dict[str, int]

    def __add__(self, other: FileMetrics) -> FileMetrics:
        return FileMetrics(
            self.fingerprint + other.fingerprint,
            {name: total + other.sums.get(name, 0) for name, total in self.sums.items()},
        )


def can_count(schema: StructType) -> bool:
    """Return whether this module supports the types of all columns."""
    return all(_hash_function(field.dataType) is not None for field in schema.fields)


def count_files(files: Sequence[StagedFile], schema: StructType, *, threads: int | None = None) -> FileMetrics | None:
    """Count files whose columns are countable; None if something in them has to be counted by Spark.

    ``threads`` defaults to the number of processors.
    """
    columns = [_ColumnHasher(index, field.name, field.dataType) for index, field in enumerate(schema.fields)]
    total = FileMetrics(Fingerprint(), {column.name: 0 for column in columns if column.has_sum})
    try:
        with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
            for batch_metrics in _bounded_results(pool, _batch_counts(files, columns)):
                total += batch_metrics
    except UnsupportedValue:
        return None
    return total


def _bounded_results(pool: ThreadPoolExecutor, work: Iterator[Callable[[], FileMetrics]]) -> Iterator[FileMetrics]:
    """The results in order; no more batches are in memory than are being worked on."""
    waiting: list[Future[FileMetrics]] = []
    for task in work:
        waiting.append(pool.submit(task))
        if len(waiting) > 2 * (os.cpu_count() or 1):
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


def _batch_counts(files: Sequence[StagedFile], columns: Sequence[_ColumnHasher]) -> Iterator[Callable[[], FileMetrics]]:
    for file in files:
        system, path = resolve_uri(file.uri)
        with system.open_input_file(path) as source:
            footer = pq.read_metadata(source)
            names = footer.schema.to_arrow_schema()
            for column in columns:
                if names.get_all_field_indices(column.name) != [
                    names.get_field_index(column.name)
                ] or not column.matches(names.field(column.name).type):
                    raise UnsupportedValue
            repeated = [column.name for column in columns if column.is_string and _is_dictionary(footer, column.name)]
            reader = pq.ParquetFile(source, metadata=footer, read_dictionary=repeated)
            for batch in reader.iter_batches(BATCH_ROWS):
                yield lambda batch=batch: _count_batch(batch, columns)


def _is_dictionary(footer: pq.FileMetaData, name: str) -> bool:
    """Return whether all values of a column are dictionary-encoded."""
    for group in range(footer.num_row_groups):
        for index in range(footer.num_columns):
            chunk = footer.row_group(group).column(index)
            if chunk.path_in_schema == name and "PLAIN" in chunk.encodings:
                return False
    return True


def _count_batch(batch: pa.RecordBatch, columns: Sequence[_ColumnHasher]) -> FileMetrics:
    row_words = np.zeros((len(batch), 2), np.uint64)
    sums: dict[str, int] = {}
    for column in columns:
        values = batch.column(column.name)
        column.mix_into(values, row_words)
        if column.has_sum:
            sums[column.name] = _exact_sum(values)
    first = hash_longs(row_words[:, 0])
    second = first ^ row_words[:, 1]
    return FileMetrics(Fingerprint(len(batch), int(first.sum()), int(second.sum())), sums)


@dataclass(slots=True)
class _ColumnHasher:
    """Hashes the values of one column into words."""

    position: int
    name: str
    data_type: DataType
    has_sum: bool = field(init=False)
    is_string: bool = field(init=False)
    _hash: HashFunction = field(init=False)
    _cached_table: tuple[Any, Words] | None = field(init=False, default=None)
    """The words of a range of integers from its lowest value on, or of a dictionary."""

    def __post_init__(self) -> None:
        from pyspark.sql import types as T

        hashing = _hash_function(self.data_type)
        assert hashing is not None
        self._hash = hashing
        self.has_sum = has_exact_sum(self.data_type)
        self.is_string = isinstance(self.data_type, T.StringType)

    def matches(self, arrow_type: pa.DataType) -> bool:
        """Return whether this is the Arrow type that Spark writes for the column."""
        from pyspark.sql.pandas.types import to_arrow_type

        return arrow_type == to_arrow_type(self.data_type, timezone="UTC")

    def mix_into(self, values: pa.Array, row_words: Words) -> None:
        """XOR the words of the values into those of the rows, two per row."""
        if isinstance(values, pa.DictionaryArray):
            table, indices = self._dictionary_table(values.dictionary), values.indices
            if indices.null_count:  # the last table entry is the null's
                indices = indices.fill_null(len(values.dictionary))
            self._mix_from_table(table, indices.to_numpy(), row_words)
            return
        if pa.types.is_integer(values.type) and not values.null_count and len(values):
            numbers = values.to_numpy()
            low, high = min(int(numbers.min()), 0), int(numbers.max())
            if high - low < MAX_INTEGER_SPAN and (high - low < 2 * len(numbers) or self._is_cached(low, high)):
                start, table = self._span_table(low, high)
                self._mix_from_table(table, numbers.astype(np.int64) - start if start else numbers, row_words)
                return
        for number, words in enumerate(self._hash_words(values)):
            row_words[:, number] ^= words

    def _hash_words(self, values: pa.Array) -> tuple[Words, Words]:
        first = self._hash_values(values, SEED)
        second = first if fits_one_word(self.data_type) else self._hash_values(values, SECOND_WORD_SEED)
        return rotate_left(first, rotations(self.position)[0]), rotate_left(second, rotations(self.position)[1])

    def _table(self, values: pa.Array) -> Words:
        return np.stack(self._hash_words(values), axis=1)

    def _hash_values(self, values: pa.Array, seed: int) -> Words:
        words = self._hash(values, seed)
        if values.null_count:
            words[values.is_null().to_numpy(zero_copy_only=False)] = seed
        return words

    @staticmethod
    def _mix_from_table(table: Words, indices: NDArray[Any], mixed: Words) -> None:
        mixed ^= np.take(table, indices, axis=0, mode="clip")  # skips the bounds check: all indices are valid

    def _dictionary_table(self, dictionary: pa.Array) -> Words:
        cached = self._cached_table
        if cached is None or not cached[0].equals(dictionary):
            cached = dictionary, self._table(pa.concat_arrays([dictionary, pa.nulls(1, dictionary.type)]))
            self._cached_table = cached
        return cached[1]

    def _is_cached(self, low: int, high: int) -> bool:
        cached = self._cached_table
        return cached is not None and cached[0] <= low and high < cached[0] + len(cached[1])

    def _span_table(self, low: int, high: int) -> tuple[int, Words]:
        cached = self._cached_table
        if cached is None or not self._is_cached(low, high):
            if cached is not None:  # keep the cached range, as long as the union is not too large
                wide = min(low, cached[0]), max(high, cached[0] + len(cached[1]) - 1)
                low, high = wide if wide[1] - wide[0] < MAX_INTEGER_SPAN else (low, high)
            cached = low, self._table(pa.array(np.arange(low, high + 1)))
            self._cached_table = cached
        return cached


def _exact_sum(values: pa.Array) -> int:
    """The exact sum, of any size. Decimals that do not fit into 64 bits were rejected as uncountable before."""
    numbers = _decimal_halves(values)[0] if pa.types.is_decimal(values.type) else _without_nulls(values)
    if numbers.dtype.itemsize < 8:
        return int(numbers.sum(dtype=np.int64))
    return (int((numbers >> 32).sum()) << 32) + int((numbers & 0xFFFF_FFFF).sum())


def _hash_function(data_type: DataType) -> HashFunction | None:
    """The hash function for the canonical values of a type, see row_fingerprint.py; None: only Spark can hash it."""
    from pyspark.sql import types as T

    match data_type:
        case T.ByteType() | T.ShortType() | T.IntegerType() | T.LongType():
            return lambda values, seed: hash_longs(_without_nulls(values).astype(np.int64), seed)
        case T.TimestampType() | T.TimestampNTZType():
            return lambda values, seed: hash_longs(_without_nulls(values.view(pa.int64())), seed)
        case T.FloatType() | T.DoubleType():
            return lambda values, seed: hash_longs(_double_bits(_without_nulls(values)), seed)
        case T.BooleanType():
            return lambda values, seed: hash_ints(_without_nulls(values.cast(pa.int8())).astype(np.int32), seed)
        case T.DateType():
            return lambda values, seed: hash_ints(_without_nulls(values.view(pa.int32())), seed)
        case T.DecimalType() if (
            data_type.scale <= SMALL_DECIMAL_SCALE and data_type.precision <= _MAX_DECIMAL_PRECISION
        ):
            return lambda values, seed: hash_longs(_small_decimals(values, data_type.scale), seed)
        case T.BinaryType():
            return _hash_string_array
        case T.StringType() if data_type == T.StringType():  # no collation: Spark hashes the collation key
            return _hash_string_array
    return None


_MAX_DECIMAL_PRECISION = 28


def _without_nulls(values: pa.Array) -> NDArray[Any]:
    """The values as an array, with an arbitrary value in place of each null."""
    return (values.fill_null(0) if values.null_count else values).to_numpy(zero_copy_only=False)


def _double_bits(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """The bits of doubles, with a single zero and a single NaN."""
    doubles = numbers.astype(np.float64) + 0.0
    bits = doubles.view(np.int64)
    bits[np.isnan(doubles)] = _CANONICAL_NAN
    return bits


def _small_decimals(values: pa.Array, scale: int) -> NDArray[np.int64]:
    """Decimals in the internal form of decimal(18, 6). Raises UnsupportedValue if one is too large."""
    low, high = _decimal_halves(values)
    limit = 10 ** (12 + scale)
    if len(low) and ((high != low >> 63).any() or low.max() >= limit or low.min() <= -limit):
        raise UnsupportedValue
    return low * np.int64(10 ** (SMALL_DECIMAL_SCALE - scale))


def _decimal_halves(values: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The lower and upper 64 bits of unscaled decimals; 0 for null."""
    halves = np.frombuffer(values.buffers()[1], np.int64)[2 * values.offset :][: 2 * len(values)].reshape(-1, 2)
    low, high = halves[:, 0], halves[:, 1]
    if values.null_count:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        low, high = np.where(valid, low, 0), np.where(valid, high, 0)
    return low, high


def _hash_string_array(values: pa.Array, seed: int) -> Words:
    _, offsets, data = values.buffers()
    positions = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    return hash_strings(positions, np.frombuffer(data or b"", np.uint8), seed)
