"""Requests to start a saga, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A validated start. ``id`` is None if the definition has no id template. ``steps`` has its validation taken.

    ``event``: the identity of the event, or of the enqueued row, that starts the saga; None if none does.
    ``redelivery``: when that event starts the saga again, as the header says it, see
    :mod:`sagas.protocol.redelivery_names`; None: never.
    """

    input: Any
    id: str | None
    labels: Mapping[str, str]
    steps: int = 0
    event: str | None = None
    redelivery: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class BulkRow:
    """One saga of a bulk workflow."""

    id: str
    request: StartRequest


@dataclass(frozen=True, slots=True)
class StartResult:
    """A saga that runs or has run under ``id``; ``started`` is False if it existed before.

    ``completed``: it existed, and has ended COMPLETED. ``source``: the ledger if Temporal has no run of it.
    ``bulk_id``: the bulk workflow that runs it; then there is no ``run_id``. ``is_compared``: False if nobody knows its
    input any more, so that this may be another one.
    """

    id: str
    run_id: str
    started: bool
    completed: bool = False
    source: Literal["ledger"] | None = None
    bulk_id: str | None = None
    is_compared: bool = True
