"""The consequences of a changed input schema for those who start the saga: a part of `saga diff`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sagas.definition.digest import without_annotations
from sagas.text.exact_json import canonical_json
from sagas.text.json_values import as_mapping

InputChange = tuple[str, Any, Any, str, bool]
"""The field, its old and new value, what it means, and whether it needs attention: see ``Change``."""


def input_changes(old: Any, new: Any) -> Iterator[InputChange]:
    """The changes of single properties, and one for the rest of the schema. Titles and descriptions do not count."""
    old, new = without_annotations(old), without_annotations(new)
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        if differ(old, new):
            yield "input", old, new, "inputs are checked by a different schema", True
        return
    properties, new_properties = (as_mapping(schema.get("properties")) for schema in (old, new))
    required, now_required = (set(map(str, schema.get("required") or ())) for schema in (old, new))
    names = [*properties, *(name for name in new_properties if name not in properties)]
    for name in names:
        value, new_value = properties.get(name), new_properties.get(name)
        became_optional, became_required = name in required - now_required, name in now_required - required
        if not differ(value, new_value) and not became_optional and not became_required:
            continue
        if name not in new_properties:
            meaning, attention = _meaning_of_removal(name, new)
        elif became_required and "default" not in as_mapping(new_value):
            meaning, attention = f"an input without {name} is refused", True
        elif name not in properties:
            refuses = old.get("additionalProperties") is False
            meaning, attention = (
                f"an input may have {name}" + ("" if refuses else ", and is refused if it does not fit"),
                not refuses,
            )
        elif not differ(value, new_value):
            meaning, attention = f"an input without {name} is accepted", False
        elif not differ(_without_default(value), _without_default(new_value)):
            meaning, attention = f"an input without {name} gets a different value", True
        else:
            meaning, attention = f"{name} is checked by a different schema", True
        if not differ(value, new_value):
            value, new_value = ("required" if name in needed else "optional" for needed in (required, now_required))
        yield f"input.{name}", value, new_value, meaning, attention
    other_keywords, new_other_keywords = (
        {key: schema[key] for key in schema if key not in ("properties", "required")} for schema in (old, new)
    )
    if differ(other_keywords, new_other_keywords) or required - set(names) != now_required - set(names):
        yield "input", old, new, "inputs are checked by a different schema", True


def _meaning_of_removal(name: str, new: Mapping[str, Any]) -> tuple[str, bool]:
    others = [new[key] for key in ("additionalProperties", "unevaluatedProperties") if key in new]
    if False in others:
        return f"an input with {name} is refused", True
    if name in (new.get("required") or ()):
        return f"nothing but its presence is checked of {name}", False
    if any(isinstance(other, Mapping) and other for other in others):
        return f"{name} is checked as every other property", True
    return f"an input with {name} is accepted, and nothing checks it", False


def _without_default(schema: Any) -> Any:
    return {key: value for key, value in schema.items() if key != "default"} if isinstance(schema, Mapping) else schema


def differ(old: Any, new: Any) -> bool:
    """Compare values as JSON, in which 1, 1.0 and true are three."""
    return canonical_json(old) != canonical_json(new)
