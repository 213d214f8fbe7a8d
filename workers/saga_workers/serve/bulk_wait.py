"""Which starts over HTTP share workflows: the setting `bulk_wait`, and the sagas for which it is worth while."""

from __future__ import annotations

from sagas.bulk.batchable import why_no_member, why_not_batchable
from sagas.definition.model import Definition
from sagas.definition.times import parse_duration
from sagas.errors import UsageError
from sagas.settings import Settings

MAX_SHARED = 500
"""Sagas that share a workflow. Callers wait for all of them to be claimed."""

MAX_BULK_WAIT = 1.0
"""Seconds that a start may wait for others."""


def bulk_wait(settings: Settings) -> float:
    """`[serve] bulk_wait` in seconds; 0 if each saga has a workflow of its own.

    Raises UsageError if it is too long, or there is no ledger.
    """
    seconds = parse_duration(settings.serve.get("bulk_wait", "0s"))
    if seconds > MAX_BULK_WAIT:
        raise UsageError(
            f"serve.bulk_wait is longer than {MAX_BULK_WAIT:g}s, for which each caller would wait",
            help='write a duration such as bulk_wait = "20ms"',
        )
    if seconds > 0 and settings.ledger.get("connection") is None:
        raise UsageError(
            "serve.bulk_wait needs a ledger, which keeps the states of sagas that share a workflow",
            help="set [ledger] connection in saga.toml, and run saga setup",
        )
    return seconds


def why_not_shared(definition: Definition) -> str | None:
    """Why sagas of this definition would leave a shared workflow before they have done anything in it."""
    return why_no_member(definition) or why_not_batchable(definition.steps[0])
