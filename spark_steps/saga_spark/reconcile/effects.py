"""Which rows of the business tables are effects of sagas: ``[[reconcile.effects]]`` of saga.toml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from saga_spark.job import names
from saga_spark.reconcile.spec import tolerance_of
from sagas.errors import UsageError
from sagas.settings import Settings
from sagas.settings.model import did_you_mean

_FIELDS = (
    "name", "connection", "table", "where", "key", "saga", "step", "saga_id", "guard_key", "result", "amounts",
    "tolerance", "many", "holds", "time",
)  # fmt: skip
_BINDINGS = ("saga_id", "guard_key", "result")
_EXPRESSIONS = ("where", "saga_id", "guard_key", "time")

Binding = Literal["saga_id", "guard_key", "result"]


@dataclass(frozen=True, slots=True)
class Effects:
    """The rows of one table that are there because a step was done.

    How a row names its step, one of: ``saga_id`` (SQL: the saga's id), ``guard_key`` (SQL: the key of the step, as
    ``step.key`` gives it), ``result`` (a field of the step's result, and the SQL that must equal it). ``step`` is the
    id in the definition; without it a row belongs to the saga as a whole. ``sagas`` are the names of the sagas that
    write here; none: any. ``amounts``: column → field of the step's result. ``many``: one step may write several rows.
    ``holds``: a reservation, which is there only as long as its saga is open. ``time`` is SQL for when a row was
    written. All SQL is that of the database.
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
        """What the runner has to know."""
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


def effects_of(settings: Settings) -> tuple[Effects, ...]:
    """Raises UsageError: ``[reconcile]`` says something unknown or wrong."""
    for key in settings.reconcile:
        if key != "effects":
            raise UsageError(f"[reconcile]: unknown setting {key}{did_you_mean(key, ('effects',))}")
    written = settings.reconcile.get("effects", [])
    if not isinstance(written, Sequence) or not all(isinstance(one, Mapping) for one in written):
        raise UsageError("reconcile.effects is a list of tables: [[reconcile.effects]]")
    found = tuple(_effects(number, one, settings) for number, one in enumerate(written, 1))
    twice = {one.name for one in found if sum(other.name == one.name for other in found) > 1}
    if twice:
        raise UsageError(f"[[reconcile.effects]]: {min(twice)} is there twice; give each a `name` of its own")
    return found


def _effects(number: int, written: Mapping[str, Any], settings: Settings) -> Effects:
    what = f"[[reconcile.effects]] {written.get('name') or written.get('table') or number}"
    for name in written:
        if name not in _FIELDS:
            raise UsageError(f"{what}: unknown setting {name}{did_you_mean(name, _FIELDS)}")
    for name in ("connection", "table", "key"):
        if not written.get(name):
            raise UsageError(f"{what}: `{name}` is missing")
    for name in _EXPRESSIONS:
        if name in written and not (isinstance(written[name], str) and written[name].strip()):
            raise UsageError(f"{what}: `{name}` is a piece of SQL")
    if settings.connection(written["connection"]).kind != "sql":
        raise UsageError(f"{what}: {written['connection']} is no SQL connection")
    bindings = [name for name in _BINDINGS if name in written]
    if len(bindings) != 1:
        raise UsageError(
            f"{what}: needs exactly one of {', '.join(_BINDINGS)}", help="how does a row tell which saga wrote it?"
        )
    binding: Binding = bindings[0]  # pyright: ignore[reportAssignmentType]
    if binding != "saga_id" and not written.get("step"):
        raise UsageError(f"{what}: `{binding}` needs `step`")
    expression, result_field = written[binding], None
    if binding == "result":
        if not isinstance(expression, Mapping) or len(expression) != 1:
            raise UsageError(f'{what}: `result` is one field and the column it equals: result = {{order_id = "id"}}')
        ((result_field, expression),) = expression.items()
    amounts = written.get("amounts", {})
    if amounts and not written.get("step"):
        raise UsageError(f"{what}: `amounts` needs `step`: they are held against the step's result")
    return Effects(
        name=str(written.get("name") or written["table"]),
        connection=written["connection"],
        table=written["table"],
        key=names(written["key"]),
        binding=binding,
        expression=expression,
        result_field=result_field,
        where=written.get("where"),
        sagas=names(written.get("saga")),
        step=written.get("step"),
        amounts=dict(amounts),
        tolerance=tolerance_of(written.get("tolerance")),
        many=bool(written.get("many", False)),
        holds=bool(written.get("holds", False)),
        time=written.get("time"),
    )
