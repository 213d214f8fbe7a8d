"""How the saga of a scheduled start has ended."""

from __future__ import annotations

from saga_workers.location.locator import Locator
from saga_workers.location.verified_outcomes import state_of


async def final_state(locator: Locator, saga_id: str) -> str | None:
    """The state in which the saga has ended; None while it runs, is parked, or is being undone.

    Raises LedgerUnavailable and RPCError.
    """
    location = await locator.locate(saga_id)
    match location.kind:
        case "running" | "in bulk" | "undoing":
            return None
        case "terminated":
            return "TERMINATED"
        case "ended" | "unknown" if location.run is not None:
            return await state_of(locator, location.run.run)
        case "ended" if location.row is not None:
            return location.row.view.state
    return "UNKNOWN"
