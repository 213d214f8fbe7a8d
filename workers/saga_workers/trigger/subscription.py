"""Subscribes a member of a consumer group, so that what its callbacks raise can be caught."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Callback = Callable[[Any, list[Any]], None]
"""A function of the client and the partitions, which the client calls within poll(), consume() and close()."""


def subscribe(client: Any, topic: str, *, assigned: Callback, revoked: Callback, lost: Callback) -> None:
    """Subscribe a client to a topic. What a callback raises, the call raises within which it was called."""
    client.subscribe([topic], on_assign=_catchable(assigned), on_revoke=_catchable(revoked), on_lost=_catchable(lost))


def _catchable(callback: Callback) -> Callback:
    """Return the callback with errors that can be caught.

    A KafkaException that no Python code has caught before it leaves a callback is raised by the client as the bare
    KafkaError, whose class does not derive from BaseException (confluent-kafka 2.16, Python 3.11): no `except` catches
    it, and its thread ends unnoticed. To catch it once gives it its class.
    """

    @functools.wraps(callback)
    def call(client: Any, partitions: list[Any]) -> None:
        try:
            callback(client, partitions)
        except Exception:
            raise

    return call
