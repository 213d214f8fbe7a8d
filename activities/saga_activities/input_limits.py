"""Limits on responses, records and the checks of inputs, which protect a process from what comes from outside.

The table in `docs/explanation/security.md` has all of them; a test compares it with this module.
"""

from __future__ import annotations

MAX_RESPONSE_BYTES = 2 * 1024 * 1024
"""Bytes of the body of a response. A larger one is not kept."""

MAX_RESPONSE_HEADS = 128 * 1024
"""Bytes of the head of a response and of all interim responses (1xx) before it."""

MAX_SMALL_PARTS = 4_096
"""Parts in which a response arrives, however small they are: chunks, or what one read returns. They take 0.1 s."""

RESPONSE_PART_BYTES = 256
"""Bytes of a body for each further part."""

MAX_RESPONSE_FRAMING = 256 * 1024
"""Bytes of chunk headers and trailers beyond those of the data, as they arrive."""

MAX_TOKEN_BYTES = 16 * 1024
"""Bytes of an OAuth2 token."""

MAX_RECORD_BYTES = 16 * 1024 * 1024
"""Bytes of the value of a record that is read."""

MAX_RECORD_VALUES = 1_000_000
"""Elements and fields of one record. A compressed record of a few kilobytes could fill the memory otherwise, and stop
all other readers of the process while it is parsed."""

MAX_DECRYPTED_LINE = 64 * 1024 * 1024
"""Bytes of one line that `saga decrypt` reads. The dead letter of the largest record, in JSON, is shorter."""

MAX_ENQUEUED_BYTES = 2_000_000
"""Bytes of the JSON of one enqueued row. A larger row is refused unread."""

MAX_ENQUEUED_NAME = 255
"""Characters of the name of a saga or a signal, and of an order key, in an enqueued row."""

QUICK_CHECK_STEPS = 1_000
"""Steps of a check that is made at once; it takes about two milliseconds."""

QUICK_CHECK_BYTES = 32 * 1024
"""Bytes of an input that is read at once. Reading takes up to half a microsecond for each byte, and counts no steps."""

MAX_CHECKED_CALLERS = 4
"""Callers whose inputs are checked at the same time, each of which may take 200 MiB."""

MAX_WAITING_CHECKS = 2
"""Inputs of one caller that wait for a check which may be sent again instead."""
