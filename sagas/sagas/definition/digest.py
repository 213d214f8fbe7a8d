"""The digest of a definition, and the forms of expressions and schemas in which it compares them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sagas.definition.model import Definition
from sagas.definition.snapshot import to_snapshot
from sagas.expressions.template_syntax import split_template
from sagas.text.exact_json import canonical_json

_ANNOTATIONS = ("title", "description", "$comment", "examples")


def digest_of(definition: Definition) -> str:
    """``sha256:…`` over the canonical JSON of everything that affects execution.

    Descriptive texts, the forms of results and the order of steps in the file are left out: `needs` determines the
    order completely.
    """
    data = to_snapshot(replace(definition, description="", digest=""))
    steps = {}
    for step in data["steps"]:
        step.pop("name", None)
        step.pop("result_form", None)
        step["needs"] = sorted(step.get("needs", []))
        steps[step["id"]] = step
    data["steps"] = steps
    data = {key: value if key == "input" else normalized_expressions(value) for key, value in data.items()}
    data["input"] = without_annotations(data.get("input", {}))
    return "sha256:" + hashlib.sha256(canonical_json(data).encode()).hexdigest()


def normalized_expressions(value: Any) -> Any:
    """Strip whitespace around expressions; whitespace inside them stays, because it may be part of a string."""
    if isinstance(value, Mapping):
        return {key: normalized_expressions(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [normalized_expressions(item) for item in value]
    if not isinstance(value, str) or "${{" not in value:
        return value
    parts = [[part.expression, part.text.strip() if part.expression else part.text] for part in split_template(value)]
    return {"${{": parts}


def without_annotations(schema: Any) -> Any:
    """A JSON Schema without annotations; properties keep their names even if these look like annotations."""
    if not isinstance(schema, dict):
        return schema
    result = {}
    for key, value in schema.items():
        if key in _ANNOTATIONS:
            continue
        if key in ("properties", "$defs", "patternProperties", "dependentSchemas") and isinstance(value, dict):
            result[key] = {name: without_annotations(part) for name, part in value.items()}
        elif key in ("allOf", "anyOf", "oneOf", "prefixItems") and isinstance(value, list):
            result[key] = [without_annotations(part) for part in value]
        elif key == "required" and isinstance(value, list):
            result[key] = sorted(value, key=str)
        elif key in ("enum", "const", "default"):
            result[key] = value
        else:
            result[key] = without_annotations(value)
    return result
