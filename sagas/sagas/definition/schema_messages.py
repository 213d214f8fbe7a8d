"""Sentences about values that do not fit a JSON Schema, in place of a library's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from sagas.builtins.messaging import FORM_DESCRIPTION
from sagas.definition.schema_formats import FORMATS
from sagas.definition.schema_validation import ALTERNATIVES, additional_names
from sagas.errors import did_you_mean, nearest
from sagas.expressions.work_budget import TooComplex, bounded
from sagas.text.exact_json import encode_json
from sagas.text.exact_numbers import BINARY
from sagas.text.shortening import shorten

_MAX_SHOWN = 80
_MAX_LISTED = 10
_MAX_STEPS = 5_000
"""Steps of the search for the reason why a value fits no alternative."""
_MAX_COMPARED = 200
"""Fields of an input that are compared with a missing name."""
TYPE_DESCRIPTIONS = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}


def describe_types(kinds: Any) -> str:
    """``a string or null`` for ``["string", "null"]``."""
    return " or ".join(
        TYPE_DESCRIPTIONS.get(kind, str(kind)) for kind in ([kinds] if isinstance(kinds, str) else kinds)
    )


def shown_value(value: Any) -> str:
    """A value as JSON, shortened."""
    return shorten(encode_json(value, default=str).decode(), _MAX_SHOWN)


def sentence(error: Any, *, mask_value: bool = False, mask_names: bool = False) -> str:
    """Return what is wrong with the value of an error. ``mask_value``, ``mask_names``: neither it nor its names are
    quoted.
    """
    shown = "the value" if mask_value else shown_value(error.instance)
    if "propertyNames" in error.relative_schema_path and isinstance(error.instance, str):
        shown = "a name" if mask_names or mask_value else f"the name {shown}"
    keyword, limit = error.validator, error.validator_value
    if keyword in _LIMITS:
        return _LIMITS[keyword].format(shown=shown, limit=_plain(limit))
    about = _ABOUT.get(keyword)
    if about is not None:
        return about(error, shown, mask_names)
    return "no value is allowed here" if keyword is None else f"{shown} does not fit `{keyword}`"


def closest_error(error: Any) -> Any:
    """The error of the only alternative that may have been meant, if the others are of another kind."""
    while error.validator in ("anyOf", "oneOf") and _alternatives(error):
        groups: dict[Any, list[Any]] = {}
        for inner in error.context:
            # The error of the schema `false` has no path.
            groups.setdefault(next(iter(inner.relative_schema_path), None), []).append(inner)
        meant = [group for group in groups.values() if not any(map(_is_of_other_kind, group))]
        if len(meant) != 1:
            break
        error = meant[0][0]
    return error


def _alternatives(error: Any) -> list[Any]:
    """The errors of the alternatives, also in `context`, as jsonschema has them. None where it takes too long."""
    if (why := getattr(error, ALTERNATIVES, None)) is not None and not error.context:
        with suppress(TooComplex), bounded(_MAX_STEPS):
            error.context = why()
        for inner in error.context:
            inner.parent = error
        setattr(error, ALTERNATIVES, lambda: [])
    return error.context


def _is_of_other_kind(error: Any) -> bool:
    """True if the value, or a field that marks its kind, is another one."""
    depth = len(error.relative_path)
    return (error.validator in ("type", None) and depth == 0) or (error.validator == "const" and depth == 1)


_LIMITS = {
    "const": "{shown} is not {limit}",
    "minimum": "{shown} is less than {limit}",
    "maximum": "{shown} is more than {limit}",
    "exclusiveMinimum": "{shown} is not more than {limit}",
    "exclusiveMaximum": "{shown} is not less than {limit}",
    "multipleOf": "{shown} is not a multiple of {limit}",
    "minLength": "{shown} has fewer characters than {limit}",
    "maxLength": "{shown} has more characters than {limit}",
    BINARY: "{shown} has more digits than a binary float holds; round it, or declare a Decimal",
    "minItems": "the list has fewer elements than {limit}",
    "maxItems": "the list has more elements than {limit}",
    "uniqueItems": "the list has equal elements",
    "contains": "the list has no element that fits `contains`",
    "minContains": "the list has fewer elements that fit `contains` than {limit}",
    "maxContains": "the list has more elements that fit `contains` than {limit}",
    "minProperties": "the mapping has fewer fields than {limit}",
    "maxProperties": "the mapping has more fields than {limit}",
    "items": "the list has more elements than `prefixItems`",
    "unevaluatedItems": "the list has elements that no schema allows",
    "not": "{shown} is what `not` excludes",
}


def _about_type(error: Any, shown: str, mask_names: bool) -> str:
    return f"{shown} is not {describe_types(error.validator_value)}"


def _about_enum(error: Any, shown: str, mask_names: bool) -> str:
    listed = [shown_value(value) for value in error.validator_value[:_MAX_LISTED]]
    more = ", …" if len(error.validator_value) > _MAX_LISTED else ""
    return f"{shown} is not one of {', '.join(listed)}{more}"


def _about_format(error: Any, shown: str, mask_names: bool) -> str:
    return f"{shown} is not {FORMATS[error.validator_value][1]}"


def _about_pattern(error: Any, shown: str, mask_names: bool) -> str:
    form = error.schema.get(FORM_DESCRIPTION)
    return f"{shown} is not {form}" if form else f"{shown} does not match the pattern {_plain(error.validator_value)}"


def _about_required(error: Any, shown: str, mask_names: bool) -> str:
    missing = [name for name in error.validator_value if name not in error.instance]
    listed = [f"`{name[:_MAX_SHOWN]}`" for name in missing[:_MAX_LISTED]]
    if len(missing) > _MAX_LISTED:
        listed.append(f"{len(missing) - _MAX_LISTED} more fields")
    needs = f"needs {' and '.join(filter(None, (', '.join(listed[:-1]), listed[-1])))}"
    if mask_names or error.schema.get("additionalProperties") is False:  # which names the other field itself
        return needs
    declared = error.schema.get("properties", ())
    others = [name for name in islice(error.instance, _MAX_COMPARED) if name not in declared and len(name) < _MAX_SHOWN]
    for name in missing[:_MAX_LISTED]:
        if near := nearest(name, others):
            return f"{needs}, and has `{near}`{did_you_mean(near, (name,))}"
    return needs


def _about_dependent_required(error: Any, shown: str, mask_names: bool) -> str:
    for name, needed in error.validator_value.items():
        if name in error.instance:
            for other in needed:
                if other not in error.instance:
                    return f"needs `{other}`, because it has `{name}`"
    return f"{shown} does not fit `dependentRequired`"


def _about_additional(error: Any, shown: str, mask_names: bool) -> str:
    if mask_names:
        return "has fields that are not in the schema"
    names = additional_names(error.schema, error.instance) if error.validator == "additionalProperties" else []
    if not names:
        return "has fields that no schema allows"
    listed = ", ".join(f"`{name[:_MAX_SHOWN]}`" for name in names[:_MAX_LISTED])
    more = ", …" if len(names) > _MAX_LISTED else ""
    declared = tuple(error.schema.get("properties", ()))
    hint = next(filter(None, (did_you_mean(name[:_MAX_SHOWN], declared) for name in names[:_MAX_LISTED])), "")
    return f"has the unknown field{'s' if len(names) > 1 else ''} {listed}{more}{hint}"


def _about_alternatives(error: Any, shown: str, mask_names: bool) -> str:
    if error.validator == "oneOf" and not hasattr(error, ALTERNATIVES):
        return f"{shown} fits more than one part of `oneOf`"
    parts = _alternatives(error)
    wrong = [inner.validator_value for inner in parts if inner.validator == "type" and not inner.relative_path]
    if len(wrong) == len(error.validator_value) and all(isinstance(kind, str) for kind in wrong):
        return f"{shown} is not {describe_types(dict.fromkeys(wrong))}"
    return f"{shown} fits no part of `{error.validator}`"


_ABOUT: Mapping[str, Callable[[Any, str, bool], str]] = {
    "type": _about_type,
    "enum": _about_enum,
    "format": _about_format,
    "pattern": _about_pattern,
    "required": _about_required,
    "dependentRequired": _about_dependent_required,
    "additionalProperties": _about_additional,
    "unevaluatedProperties": _about_additional,
    "anyOf": _about_alternatives,
    "oneOf": _about_alternatives,
}


def _plain(limit: Any) -> str:
    return limit[:_MAX_SHOWN] if isinstance(limit, str) else shown_value(limit)
