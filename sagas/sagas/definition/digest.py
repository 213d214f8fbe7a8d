"""The digest of a definition: equal exactly when two definitions mean the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sagas.definition.model import Definition
from sagas.definition.snapshot import to_snapshot
from sagas.expressions.scanner import scan

_TEXTS_FOR_PEOPLE = ("title", "description", "$comment", "examples")


def digest_of(definition: Definition) -> str:
    """``sha256:…`` over the canonical JSON of everything that decides what happens.

    Texts for people and the order of the file are left out: `needs` says all about the order of steps.
    """
    data = to_snapshot(replace(definition, description="", digest=""))
    steps = {}
    for step in data["steps"]:
        step.pop("name", None)
        step["needs"] = sorted(step.get("needs", []))
        steps[step["id"]] = step
    data["steps"] = steps
    data = {key: value if key == "input" else _expressions(value) for key, value in data.items()}
    data["input"] = _schema(data.get("input", {}))
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _expressions(value: Any) -> Any:
    """Blanks around an expression mean nothing; those inside it stay, they may be in a string."""
    if isinstance(value, Mapping):
        return {key: _expressions(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_expressions(one) for one in value]
    if not isinstance(value, str) or "${{" not in value:
        return value
    parts = [[part.expression, part.text.strip() if part.expression else part.text] for part in scan(value)]
    return {"${{": parts}


def _schema(schema: Any) -> Any:
    """A JSON Schema without its annotations for people; names of properties are kept whatever they are."""
    if not isinstance(schema, dict):
        return schema
    result = {}
    for key, value in schema.items():
        if key in _TEXTS_FOR_PEOPLE:
            continue
        if key in ("properties", "$defs", "patternProperties", "dependentSchemas") and isinstance(value, dict):
            result[key] = {name: _schema(one) for name, one in value.items()}
        elif key in ("allOf", "anyOf", "oneOf", "prefixItems") and isinstance(value, list):
            result[key] = [_schema(one) for one in value]
        elif key == "required" and isinstance(value, list):
            result[key] = sorted(value, key=str)
        elif key in ("enum", "const", "default"):
            result[key] = value
        else:
            result[key] = _schema(value)
    return result
