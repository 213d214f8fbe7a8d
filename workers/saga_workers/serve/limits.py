"""How long `saga serve` takes, and how much it does at once.

What it accepts of a request is in ``input_limits.py``; ``api_tokens.py`` bounds the starts of each token, by
``starts_per_second`` of ``[serve]``.
"""

from __future__ import annotations

from datetime import timedelta

from sagas.bulk.names import MAX_MEMBERS

MAX_WAIT = 60.0
"""Seconds that a start may wait for the end of its saga."""

MAX_CONCURRENT_STARTS = 32
"""Maximum concurrent starts that are sent to Temporal; further ones wait, and no other request waits for them."""

MAX_STARTS_OF_TOKEN = 16
"""Maximum concurrent starts with one token."""

MAX_CONCURRENT_READS = 16
"""Maximum concurrent reads of sagas; further ones wait, and no other request waits for them."""

MAX_READS_OF_TOKEN = 8
"""Maximum concurrent reads with one token. One of an unknown id asks every database, so each more delays the
starts; one of a saga without its worker takes QUERY_TIMEOUT, so with fewer, these would wait too long."""

MAX_CONCURRENT_CALLBACKS = 32
"""Maximum concurrent callbacks that are handed to their sagas; further ones wait."""

REQUEST_TIMEOUT = 15.0
"""Seconds that Temporal has to answer, including the wait for a turn, but not the `wait` of a start."""

MAX_CONCURRENT_PAGES = 16
"""Maximum concurrent pages of the console; further ones wait, and no other request waits for them."""

MAX_PAGES_OF_TOKEN = 4
"""Maximum concurrent pages with one token."""

MAX_CONCURRENT_OPERATIONS = 16
"""Maximum concurrent requests of operators; further ones wait."""

MAX_OPERATIONS_OF_TOKEN = 8
"""Maximum concurrent requests of operators with one token."""

OPERATION_TIMEOUT = 40.0
"""Seconds that workers have to answer the request of an operator, after the wait for a turn."""

MAX_SHARED_STARTS = MAX_MEMBERS
"""Maximum concurrent starts that share workflows; further ones wait."""

QUERY_TIMEOUT = timedelta(seconds=3)
"""The time in which a worker must say how far a saga is; after it, the answer has what Temporal knows."""

SESSION_SECONDS = 8 * 3600.0
"""Seconds after which a browser has to sign in to the console again."""

MAX_SESSIONS_OF_TOKEN = 50
"""Sessions of one token; a further one ends the oldest of them."""

MAX_FORM_BYTES = 16 * 1024
"""Bytes of a form that the console accepts."""

MAX_DECIDED = 50
"""Parked steps about which one form of the console decides; the others follow with the next form."""

MAX_LISTED = 100
"""Rows of a list in the console, the newest first."""
