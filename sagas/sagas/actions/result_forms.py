"""The form of an action's result in commands for operators: `[{…}]` for a list of objects."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from datetime import date, time
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from sagas.text.json_forms import BOOLEAN, NUMBER, OBJECT, TEXT, list_form


@lru_cache(maxsize=1024)
def result_form(function: Callable[..., Any]) -> str | None:
    """The form of what a function returns, by its annotation; None for an object, and where it is not known."""
    try:
        form = _form(get_type_hints(function, include_extras=True).get("return", Any))
    except Exception:  # noqa: BLE001 - an annotation is an expression, and may raise anything
        return None
    return None if form == OBJECT else form


def _form(annotation: Any) -> str | None:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _form(parts[0])
    if origin in (Union, types.UnionType):
        forms = {_form(part) for part in parts if part is not type(None)}
        return forms.pop() if len(forms) == 1 else None
    kind = origin or annotation
    if not isinstance(kind, type) or kind is object:
        return None
    if issubclass(kind, bool):
        return BOOLEAN
    if issubclass(kind, str | date | time | UUID):
        return TEXT
    if issubclass(kind, int | float | Decimal):
        return NUMBER
    if issubclass(kind, Mapping) or hasattr(kind, "__dataclass_fields__") or hasattr(kind, "model_fields"):
        return OBJECT
    if issubclass(kind, Iterable) and not issubclass(kind, bytes):
        return list_form(_form(parts[0]) if parts else None)
    return None
