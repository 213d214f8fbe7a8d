"""What is compared with what: the arguments of a reconciliation as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from saga_spark.job import names
from sagas.errors import UsageError

SAMPLES = 20
"""How many differences of each kind a result shows."""


@dataclass(frozen=True, slots=True)
class Spec:
    """How two sides are compared.

    ``key`` names the columns that identify a row, ``compare`` those that must say the same (None: all that both sides
    have). ``tolerance`` is absolute and holds for numbers. ``mapping`` says what a column of the left is called on the
    right. ``filter`` (SQL, or column → value) holds for both sides, in the names of the left.
    """

    key: tuple[str, ...]
    compare: tuple[str, ...] | None = None
    tolerance: Decimal | None = None
    filter: str | Mapping[str, Any] | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    samples: int = SAMPLES

    @staticmethod
    def parse(arguments: Mapping[str, Any]) -> Spec:
        """Raises UsageError, one sentence."""
        key = names(arguments.get("key"))
        if not key:
            raise UsageError("a reconciliation needs `key`: the columns that identify a row")
        compare = names(arguments["compare"]) if arguments.get("compare") is not None else None
        mapping = {str(left): str(right) for left, right in (arguments.get("mapping") or {}).items()}
        return Spec(key, compare, tolerance_of(arguments.get("tolerance")), arguments.get("filter"), mapping)


def tolerance_of(value: Any) -> Decimal | None:
    """An absolute tolerance; None for none, and for zero. Raises UsageError."""
    if value is None:
        return None
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        found = Decimal("NaN")
    if not found.is_finite() or found < 0:
        raise UsageError(f"`tolerance` is a number from 0 on, not {value!r}")
    return found or None
