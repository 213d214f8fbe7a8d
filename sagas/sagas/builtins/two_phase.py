"""Two-phase commit of `sql` steps: the operations that the engine adds to a step with `two_phase`.

Data only: activities prepare, commit and roll back transactions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TWO_PHASE = "two_phase"
COMMIT = "sql.commit_prepared"
ROLLBACK = "sql.rollback_prepared"
"""The `confirm` and the `compensate` of a `sql` step with `two_phase`."""


def is_two_phase(uses: str, arguments: Mapping[str, Any]) -> bool:
    """True for a call of `sql` that prepares its transaction."""
    return uses == "sql" and arguments.get(TWO_PHASE) is True
