"""Compression of states: of a saga's machine, and of many of them together."""

from __future__ import annotations

import zlib

_LARGE = 1024 * 1024
"""Compressed bytes from which on it is worth to look for what is repeated far apart."""

_WINDOW = 8 * 1024 * 1024
_MEMORY_LIMIT = 64 * 1024 * 1024
_XZ = b"\xfd7zXZ\x00"


def compress(data: bytes, level: int) -> bytes:
    """Compress with zlib at this level; if the result is large, with LZMA, if this Python has it.

    A state may have a document several times: as the input, and as the argument of each step that takes it. zlib's
    window of 32 KiB does not see that. LZMA at its lowest level compresses some ten MiB per second.
    """
    compressed = zlib.compress(data, level)
    if len(compressed) < _LARGE:
        return compressed
    try:
        import lzma
    except ImportError:  # Python was built without it
        return compressed
    with_window = {"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": _WINDOW}
    return min(compressed, lzma.compress(data, lzma.FORMAT_XZ, filters=[with_window]), key=len)


def decompress(compressed: bytes) -> bytes:
    """The reverse of :func:`compress`. Raises ValueError if it is malformed, or if this Python cannot read it."""
    if not compressed.startswith(_XZ):
        try:
            return zlib.decompress(compressed)
        except zlib.error as error:
            raise ValueError(f"the state is malformed: {error}") from error
    try:
        import lzma
    except ImportError:
        raise ValueError("the state needs the module lzma, which this Python was built without") from None
    try:
        return lzma.decompress(compressed, memlimit=_MEMORY_LIMIT)
    except lzma.LZMAError as error:
        raise ValueError(f"the state is malformed: {error}") from error
