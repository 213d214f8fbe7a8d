"""Compares ``[[reconcile.effects]]`` with the definitions: a wrong declaration would call each good row a mismatch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sagas.definition.model import Definition, StepDefinition
from sagas.settings.model import Settings
from sagas.settings.reconcile import EffectTable
from sagas.settings.wrong_setting import WrongSetting
from sagas.sql_text.sql_results import returns_no_rows, rows_schema


def wrong_declarations(settings: Settings, definitions: Mapping[str, Definition]) -> Iterator[WrongSetting]:
    """The declarations that a definition contradicts. Sagas that the project does not define are not checked."""
    for table in settings.reconcile.effects:
        for name in table.sagas or tuple(definitions):
            definition = definitions.get(name)
            if definition is None or table.step is None:
                continue
            step = next((step for step in definition.steps if step.id == table.step), None)
            if step is not None:
                why = _why_no_field(table, definition, step)
            else:
                why = f"{name} has no step `{table.step}`" if table.sagas else None
            if why is not None:
                help = "name a step, and a field of its result"
                yield WrongSetting(f"[[reconcile.effects]] {table.name}", f": {why}", help=help)
                break


def _why_no_field(table: EffectTable, definition: Definition, step: StepDefinition) -> str | None:
    """Why the result of a `sql` step certainly lacks a field that the declaration reads; None if it may have all."""
    fields = [str(field) for field in ([table.result_field] if table.result else [])]
    fields += [str(field) for field in table.amounts.values()]
    run = (step.do.with_ or {}).get("run")
    if step.do.uses != "sql" or not fields or not isinstance(run, list):
        return None
    name = f"the step {step.id} of {definition.saga}"
    if all(returns_no_rows(statement["sql"]) for statement in run):
        return f"{name} returns no rows, so its result has no field `{fields[0]}`"
    columns: Mapping[str, Any] | None = rows_schema(run).get("items", {}).get("properties")
    missing = next((field for field in fields if columns is not None and field.split(".")[0] not in columns), None)
    if columns is None or missing is None:
        return None
    return f"the result of {name} has no field `{missing}`, only {', '.join(columns)}"
