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
    from pydantic import PydanticUserError, TypeAdapter

    try:
        returned = get_type_hints(function, include_extras=True).get("return", Any)
        if returned in (Any, type(None)):
            return None
        # As written to JSON: a Decimal leaves as a text.
        return TypeAdapter(returned).json_schema(mode="serialization")
    except (PydanticUserError, NameError, TypeError):
        # An annotation that pydantic cannot describe says nothing about the result.
        return None
