"""A Definition as plain JSON and back, exactly: the form in which it travels with a run.

Runs inside Temporal workflows, so it only moves values: no validation, no schema, nothing but the standard library.
Fields that have their default are left out, which keeps the header of a run small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from sagas.definition.model import Compensation, Definition, Notification, Operation, Probe, Retry, Step


def _table(model: type) -> tuple[tuple[str, Any], ...]:
    table = []
    for one in fields(model):
        if one.metadata.get("travels") is False:
            continue
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        table.append((one.name, default))
    return tuple(table)


_TABLES = {model: _table(model) for model in (Retry, Operation, Compensation, Probe, Step, Notification, Definition)}


def _pack(value: Any) -> Any:
    table = _TABLES.get(type(value))
    if table is not None:
        packed = {}
        for name, default in table:
            field = getattr(value, name)
            if field != default or type(field) is not type(default):
                packed[name] = _pack(field)
        return packed
    if isinstance(value, tuple):
        return [_pack(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    return value


def to_snapshot(definition: Definition) -> dict[str, Any]:
    """The definition as JSON data; ``from_snapshot`` gives an equal one back."""
    return _pack(definition)


def from_snapshot(data: Mapping[str, Any]) -> Definition:
    """The definition a run carries. Raises KeyError or TypeError for data that is no snapshot."""
    values = {**data, "steps": tuple(_step(step) for step in data["steps"])}
    if notify := data.get("notify"):
        values["notify"] = tuple(_notification(one) for one in notify)
    return Definition(**values)


def _notification(data: Mapping[str, Any]) -> Notification:
    values = {**data, "when": tuple(data["when"]), "do": _operation(data["do"])}
    if (intervals := data.get("intervals")) is not None:
        values["intervals"] = tuple(intervals)
    return Notification(**values)


def _step(data: Mapping[str, Any]) -> Step:
    values = dict(data)
    values["do"] = _operation(data["do"])
    values["needs"] = tuple(data.get("needs", ()))
    if compensate := data.get("compensate"):
        confirmed = compensate.get("confirmed")
        values["compensate"] = Compensation(
            tuple(_operation(one) for one in compensate["alternates"]),
            _operation(confirmed) if confirmed else None,
        )
    if confirm := data.get("confirm"):
        values["confirm"] = _operation(confirm)
    if probe := data.get("probe"):
        values["probe"] = Probe(**{**probe, "operation": _operation(probe["operation"])})
    return Step(**values)


def _operation(data: Mapping[str, Any]) -> Operation:
    retry = data.get("retry")
    if retry is None:
        return Operation(**data)
    intervals = retry.get("intervals")
    values = {**retry, "intervals": tuple(intervals)} if intervals is not None else retry
    return Operation(**{**data, "retry": Retry(**values)})
