"""Python actions: the decorator, how modules with them are loaded, their signatures and the context they receive."""

from __future__ import annotations

from sagas.actions.registry import (
    ACTION_ATTRIBUTE,
    Absent,
    Action,
    Actions,
    Done,
    Unknown,
    action,
    load_actions,
    load_importable_actions,
    load_modules,
    result_schema,
    schema_of_type,
)

__all__ = [
    "ACTION_ATTRIBUTE",
    "Absent",
    "Action",
    "Actions",
    "Done",
    "Unknown",
    "action",
    "load_actions",
    "load_importable_actions",
    "load_modules",
    "result_schema",
    "schema_of_type",
]
