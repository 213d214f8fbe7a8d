"""Selects sagas of bulk workflows by a list filter of Temporal.

Temporal knows the bulk workflow only, so the filter is applied to the claims of its sagas. That is possible for
comparisons of a few fields, joined by AND. Everything else is refused, because Temporal's answer would be wrong: for a
bulk workflow `SagaLabels != 'city=Oslo'` holds, whatever the labels of its sagas are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from saga_activities.ledger.records import Claim, RunFilter
from saga_workers.location.locator import Locator
from saga_workers.temporal.visibility_filter import LITERAL, literal_value
from sagas.definition.times import utc_if_naive

MAX_CLAIMS = 100_000

_CONDITION = re.compile(rf"\s*`?(\w+)`?\s*(=|>=|<=|>|<|\bSTARTS_WITH\b)\s*(?:{LITERAL})\s*", re.IGNORECASE)
_AND = re.compile(r"AND\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ClaimFilter:
    """``rows`` is what the ledger compares; ``others`` are conditions for the claims that it finds."""

    rows: RunFilter
    others: Sequence[Callable[[Claim], bool]] = field(default=())


def parse_claim_filter(where: str) -> ClaimFilter | None:
    """The filter for claims; None if it cannot be applied to them."""
    saga: str | None = None
    labels: dict[str, str] = {}
    others: list[Callable[[Claim], bool]] = []
    position = 0
    while True:
        match = _CONDITION.match(where, position)
        if match is None:
            return None
        name, operator = match.group(1), match.group(2).upper()
        value = literal_value(match, 3)
        match name, operator:
            case "WorkflowType", "=":
                if saga not in (None, value):
                    others.append(lambda claim: False)
                saga = value
            case "SagaLabels", "=":
                label, separator, content = value.partition("=")
                if not separator or labels.get(label, content) != content:
                    others.append(lambda claim: False)
                labels[label] = content
            case "WorkflowId", "=":
                others.append(lambda claim, value=value: claim.saga_id == value)
            case "WorkflowId", "STARTS_WITH":
                others.append(lambda claim, value=value: claim.saga_id.startswith(value))
            case "ExecutionStatus", "=":
                others.append(lambda claim, value=value: value == "Running")
            case "StartTime", ">" | ">=" | "<" | "<=":
                try:
                    others.append(_time_condition(operator, _parse_time(value)))
                except ValueError:
                    return None
            case _:
                return None
        position = match.end()
        if position == len(where):
            return ClaimFilter(RunFilter(saga=saga, labels=labels), tuple(others))
        joined = _AND.match(where, position)
        if joined is None:
            return None
        position = joined.end()


async def claimed_sagas(locator: Locator, claims: ClaimFilter, task_queue: str | None) -> list[str]:
    """The ids of the sagas that running bulk workflows have now, and that match. Raises LedgerUnavailable, RPCError."""
    matching = [
        bulk_claim
        for bulk_claim in await locator.ledger.bulk_claims(claims.rows, MAX_CLAIMS)
        if all(condition(bulk_claim) for condition in claims.others)
    ]
    return [
        member.claim.saga_id
        for member in await locator.members(matching)
        if member.bulk is not None and member.bulk.run.running and task_queue in (None, member.bulk.run.task_queue)
    ]


def _parse_time(text: str) -> datetime:
    return utc_if_naive(datetime.fromisoformat(text))


def _time_condition(operator: str, limit: datetime) -> Callable[[Claim], bool]:
    match operator:
        case ">":
            return lambda claim: claim.claimed_at > limit
        case ">=":
            return lambda claim: claim.claimed_at >= limit
        case "<":
            return lambda claim: claim.claimed_at < limit
        case _:
            return lambda claim: claim.claimed_at <= limit
