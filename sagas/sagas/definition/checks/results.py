"""What is known about the result of a step: the return annotation of its Python action."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from sagas.actions import Action


def result_schema(action: Action | None) -> Any:
    """JSON Schema of the result as it is stored; None when the action does not say."""
    return None if action is None else _schema_of(action.function)


@lru_cache(maxsize=1024)
def _schema_of(function: Callable[..., Any]) -> Any:
    try:
        returned = get_type_hints(function, include_extras=True).get("return", Any)
    except (NameError, TypeError):
        return None
    return None if returned is type(None) else schema_of_type(returned)


def schema_of_type(annotation: Any) -> Any:
    """JSON Schema of a type's values as they are stored; None when it says nothing about them."""
    from pydantic import PydanticUserError, TypeAdapter

    if annotation is Any:
        return None
    try:
        # As written to JSON: a Decimal leaves as a text.
        return TypeAdapter(annotation).json_schema(mode="serialization")
    except (PydanticUserError, NameError, TypeError):
        # An annotation that pydantic cannot describe says nothing about the result.
        return None
