"""The headers of a start about other runs of its saga: its generation, how `saga resume` starts it again, and whether
its event does after a compensation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from temporalio import workflow

from sagas.protocol.payloads import EARLIER_HEADERS, GENERATION_HEADER, RESUMED_HEADER
from sagas.protocol.redelivery_names import REDELIVERY_HEADER
from sagas.workflow.client_fields import (
    LAST_SECOND,
    LONGEST_WAIT,
    number,
    optional_flag,
    optional_text,
    read_client_value,
    text,
    whole_number,
)
from sagas.workflow.client_messages import who_and_reason
from sagas.workflow.json_payloads import read_payload

MAX_GENERATION = 2**31 - 1
"""The largest integer of the guard's tables."""


def earlier_in_headers() -> dict[str, Any]:
    """The values of these headers by their names: they count only with a signature. Each of them has been read without
    an error.
    """
    headers = workflow.info().headers
    return {name: read_payload(headers[name]) for name in EARLIER_HEADERS if name in headers}


def generation_in_header() -> int:
    """The generation of the start; 1 without the header. Raises SagaApplicationError if it is malformed."""
    header = workflow.info().headers.get(GENERATION_HEADER)
    expected = f"the header {GENERATION_HEADER} is not a number from 1 to {MAX_GENERATION}"
    return 1 if header is None else read_client_value(expected, header, _generation)


def redelivery_in_header() -> dict[str, Any] | None:
    """When the event of the start is offered again, see :attr:`sagas.machine.state.SagaRun.redelivery`; None: never.

    Raises SagaApplicationError if the header is malformed.
    """
    header = workflow.info().headers.get(REDELIVERY_HEADER)
    expected = f"the header {REDELIVERY_HEADER} is not that of a trigger"
    return None if header is None else read_client_value(expected, header, _redelivery)


def _redelivery(value: Any) -> dict[str, Any]:
    intervals = [number(seconds, 0, LONGEST_WAIT) for seconds in value["intervals"]]
    return {"intervals": intervals, "passed": whole_number(value["passed"], 0, len(intervals))}


def _generation(value: Any) -> int:
    return whole_number(value, 1, MAX_GENERATION)


@dataclass(frozen=True, slots=True)
class Resumption:
    """How `saga resume` starts a saga again. ``began_at``: when the saga was first started. ``generations``: the least
    ones of its entries. ``who`` is None if the saga is started for the first time. ``committed``: what that person says
    of its commit point; ``undone``: the entries, with their generations, whose undo elsewhere that person has seen.
    ``undecided``: the entries about which an operator was asked, as far as the ledger tells.
    ``cancelled``: why it is started only to be undone; empty if it is not. ``root_start``: that of its origin.
    """

    began_at: float | None = None
    generations: Mapping[str, int] = field(default_factory=dict)
    undone: Mapping[str, int] = field(default_factory=dict)
    undecided: tuple[str, ...] = ()
    who: str | None = None
    reason: str = ""
    committed: bool | None = None
    cancelled: str = ""
    root_start: str = ""


def resumption_in_header() -> Resumption:
    """How the saga is started again. Raises SagaApplicationError if the header is malformed."""
    header = workflow.info().headers.get(RESUMED_HEADER)
    if header is None:
        return Resumption()
    return read_client_value(f"the header {RESUMED_HEADER} is not that of saga resume", header, _resumption)


def _resumption(value: Any) -> Resumption:
    generations = {entry: _generation(generation) for entry, generation in value["generations"].items()}
    who, reason = who_and_reason(value)
    undone = {text(entry): generations.get(entry, 1) for entry in value["undone"]}
    began_at, committed = number(value["started_at"], 0, LAST_SECOND), optional_flag(value.get("committed"))
    cancelled = optional_text(value.get("cancelled")) or ""
    root_start = optional_text(value.get("root_start")) or ""
    undecided = tuple(map(text, value.get("undecided", ())))
    told = (undone, undecided, who or "unknown", reason or "", committed)
    return Resumption(began_at, generations, *told, cancelled, root_start)
