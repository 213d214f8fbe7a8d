"""Checks an input against the saga's JSON Schema and fills in defaults, before anything starts."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from sagas.definition.model import Definition
from sagas.definition.schema_paths import resolve

MAX_SENTENCES = 20


def check_input(definition: Definition, input: Any) -> tuple[Any, list[str]]:
    """The input with defaults filled in, and one sentence per mistake (none: it is fine).

    An input of None stands for `{}`. Defaults come from `default` of properties, also in nested objects and items.
    """
    schema = definition.input
    filled = with_defaults(schema, {} if input is None else copy.deepcopy(input))
    if not schema:
        return filled, []
    # Takes a tenth of a second to import, and most commands check no input.
    from jsonschema import Draft202012Validator

    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    errors = sorted(validator.iter_errors(filled), key=lambda error: [str(part) for part in error.absolute_path])
    sentences = [_sentence(error) for error in errors[:MAX_SENTENCES]]
    if len(errors) > MAX_SENTENCES:
        sentences.append(f"and {len(errors) - MAX_SENTENCES} more mistakes")
    return filled, sentences


def with_defaults(schema: Any, value: Any, root: Any = None) -> Any:
    """``value``, changed in place, with the defaults of missing properties."""
    root = schema if root is None else root
    schema = resolve(schema, root)
    if not isinstance(schema, Mapping):
        return value
    if isinstance(value, dict):
        for name, property in (schema.get("properties") or {}).items():
            described = resolve(property, root)
            if name not in value and isinstance(described, Mapping) and "default" in described:
                value[name] = copy.deepcopy(described["default"])
            if name in value:
                value[name] = with_defaults(property, value[name], root)
    elif isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        value[:] = [with_defaults(schema["items"], item, root) for item in value]
    for part in schema.get("allOf") or ():
        value = with_defaults(part, value, root)
    return value


def _sentence(error: Any) -> str:
    place = "input" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in error.instance)
        return f"{place} needs `{missing}`"
    message = error.message
    if len(message) > 200:
        message = f"does not fit `{error.validator}`: {error.validator_value!r}"[:200]
    return f"{place}: {message}"
