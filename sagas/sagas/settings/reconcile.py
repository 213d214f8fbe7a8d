"""``[reconcile]`` of saga.toml: the rows of business tables that are effects of sagas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from sagas.settings.forms import NUMBER, TABLE, Flag, Names, OptionalText, Text
from sagas.settings.table import REQUIRED, Table, array_of, setting
from sagas.settings.wrong_setting import WrongSetting

Binding = Literal["saga_id", "guard_key", "result"]
_BINDINGS: tuple[Binding, ...] = ("saga_id", "guard_key", "result")


def parse_tolerance(value: Any, setting: str = "`tolerance`") -> Decimal | None:
    """An absolute tolerance; None if there is none or it is zero. Raises WrongSetting."""
    if value is None:
        return None
    try:
        tolerance = Decimal(str(value))
    except InvalidOperation:
        tolerance = Decimal("NaN")
    if not tolerance.is_finite() or tolerance < 0:
        raise WrongSetting(setting, f"must be a number that is not negative, not {value!r}")
    return tolerance or None


class EffectTable(Table):
    """The rows of one table that exist because a step was done. All SQL is in the dialect of its database.

    A row refers to its step in one of these ways: ``saga_id`` (SQL for the saga's id), ``guard_key`` (SQL for the
    step's key, as in ``step.key``), ``result`` (a field of the step's result, and the SQL that must equal it). ``step``
    is the id in the definition; without it a row belongs to the saga as a whole.
    """

    heading = "reconcile.effects"
    title = "`[[reconcile.effects]]`"
    summary = (
        "The rows of your own tables that are effects of sagas, see "
        "[reconcile](../how-to/reconcile.md#declare-which-rows-are-effects). An array of tables; exactly one of "
        "`saga_id`, `guard_key` and `result` is set."
    )

    own_name: OptionalText = setting(None, "the name in the report; default: the table", "orders", alias="name")
    connection: Text = setting(REQUIRED, "the SQL connection (required)", "shop")
    table: Text = setting(REQUIRED, "the table (required)", "orders")
    where: OptionalText = setting(None, "SQL: which rows are effects", "state <> 'draft'")
    key: Names = setting(REQUIRED, "the columns that identify a row (required)", "order_id")
    sagas: Names = setting((), "the sagas that write these rows; default: any", "checkout", alias="saga")
    step: OptionalText = setting(None, "the step that writes them; without it a row belongs to the saga", "place")
    saga_id: OptionalText = setting(None, "SQL: the id of the saga of a row")
    guard_key: OptionalText = setting(None, "SQL: the step's key (`step.key`) of a row")
    result: Annotated[Mapping[str, Any] | None, TABLE] = setting(
        None, "a field of the step's result, and the SQL that equals it", {"order_id": "order_id"}
    )
    amounts: Annotated[Mapping[str, Any], TABLE] = setting(
        {}, "column = the field of the step's result that it equals", {"total": "total"}
    )
    tolerance: Annotated[Decimal | None, replace(NUMBER, read=lambda written: parse_tolerance(written, ""))] = setting(
        None, "an absolute tolerance for `amounts`; default: 0", "0.01"
    )
    many: Flag = setting(False, "one step may write several rows; their amounts are summed")
    holds: Flag = setting(False, "reservations: no row may outlive its saga")
    time: OptionalText = setting(
        None,
        "SQL: when a row was written. Rows older than Temporal's retention are ignored, and `--since` reads only "
        "newer rows. Without it `--since` reads the whole table",
        "placed_at",
    )

    @property
    def name(self) -> str:
        return self.own_name or self.table

    @property
    def binding(self) -> Binding:
        """How a row refers to its step."""
        return next(name for name in _BINDINGS if getattr(self, name) is not None)

    @property
    def result_field(self) -> str | None:
        return next(iter(self.result)) if self.result else None

    @property
    def expression(self) -> str:
        """The SQL that equals the saga's id, the step's key, or the field of its result."""
        return self.saga_id or self.guard_key or next(iter((self.result or {}).values()))

    @model_validator(mode="after")
    def _check(self) -> Self:
        bindings = [name for name in _BINDINGS if getattr(self, name) is not None]
        if len(bindings) != 1:
            help = "it links a row to the saga that wrote it"
            raise WrongSetting("", f": needs exactly one of {', '.join(_BINDINGS)}", help=help)
        if bindings != ["saga_id"] and self.step is None:
            raise WrongSetting("", f": `{bindings[0]}` needs `step`")
        if self.result is not None and (len(self.result) != 1 or not isinstance(self.expression, str)):
            example = 'result = {order_id = "id"}'
            raise WrongSetting("", f": `result` must be one field and the column that equals it, as in {example}")
        if self.amounts and self.step is None:
            why = "because amounts are compared with the result of the step"
            raise WrongSetting("", f": `amounts` needs `step`, {why}")
        return self

    def to_json(self) -> dict[str, Any]:
        """The fields that the runner needs."""
        return {
            "name": self.name,
            "binding": self.binding,
            "field": self.result_field,
            "timed": self.time is not None,
            "tolerance": None if self.tolerance is None else str(self.tolerance),
            **self.model_dump(
                include={"connection", "table", "key", "sagas", "step", "amounts", "many", "holds", "where"}
            ),
        }


def _label(number: int, table: Mapping[str, Any]) -> str:
    return f"[[reconcile.effects]] {table.get('name') or table.get('table') or number}"


class ReconcileSettings(Table):
    """The tables that `saga reconcile` compares with the guard rows."""

    heading = "reconcile"

    effects: Annotated[tuple[EffectTable, ...], array_of(EffectTable, _label)] = setting((), EffectTable.summary)

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [effects.name for effects in self.effects]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            why = f": the name {repeated} occurs twice; give each table a `name` of its own"
            raise WrongSetting("[[reconcile.effects]]", why)
        return self
