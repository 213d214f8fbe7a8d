"""The arguments of a comparison, and the effect tables of ``[reconcile]``, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from saga_spark.job.job_spec import as_names
from sagas.errors import UsageError
from sagas.settings import Settings

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


def parse_tolerance(value: Any) -> Decimal | None:
    """An absolute tolerance; None if there is none or it is zero. Raises UsageError."""
    if value is None:
        return None
    try:
        tolerance = Decimal(str(value))
    except InvalidOperation:
        tolerance = Decimal("NaN")
    if not tolerance.is_finite() or tolerance < 0:
        raise UsageError(f"`tolerance` must be a number that is not negative, not {value!r}")
    return tolerance or None


# The rows of business tables that are effects of sagas: ``[[reconcile.effects]]`` of saga.toml.
_BINDINGS = ("saga_id", "guard_key", "result")

Binding = Literal["saga_id", "guard_key", "result"]


@dataclass(frozen=True, slots=True)
class EffectTable:
    """The rows of one table that exist because a step was done. All SQL is in the dialect of its database.

    A row refers to its step in one of these ways: ``saga_id`` (SQL for the saga's id), ``guard_key`` (SQL for the
    step's key, as in ``step.key``), ``result`` (a field of the step's result, and the SQL that must equal it). ``step``
    is the id in the definition; without it a row belongs to the saga as a whole. ``sagas`` are the names of the sagas
    that write to the table; empty means any. ``amounts``: column → field of the step's result. ``many``: one step may
    write several rows. ``holds``: the rows are reservations, which exist only while their saga is open. ``time`` is SQL
    for the time at which a row was written.
    """

    name: str
    connection: str
    table: str
    key: tuple[str, ...]
    binding: Binding
    expression: str
    result_field: str | None = None
    where: str | None = None
    sagas: tuple[str, ...] = ()
    step: str | None = None
    amounts: Mapping[str, str] = field(default_factory=dict)
    tolerance: Decimal | None = None
    many: bool = False
    holds: bool = False
    time: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields that the runner needs."""
        return {
            "name": self.name,
            "connection": self.connection,
            "table": self.table,
            "key": list(self.key),
            "binding": self.binding,
            "field": self.result_field,
            "sagas": list(self.sagas),
            "step": self.step,
            "amounts": dict(self.amounts),
            "tolerance": None if self.tolerance is None else str(self.tolerance),
            "many": self.many,
            "holds": self.holds,
            "timed": self.time is not None,
            "where": self.where,
        }


def parse_effect_tables(settings: Settings) -> tuple[EffectTable, ...]:
    """Raises UsageError if ``[reconcile]`` has an invalid setting."""
    configured: Sequence[Mapping[str, Any]] = settings.reconcile.get("effects", [])
    tables = tuple(_parse_effect_table(number, one, settings) for number, one in enumerate(configured, 1))
    duplicates = {effects.name for effects in tables if sum(other.name == effects.name for other in tables) > 1}
    if duplicates:
        raise UsageError(
            f"[[reconcile.effects]]: the name {min(duplicates)} occurs twice; give each table a `name` of its own"
        )
    return tables


def _parse_effect_table(number: int, table: Mapping[str, Any], settings: Settings) -> EffectTable:
    label = f"[[reconcile.effects]] {table.get('name') or table.get('table') or number}"
    for name in ("connection", "table", "key"):
        if not table.get(name):
            raise UsageError(f"{label}: `{name}` is missing")
    if settings.connection(table["connection"]).kind != "sql":
        raise UsageError(f"{label}: {table['connection']} is not an SQL connection")
    bindings = [name for name in _BINDINGS if name in table]
    if len(bindings) != 1:
        raise UsageError(
            f"{label}: needs exactly one of {', '.join(_BINDINGS)}", help="it links a row to the saga that wrote it"
        )
    binding: Binding = bindings[0]  # pyright: ignore[reportAssignmentType]
    if binding != "saga_id" and not table.get("step"):
        raise UsageError(f"{label}: `{binding}` needs `step`")
    expression, result_field = table[binding], None
    if binding == "result":
        if not isinstance(expression, Mapping) or len(expression) != 1:
            raise UsageError(
                f'{label}: `result` must be one field and the column that equals it, as in result = {{order_id = "id"}}'
            )
        ((result_field, expression),) = expression.items()
    amounts = table.get("amounts", {})
    if amounts and not table.get("step"):
        raise UsageError(f"{label}: `amounts` needs `step`, because amounts are compared with the result of the step")
    return EffectTable(
        name=str(table.get("name") or table["table"]),
        connection=table["connection"],
        table=table["table"],
        key=as_names(table["key"]),
        binding=binding,
        expression=expression,
        result_field=result_field,
        where=table.get("where"),
        sagas=as_names(table.get("saga")),
        step=table.get("step"),
        amounts=dict(amounts),
        tolerance=parse_tolerance(table.get("tolerance")),
        many=bool(table.get("many", False)),
        holds=bool(table.get("holds", False)),
        time=table.get("time"),
    )
