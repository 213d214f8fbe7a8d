"""JSON Schema of the language for editors, from the same table of fields that the parser reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sagas.builtins import BUILTINS, EXPRESSION, LATER
from sagas.definition.fields import LATER_ACTIONS, TOP
from sagas.definition.shapes import Schema

if TYPE_CHECKING:
    from sagas.actions import Action
    from sagas.signature import Parameter, Signature

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_RENDERED: Schema = {"type": "string", "pattern": r"\$\{\{"}


def language_schema(actions: Mapping[str, Action] | None = None) -> Schema:
    """The schema of a saga file. With ``actions`` (`saga schema --with-actions`) it also knows their arguments.

    YAML merge keys are resolved by editors before they validate; graphs and expressions are `saga validate`'s work.
    """
    schema = TOP.schema()
    step = schema["properties"]["steps"]["items"]
    known = _arguments(actions or {})
    # Without the project's actions an unknown name may be one of them, so names are only proposed.
    names = sorted({*known, *(actions or {})})
    step["properties"]["uses"] = {
        "description": step["properties"]["uses"]["description"],
        "anyOf": [{"enum": names}, {"type": "string", "minLength": 1, "not": {"enum": sorted(LATER_ACTIONS)}}],
    }
    step["allOf"] = [_when(name, arguments) for name, arguments in sorted(known.items())]
    return {"$schema": DIALECT, "title": "Saga definition", **schema}


def _when(name: str, arguments: Schema) -> Schema:
    needed = ["with"] if arguments.get("required") else []
    then: Schema = {"properties": {"with": arguments}}
    return {
        "if": {"properties": {"uses": {"const": name}}, "required": ["uses"]},
        "then": {**then, "required": needed} if needed else then,
    }


def _arguments(actions: Mapping[str, Action]) -> dict[str, Schema]:
    known = {name: _rendered(_without_later(builtin.parameters)) for name, builtin in BUILTINS.items()}
    for name in ("sql", "http", "outbox.emit"):
        # A connection may come from `defaults`.
        known[name]["required"] = [one for one in known[name]["required"] if one != "connection"]
    for name, action in actions.items():
        known[name] = _signature(action.signature)
    return known


def _signature(signature: Signature) -> Schema:
    properties: dict[str, Any] = dict.fromkeys(signature.unusable, False)
    for one in signature.parameters:
        properties |= dict.fromkeys((one.name, one.variable), _own_value(one))
    required = [one for one in signature.parameters if one.required]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": [one.name for one in required if one.name == one.variable],
        "additionalProperties": False if signature.rest is None else _value(_own_value(signature.rest)),
    }
    spelled = [[one.name, one.variable] for one in required if one.name != one.variable]
    if spelled:
        schema["allOf"] = [{"oneOf": [{"required": [name]} for name in names]} for names in spelled]
    return schema


def _own_value(parameter: Parameter) -> Schema:
    return _rendered(_inlined(dict(parameter.schema)))


def _without_later(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_later(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: _without_later(value)
        for key, value in schema.items()
        if key != EXPRESSION and not (isinstance(value, Mapping) and LATER in value)
    }


def _inlined(schema: Any, definitions: Any = None, depth: int = 0) -> Any:
    """Replace `$ref`: a pointer of the action's own schema leads nowhere inside the language's schema."""
    if isinstance(schema, list):
        return [_inlined(one, definitions, depth) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    definitions = schema.get("$defs", definitions or {})
    reference = schema.get("$ref")
    if isinstance(reference, str):
        target = definitions.get(reference.removeprefix("#/$defs/"), {})
        return _inlined(target, definitions, depth + 1) if depth < 10 else {}
    return {key: _inlined(value, definitions, depth) for key, value in schema.items() if key != "$defs"}


def _rendered(schema: Any) -> Any:
    """The same schema, where every typed value may also be a text with an expression."""
    if not isinstance(schema, Mapping):
        return schema
    inner = dict(schema)
    if "properties" in inner:
        inner["properties"] = {name: _value(one) for name, one in inner["properties"].items()}
    if isinstance(inner.get("items"), Mapping):
        inner["items"] = _value(inner["items"])
    if isinstance(inner.get("additionalProperties"), Mapping):
        inner["additionalProperties"] = _value(inner["additionalProperties"])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in inner:
            inner[key] = [_rendered(one) for one in inner[key]]
    return inner


def _value(schema: Any) -> Any:
    inner = _rendered(schema)
    free = not schema or (schema.get("type") == "string" and not {"pattern", "enum", "format"} & set(schema))
    return inner if free else {"anyOf": [inner, _RENDERED]}
