"""`kafka.request`: the facts about a command that is answered by a reply.

Facts only: how the command is written and its reply recorded is the business of activities/request, and who listens
for replies that of workers/replies.
"""

from __future__ import annotations

from typing import Any

from sagas.builtins_messaging import TOPIC

REQUEST = "kafka.request"

REPLY = "kafka.reply"
"""The probe that the engine gives to a request: it looks whether the reply has been recorded meanwhile. A command that
was never written it sees to it that none will be, so its `absent` can be believed."""

REQUEST_TIMEOUT = 300.0
"""Seconds one attempt waits for the reply where nothing is said. The other end may be a queue away, or asleep."""

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "topic": TOPIC,
        "reply_topic": TOPIC,
        "key": {},
        "value": {},
        "headers": {"type": "object"},
    },
    "required": ["topic", "value"],
    "additionalProperties": False,
}
"""``reply_topic`` has to be literal: who listens for replies reads it in the definitions."""


def default_reply_topic(prefix: str) -> str:
    """Where replies go unless the step says something else; ``prefix`` is that of ``[kafka]``."""
    return f"{prefix}-replies"
