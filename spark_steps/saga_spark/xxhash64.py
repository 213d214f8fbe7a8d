"""xxHash64 of many values at once, bit by bit what Spark's `xxhash64` gives: for rows that lie in memory as Arrow.

All arithmetic is modulo 2⁶⁴ on arrays of ``uint64``. A seed is where a chain of values stands: what was hashed before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

SEED = 42
"""Where Spark begins; also its hash of a null."""

_WORD = 2**64
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(one)
    for one in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
_STRIPE = 32


def rotated(words: Words, bits: int) -> Words:
    """To the left."""
    if bits == 0:
        return words
    found = words << np.uint64(bits)
    found |= words >> np.uint64(64 - bits)
    return found


def of_longs(values: NDArray[Any], seed: int = SEED) -> Words:
    """``values`` are 64 bits wide: bigints, microseconds, the bits of doubles."""
    found = np.multiply(values.view(np.uint64), _P2, order="C")
    spare = np.empty_like(found)
    _rotate(found, 31, spare)
    found *= _P1
    found ^= _start(seed, 8)
    _rotate(found, 27, spare)
    found *= _P1
    found += _P4
    return _finished(found, spare)


def of_ints(values: NDArray[Any], seed: int = SEED) -> Words:
    """``values`` are 32 bits wide: days, and booleans as 0 and 1."""
    found = values.view(np.uint32).astype(np.uint64)
    spare = np.empty_like(found)
    found *= _P1
    found ^= _start(seed, 4)
    _rotate(found, 23, spare)
    found *= _P2
    found += _P3
    return _finished(found, spare)


def of_texts(offsets: NDArray[np.int64], data: NDArray[np.uint8], seed: int = SEED) -> Words:
    """``data`` are the bytes of all texts, each from its offset to the next one."""
    begin, end = offsets[:-1].copy(), offsets[1:]
    length = end - begin
    if not len(data) or len(data) < 8:
        data = np.concatenate([data, np.zeros(8, np.uint8)])  # a window of eight bytes must fit
    found = np.full(len(begin), (seed + int(_P5)) % _WORD, np.uint64)
    long = np.flatnonzero(length >= _STRIPE)
    if len(long):
        found[long], begin[long] = _stripes(begin[long], end[long], data, seed)
    found += length.astype(np.uint64)
    eight = _windows(data, np.uint64)
    while len(active := np.flatnonzero(end - begin >= 8)):
        part = found[active] ^ _round(eight[begin[active]])
        found[active] = rotated(part, 27) * _P1 + _P4
        begin[active] += 8
    active = np.flatnonzero(end - begin >= 4)
    if len(active):
        part = found[active] ^ (_windows(data, np.uint32)[begin[active]].astype(np.uint64) * _P1)
        found[active] = rotated(part, 23) * _P2 + _P3
        begin[active] += 4
    while len(active := np.flatnonzero(end > begin)):
        part = found[active] ^ (data[begin[active]].astype(np.uint64) * _P5)
        found[active] = rotated(part, 11) * _P1
        begin[active] += 1
    return _finished(found, np.empty_like(found))


def _stripes(
    begin: NDArray[np.int64], end: NDArray[np.int64], data: NDArray[np.uint8], seed: int
) -> tuple[Words, NDArray[np.int64]]:
    """The whole stripes of texts that have one: their hash so far, and where their rest begins."""
    starts = (seed + int(_P1) + int(_P2), seed + int(_P2), seed, seed - int(_P1))
    lanes = [np.full(len(begin), one % _WORD, np.uint64) for one in starts]
    eight, begin = _windows(data, np.uint64), begin.copy()
    while len(active := np.flatnonzero(end - begin >= _STRIPE)):
        for number, lane in enumerate(lanes):
            lane[active] = rotated(lane[active] + eight[begin[active] + 8 * number] * _P2, 31) * _P1
        begin[active] += _STRIPE
    found = np.zeros(len(begin), np.uint64)
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        found += rotated(lane, bits)
    for lane in lanes:
        found = (found ^ _round(lane)) * _P1 + _P4
    return found, begin


def _round(words: Words) -> Words:
    return rotated(words * _P2, 31) * _P1


def _windows(data: NDArray[np.uint8], kind: Any) -> NDArray[Any]:
    """The number that begins at each byte."""
    size = np.dtype(kind).itemsize
    return np.ndarray((len(data) - size + 1,), np.dtype(kind).newbyteorder("<"), data, strides=(1,))


def _start(seed: int, size: int) -> np.uint64:
    return np.uint64((seed + int(_P5) + size) % _WORD)


def _rotate(words: Words, bits: int, spare: Words) -> None:
    """In place: nothing is allocated."""
    np.left_shift(words, np.uint64(bits), out=spare)
    np.right_shift(words, np.uint64(64 - bits), out=words)
    words |= spare


def _finished(words: Words, spare: Words) -> Words:
    for bits, factor in ((33, _P2), (29, _P3), (32, None)):
        np.right_shift(words, np.uint64(bits), out=spare)
        words ^= spare
        if factor is not None:
            words *= factor
    return words
