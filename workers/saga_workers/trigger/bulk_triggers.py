"""Triggers whose sagas share bulk workflows."""

from __future__ import annotations

from collections.abc import Iterable

from sagas.definition.model import Definition
from sagas.errors import UsageError
from sagas.settings import Settings


def bulk_trigger_problem(settings: Settings, triggers: Iterable[tuple[Definition, str]]) -> UsageError | None:
    """Return what a project lacks whose triggers share workflows."""
    sagas = {
        definition.saga
        for definition, topic in triggers
        if any(trigger.bulk and trigger.topic == topic for trigger in definition.triggers)
    }
    if not sagas or settings.ledger.connection is not None:
        return None
    return UsageError(
        f"the trigger of {min(sagas)} has `bulk`, which needs a ledger",
        help="set [ledger] connection in saga.toml, and run saga setup",
    )
