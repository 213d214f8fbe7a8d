"""Finds parts of an input schema that no value can fit: every start would be refused, or lose an alternative."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from sagas.definition.schema_messages import shown_value
from sagas.definition.schema_mismatches import JsonNode, has_type, mismatches
from sagas.definition.schema_nodes import Path, SchemaNode, dynamic_targets
from sagas.definition.schema_patterns import matches_pattern
from sagas.text.exact_numbers import is_equal

_LIMITS = (
    ("minimum", "maximum", False),
    ("exclusiveMinimum", "maximum", True),
    ("minimum", "exclusiveMaximum", True),
    ("exclusiveMinimum", "exclusiveMaximum", True),
    ("minLength", "maxLength", False),
    ("minItems", "maxItems", False),
    ("minProperties", "maxProperties", False),
    ("minContains", "maxContains", False),
)
"""Keywords of the lower and the upper limit, and whether equal limits leave no value between them."""

_SCHEMA_MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_NEGATED = ("not", "if")
"""Keywords below which a schema that nothing fits may be meant."""


def impossible_parts(
    parts: list[tuple[SchemaNode, Path]], root: Any, dynamic: Mapping[str, list[SchemaNode]]
) -> Iterator[tuple[Path, str]]:
    """The path of each mistake, and what it is."""
    for node, path in parts:
        if not isinstance(node.schema, Mapping) or _is_negated(path):
            continue
        yield from ((path + place, message) for place, message in _own_problems(node.schema, root))
        together = always_together(node, dynamic)
        if len(together) > 1:
            limits = _together([part.schema for part in together])
            yield from ((path, message) for _, message in _wrong_limits(limits))
        for at, name in enumerate(_names(node.schema.get("required"))):
            if any(_forbids(part.schema, name) for part in together):
                yield (*path, "required", at), f"`{name[:80]}` is required here, and another keyword forbids it"


def _is_negated(path: Path) -> bool:
    """Return whether a keyword leads there below which nothing has to fit; a property may have its name."""
    return any(key in _NEGATED and (at == 0 or path[at - 1] not in _SCHEMA_MAPS) for at, key in enumerate(path))


def always_together(node: SchemaNode, dynamic: Mapping[str, list[SchemaNode]]) -> list[SchemaNode]:
    """The schemas that a value of this one has to fit, too: of its references and of `allOf`."""
    waiting, seen, together = [node], set[int](), list[SchemaNode]()
    while waiting:
        part = waiting.pop()
        if isinstance(part.schema, Mapping) and id(part.schema) not in seen:
            seen.add(id(part.schema))
            together.append(part)
            waiting += [*part.referenced(), *part.all_of(), *dynamic_targets(part, dynamic)]
    return together


def _own_problems(schema: Mapping[str, Any], root: Any) -> Iterator[tuple[Path, str]]:
    yield from (((low,), message) for low, message in _wrong_limits(schema))
    listed, kinds = schema.get("enum"), schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else _names(kinds)
    allowed = {"enum": listed} if isinstance(listed, list) else {}
    if "const" in schema:
        allowed["const"] = [schema["const"]]
        if isinstance(listed, list) and not any(is_equal(schema["const"], value) for value in listed):
            yield ("const",), f"no value fits: {shown_value(schema['const'])} is not in `enum`"
    for keyword, values in allowed.items():
        if kinds and not any(has_type(value, kind) for value in values for kind in kinds):
            yield (keyword,), f"no value fits: nothing in `{keyword}` has the `type` {' or '.join(kinds)}"
    if "default" in schema and isinstance(root, Mapping):
        rest = {key: value for key, value in schema.items() if key != "default"}
        for _, message in mismatches(JsonNode(schema["default"], ""), rest, root):
            yield ("default",), f"the default does not fit its own schema: {message}"
            break


def _wrong_limits(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The keyword of each lower limit above its upper one, and what is wrong."""
    for low, high, strict in _LIMITS:
        least, most = schema.get(low), schema.get(high)
        if not isinstance(least, int | Decimal) or not isinstance(most, int | Decimal):
            continue
        if least > most or (strict and least == most):
            yield low, f"`{low}` is {least}, and `{high}` is {most}: no value fits both"


def _together(schemas: list[Any]) -> dict[str, Any]:
    """The narrowest limits of schemas that a value has to fit at once."""
    limits: dict[str, Any] = {}
    for keywords, narrowest in (([low for low, _, _ in _LIMITS], max), ([high for _, high, _ in _LIMITS], min)):
        for keyword in keywords:
            given = [schema[keyword] for schema in schemas if isinstance(schema.get(keyword), int | Decimal)]
            if given:
                limits[keyword] = narrowest(given)
    return limits


def _forbids(schema: Any, name: str) -> bool:
    declared = schema.get("properties")
    if isinstance(declared, Mapping) and name in declared:
        return declared[name] is False
    patterns = schema.get("patternProperties")
    if isinstance(patterns, Mapping) and any(matches_pattern(pattern, name) for pattern in patterns):
        return False
    return schema.get("additionalProperties") is False


def _names(value: Any) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
