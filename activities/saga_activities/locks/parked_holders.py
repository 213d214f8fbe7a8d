"""Adds to the report of an attempt that waits for another saga that this one is parked.

Who waits for a parked saga waits for a decision, which the message has to say. Independent of Temporal, which knows the
states of sagas.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from saga_activities.locks.arrival_order import Blocker
from sagas.protocol.outcomes import Outcome
from sagas.protocol.waits import parked_hint

IsParked = Callable[[str], Awaitable[bool]]
"""Tells whether the saga with an id is parked; False also if its state is unknown."""


async def with_parked_owner(outcome: Outcome, is_parked: IsParked) -> Outcome:
    """The outcome of an attempt; one that ran into a row of a parked saga says so."""
    failure = outcome.failure
    if failure is None or not outcome.infrastructure or "row" not in failure.details:
        return outcome
    owner = failure.details.get("owner")
    if not isinstance(owner, str) or not await is_parked(owner):
        return outcome
    return replace(outcome, failure=replace(failure, message=f"{failure.message}; {parked_hint(owner)}"))


async def reported_blockers(blockers: Sequence[Blocker], is_parked: IsParked) -> list[dict[str, Any]]:
    """The blockers of a request as the saga receives them.

    Only the first is checked for being parked, because messages name no other.
    """
    reported: list[dict[str, Any]] = [blocker._asdict() for blocker in blockers]
    if reported and await is_parked(blockers[0].owner):
        reported[0]["parked"] = True
    return reported
