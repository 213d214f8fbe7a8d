"""The arguments of a comparison as a value, and the effect tables of a project."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from saga_spark.job.job_spec import as_names
from sagas.errors import UsageError
from sagas.settings import Settings
from sagas.settings.reconcile import EffectTable, parse_tolerance

SAMPLES_PER_KIND = 20
"""Maximum number of differences of each kind in a result."""


@dataclass(frozen=True, slots=True)
class ComparisonSpec:
    """How two sides are compared.

    ``key`` names the columns that identify a row, ``compare`` those that must be equal (None: all common columns).
    ``tolerance`` is absolute and applies to numbers. ``mapping`` maps columns of the left to their names on the right.
    ``filter`` (SQL, or column → value) applies to both sides, in the names of the left.
    """

    key: tuple[str, ...]
    compare: tuple[str, ...] | None = None
    tolerance: Decimal | None = None
    filter: str | Mapping[str, Any] | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    samples: int = SAMPLES_PER_KIND

    def needed_columns(self) -> dict[str, frozenset[str]]:
        """The columns of each side without which it cannot be compared; empty if every column may be one.

        A value that cannot be read matters only in these.
        """
        if self.compare is None or isinstance(self.filter, str):
            return {}
        left = frozenset((*self.key, *self.compare, *(self.filter or ())))
        return {"left": left, "right": frozenset(self.mapping.get(name, name) for name in left)}

    @staticmethod
    def parse(arguments: Mapping[str, Any]) -> ComparisonSpec:
        """Raises UsageError, one message."""
        key = as_names(arguments.get("key"))
        if not key:
            raise UsageError("a reconciliation needs `key`, the columns that identify a row")
        compare = as_names(arguments["compare"]) if arguments.get("compare") is not None else None
        mapping = {str(left): str(right) for left, right in (arguments.get("mapping") or {}).items()}
        return ComparisonSpec(
            key, compare, parse_tolerance(arguments.get("tolerance")), arguments.get("filter"), mapping
        )


def effect_tables(settings: Settings) -> tuple[EffectTable, ...]:
    """The tables of ``[[reconcile.effects]]``. Raises UsageError if one is in no database."""
    tables = settings.reconcile.effects
    for effects in tables:
        label = f"[[reconcile.effects]] {effects.name}"
        if settings.connection(effects.connection).kind != "sql":
            raise UsageError(f"{label}: {effects.connection} is not an SQL connection")
    return tables
