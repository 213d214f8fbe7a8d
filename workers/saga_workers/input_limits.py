"""Limits on HTTP requests, records and workflow tasks, which protect a process from what comes from outside.

The table in `docs/explanation/security.md` has all of them; a test compares it with this module.
"""

from __future__ import annotations

MAX_HEAD_BYTES = 16 * 1024
"""Maximum bytes of a request line and its headers."""

MAX_SMALL_CHUNKS = 256
"""Chunks of a body, however small they are. Reading so many takes about as long as a small request."""

CHUNK_BYTES = 64
"""Bytes of a body for each further chunk."""

HEAD_TIMEOUT = 10.0
"""Seconds until a request's head must be complete; also the idle time of a connection between two requests."""

SEND_TIMEOUT = 15.0
"""Seconds until the client must have read a response."""

MAX_CONNECTIONS = 512
"""Connections at the same time. A further one takes the place of the one that has been waiting for its client for
longest; if all are being answered, it gets 503."""

BODY_TIMEOUT = 10.0
"""Seconds until a request's body must be complete."""

MAX_WAITING_BODIES = 32 * 1024 * 1024
"""Bytes of the bodies of all starts that are not sent yet. Values that are read from JSON take ten times as much."""

MAX_WAITING_BODIES_OF_TOKEN = 8 * 1024 * 1024
"""Bytes of those that were sent with one token."""

MAX_CALLBACKS_AT_ONCE = 128
"""Callbacks that are received at the same time, each with a body of up to 64 KiB. One more takes the place of the one
whose body has been arriving for longest."""

MAX_CALLBACKS_OF_ADDRESS = 4
"""Callbacks to one address that are received at the same time."""

MAX_CODEC_BYTES = 4 * 1024 * 1024
"""Bytes of the body that Temporal's Web UI or CLI sends to be decrypted: payloads of up to 2 MiB in base64."""

MAX_CODEC_PAYLOADS = 10_000
"""Payloads in such a body."""

MAX_WRONG_TOKENS = 20
"""Wrong tokens of one address that are answered with 401 at once; further ones get 429."""

WRONG_TOKENS_PER_SECOND = 0.2
"""Wrong tokens of one address that are answered with 401 after these."""

CHECK_TIMEOUT = 10.0
"""Seconds until an input must be checked, including the wait for earlier inputs of the same token."""

MAX_TASK_VALUES = 20_000
"""Values that are validated in a workflow task, which must not take two seconds."""

MAX_TASK_CHECK_STEPS = 10_000
"""Steps of validating all inputs of a workflow task, which takes about 20 ms. An activity validates the
others."""

MAX_KEPT_BYTES = 16 * 1024
"""Maximum bytes of key and headers in the dead letter of a record that is too large."""
