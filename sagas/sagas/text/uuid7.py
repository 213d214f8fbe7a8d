"""Ids that begin with the time."""

from __future__ import annotations

import os
import time
import uuid


def uuid7() -> str:
    """A UUID of version 7 (RFC 9562): milliseconds since the epoch, then 74 random bits."""
    random = int.from_bytes(os.urandom(10), "big") & ((1 << 74) - 1)
    value = (time.time_ns() // 1_000_000 & ((1 << 48) - 1)) << 80
    value |= 0x7 << 76 | (random >> 62) << 64 | 0b10 << 62 | (random & ((1 << 62) - 1))
    return str(uuid.UUID(int=value))
