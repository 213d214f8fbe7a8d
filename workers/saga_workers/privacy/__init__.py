"""The `x-sensitive` values of one saga: shows them in clear, and has them forgotten."""

from __future__ import annotations

from sagas.errors import UsageError
from sagas.settings import Settings


def require_record(settings: Settings, what: str) -> None:
    """Raise UsageError without a ledger, which keeps the record of who has seen values, or had them forgotten."""
    if settings.ledger.connection is None:
        raise UsageError(
            f"{what} needs a ledger, which records it", help="set [ledger] connection in saga.toml, and run saga setup"
        )
