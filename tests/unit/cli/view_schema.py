"""The JSON Schema of `saga show -o json`, made from the model, and docs/reference/saga-show.md with its fields.

`python -m tests.unit.cli.reference_page` writes both again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from jsonschema import Draft202012Validator

from sagas.protocol import parked_rows_view, saga_view
from sagas.protocol.access_view import Timestamp
from sagas.protocol.json_view import OMITTED, JsonView
from sagas.protocol.saga_view import SagaView

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/saga-show.md"
SCHEMA = PAGE.with_name("saga-show.schema.json")

_HEAD = """# The document of `saga show`

`saga show ID -o json` prints this document; so do `saga watch`, `saga start --wait`, `saga undo` and
`saga cancel --wait` when they end, and `saga resolve`. `saga list -o json` prints a list of them, each without `steps`.
It is also the response of the query `saga`, the value of the memo `saga` of a closed run, and what `client.show()`
returns. [saga-show.schema.json](saga-show.schema.json) is its JSON Schema.

Later versions may add fields, so readers must ignore those they do not know. Timestamps are RFC 3339 in UTC. A field
marked *optional* is absent while it has no value; every other field is always there, and null if it is not known.

The document has at most 512 KiB. In a larger one the largest of `input`, results and arguments are omitted; if that is
not enough, finished items of a `for_each` are counted in `steps_omitted` instead of listed. The output, the reason,
parked operations and residue stay as long as they fit.
"""


# --- the schema ------------------------------------------------------------------------------------------------------


def schema() -> dict[str, Any]:
    """The published schema. It allows further fields, which later versions may add."""
    parts = {cls.__name__: _object(cls) for cls in _parts() if cls is not SagaView}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "saga show",
        **_object(SagaView),
        "$defs": parts,
    }


def _parts() -> list[type[JsonView]]:
    """All classes of the document, the document first."""
    values = [*vars(saga_view).values(), *vars(parked_rows_view).values()]
    kinds = [SagaView, *(kind for kind in values if isinstance(kind, type))]
    kinds.sort(key=lambda kind: kind.__module__ != saga_view.__name__)  # its own before those that it imports
    return [name for name in dict.fromkeys(kinds) if issubclass(name, JsonView) and name is not JsonView]


def _object(cls: type[Any]) -> dict[str, Any]:
    hints = _hints(cls)
    return {
        "type": "object",
        "description": _description(cls),
        "properties": {name: _schema_of(hint) for name, hint in hints.items()},
        "required": [name for name, hint in hints.items() if not _is_optional(hint)],
    }


def _hints(cls: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def _description(cls: type[Any]) -> str:
    return " ".join((cls.__doc__ or "").split())


def _is_optional(hint: Any) -> bool:
    return OMITTED in getattr(hint, "__metadata__", ())


def _schema_of(hint: Any) -> dict[str, Any]:
    if hint == Timestamp:
        return {"type": "string", "format": "date-time"}
    if get_origin(hint) is Annotated:
        inner = get_args(hint)[0]
        if _is_optional(hint):
            inner = _without_none(inner)
        return {**_schema_of(inner), "description": hint.__metadata__[0]}
    if hint is Any:
        return {}
    if isinstance(hint, type) and issubclass(hint, JsonView):
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    if get_origin(hint) is tuple:
        return {"type": "array", "items": _schema_of(get_args(hint)[0])}
    if get_origin(hint) is Mapping:
        values = _schema_of(get_args(hint)[1])
        return {"type": "object", **({"additionalProperties": values} if values else {})}
    if hint in _JSON_TYPES:
        return {"type": _JSON_TYPES[hint]}
    return _union([_schema_of(option) for option in get_args(hint)])


_JSON_TYPES = {str: "string", int: "integer", bool: "boolean", type(None): "null"}


def _without_none(hint: Any) -> Any:
    [inner] = [option for option in get_args(hint) if option is not type(None)] or [hint]
    return inner


def _union(options: list[dict[str, Any]]) -> dict[str, Any]:
    """One schema for several: values of enums are joined, and null becomes one of the types where that is possible."""
    nullable = {"type": "null"} in options
    options = [option for option in options if option != {"type": "null"}]
    if all("enum" in option for option in options):
        return {"enum": [value for option in options for value in option["enum"]] + [None] * nullable}
    if len(options) == 1 and nullable and "type" in options[0]:
        return {**options[0], "type": [options[0]["type"], "null"]}
    return {"anyOf": options + [{"type": "null"}] * nullable}


def render_schema() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


# --- checking a document ---------------------------------------------------------------------------------------------


def problems(document: Any, *, without: tuple[str, ...] = ()) -> list[str]:
    """In what a document differs from the committed schema; a field that the schema does not have is a difference."""
    return [f"{error.json_path}: {error.message}" for error in _validator(without).iter_errors(document)]


@cache
def _validator(without: tuple[str, ...]) -> Draft202012Validator:
    strict = json.loads(SCHEMA.read_text(encoding="utf-8"))
    strict["required"] = [name for name in strict["required"] if name not in without]
    for object_schema in (strict, *strict["$defs"].values()):
        object_schema["additionalProperties"] = False
    return Draft202012Validator(strict)


# --- the page --------------------------------------------------------------------------------------------------------


def render() -> str:
    return "\n".join([_HEAD, *(_section(cls) for cls in _parts())])


def _section(cls: type[JsonView]) -> str:
    rows = [f"| `{name}` | {_type_text(hint)} | {_meaning(hint)} |" for name, hint in _hints(cls).items()]
    title = "The document" if cls is SagaView else cls.__name__
    return "\n".join(
        [f"## {title}\n", f"{_description(cls)}\n", "| field | type | meaning |", "|---|---|---|", *rows, ""]
    )


def _meaning(hint: Any) -> str:
    sentence = "" if hint == Timestamp or get_origin(hint) is not Annotated else hint.__metadata__[0]
    return ("*optional*: " if _is_optional(hint) else "") + sentence


def _type_text(hint: Any) -> str:
    if hint == Timestamp:
        return "timestamp"
    if get_origin(hint) is Annotated:
        inner = get_args(hint)[0]
        return _type_text(_without_none(inner) if _is_optional(hint) else inner)
    if hint is Any:
        return "any JSON"
    if isinstance(hint, type) and issubclass(hint, JsonView):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if get_origin(hint) is Literal:
        return ", ".join(f"`{option}`" for option in get_args(hint))
    if get_origin(hint) is tuple:
        return f"array of {_type_text(get_args(hint)[0])}"
    if get_origin(hint) is Mapping:
        return "object" if get_args(hint)[1] is Any else f"object of {_type_text(get_args(hint)[1])}"
    if hint in _JSON_TYPES:
        return _JSON_TYPES[hint]
    texts = [_type_text(option) for option in get_args(hint) if option is not type(None)]
    return ", ".join(texts) + (" or null" if type(None) in get_args(hint) else "")
