"""The partition of a key as Kafka's own Java clients compute it, after their source (Utils.murmur2)."""

from __future__ import annotations

_M = 0x5BD1E995
_BITS = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash of a key, as an unsigned number of 32 bits."""
    whole = len(data) // 4 * 4
    hashed = 0x9747B28C ^ len(data)
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _M & _BITS
        word = (word ^ word >> 24) * _M & _BITS
        hashed = (hashed * _M & _BITS) ^ word
    if rest := data[whole:]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * _M & _BITS
    hashed = (hashed ^ hashed >> 13) * _M & _BITS
    return hashed ^ hashed >> 15


def partition_of(key: str, partitions: int) -> int:
    """The partition of a key in a topic with so many partitions."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions
