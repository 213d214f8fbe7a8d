"""Compression of states: of a saga's machine, and of many of them together."""

from __future__ import annotations

import zlib

from sagas.input_limits import MAX_UNPACKED_BYTES
from sagas.text.exact_json import decode_json, encode_json

_LARGE = 1024 * 1024
"""Compressed bytes from which on it is worth to look for what is repeated far apart."""

_STEP = 64 * 1024
_PROBE = 64
"""Every so many bytes it is looked whether the next few occur earlier, in something that is at least as long. So the
time is bounded."""

_MIN_WINDOW_BITS = 9
_SMALL_MEMORY = 5
"""zlib's `memLevel`."""

_FOLDED = b"saga-folded\n"


def compress(data: bytes, level: int) -> bytes:
    """Compress with zlib at this level; if the result is large, what is repeated far apart is written once.

    A state may have a document several times: as the input, and as the argument of each step that takes it. zlib's
    window of 32 KiB does not see that. LZMA does, but takes so long that Temporal would take a workflow task on a busy
    machine for deadlocked.
    """
    compressed = _deflate(data, level)
    if len(compressed) < _LARGE:
        return compressed
    parts, literals = _fold(data)
    if len(literals) == len(data):
        return compressed
    return _FOLDED + _deflate(encode_json(parts) + b"\n" + literals, level)


def _deflate(data: bytes, level: int) -> bytes:
    """Compress as zlib.compress does, with a window of the data's size and small tables if that is below 16 KiB:
    setting up the usual ones takes several times as long as compressing a small state.
    """
    window_bits = min(max(len(data).bit_length(), _MIN_WINDOW_BITS), zlib.MAX_WBITS)
    memory = zlib.DEF_MEM_LEVEL if window_bits == zlib.MAX_WBITS else _SMALL_MEMORY
    compressor = zlib.compressobj(level, zlib.DEFLATED, window_bits, memory)
    return compressor.compress(data) + compressor.flush()


def _inflate(compressed: bytes, most: int) -> bytes:
    """Raises ValueError above the limit, before it takes the memory."""
    inflating = zlib.decompressobj()
    data = inflating.decompress(compressed, most)
    if not inflating.eof:
        raise ValueError(f"it is incomplete, or has more than {most:,} bytes")
    return data


def decompress(compressed: bytes, most: int = MAX_UNPACKED_BYTES) -> bytes:
    """The reverse of :func:`compress`. Raises ValueError if it is malformed, or unpacks to more than ``most`` bytes."""
    try:
        if not compressed.startswith(_FOLDED):
            return _inflate(compressed, most)
        parts, _, literals = _inflate(compressed[len(_FOLDED) :], most).partition(b"\n")
        return _unfold(decode_json(parts), literals, most)
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"the state is malformed: {error}") from error


def _fold(data: bytes) -> tuple[list[tuple[int, int]], bytes]:
    """Return what the data is made of, part by part: ``(-1, n)`` are the next n bytes of the second value, ``(p, n)``
    are n bytes that occur in the data from p on, before this part.
    """
    parts: list[tuple[int, int]] = []
    literals: list[bytes] = []
    written = position = 0
    while position + _PROBE <= len(data):
        earlier = data.find(data[position : position + _PROBE], 0, position)
        if earlier < 0:
            position += _STEP
            continue
        back = min(position - written, earlier, _STEP)  # what begins earlier was found there
        before = _common(data[position - back : position][::-1], data[earlier - back : earlier][::-1])
        start, earlier = position - before, earlier - before
        length = _common(data[start:], data[earlier:start])
        if length < _STEP:
            position += _STEP
            continue
        if start > written:
            parts.append((-1, start - written))
            literals.append(data[written:start])
        parts.append((earlier, length))
        written = position = start + length
    if written < len(data):
        parts.append((-1, len(data) - written))
        literals.append(data[written:])
    return parts, b"".join(literals)


def _common(first: bytes, other: bytes) -> int:
    """The length of the longest common beginning."""
    low, high = 0, min(len(first), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _unfold(parts: list[tuple[int, int]], literals: bytes, most: int = MAX_UNPACKED_BYTES) -> bytes:
    data = bytearray()
    taken = 0
    for start, length in parts:
        if length < 0 or len(data) + length > most or start >= len(data):
            raise ValueError("it has a part that is nowhere")
        if start < 0:
            data += literals[taken : taken + length]
            taken += length
        else:
            data += data[start : start + length]
    return bytes(data)
