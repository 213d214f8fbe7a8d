"""Tells whether the ledger would have the end of a saga, if that had ended.

A ledger has the ends of the sagas whose workers have written to it, not those from before it was switched on, nor those
of a time without it. So workers mark each effect with the id of their ledger. The newest effect counts: the end of its
saga came after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from saga_workers.ledger.run_ledger import RunLedger

if TYPE_CHECKING:
    from saga_workers.location.traces import RecordedEffect


async def knows_end(ledger: RunLedger, effects: Sequence[RecordedEffect]) -> bool:
    """True if a worker with this ledger has made the newest of these effects of a saga. Raises LedgerUnavailable."""
    marks = {effect.created_at: effect.origin.ledger for effect in effects if effect.origin is not None}
    mark = marks[max(marks)] if marks else ""
    return mark != "" and mark == await ledger.identity()
