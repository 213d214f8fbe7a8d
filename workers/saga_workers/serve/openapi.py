"""The OpenAPI 3.1 document of `saga serve`: what each token may do, with the input schema of each saga."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from sagas.definition.model import Definition

OUTCOME_FIELDS = (
    "id",
    "saga",
    "state",
    "phase",
    "reason",
    "output",
    "started_at",
    "committed_at",
    "ended_at",
    "incomplete",
    "source",
)
"""The fields of a view that are public: neither the input nor the results of steps are exposed."""

_STATES = ("RUNNING", "COMMITTED", "COMPENSATING", "PARKED", "COMPLETED", "COMPENSATED", "RESIDUE", "TERMINATED")
_ANY: Mapping[str, Any] = {}
_TEXT = {"type": "string"}
_TIME = {"type": ["string", "null"], "format": "date-time"}

_OUTCOME = {
    "type": "object",
    "required": list(OUTCOME_FIELDS),
    "properties": {
        "id": _TEXT,
        "saga": _TEXT,
        "state": {"type": "string", "examples": list(_STATES)},
        "phase": {"type": ["string", "null"], "enum": ["forward", "committed", "backward", None]},
        "reason": {"type": ["object", "null"]},
        "output": _ANY,
        "started_at": _TIME,
        "committed_at": _TIME,
        "ended_at": _TIME,
        "incomplete": {"type": ["string", "null"], "description": "why the document is not complete"},
        "source": {"enum": ["ledger", None], "description": "where it was read if Temporal has no run of it"},
    },
}
_STARTED = {
    "type": "object",
    "required": ["id", "run_id", "started", "outcome"],
    "properties": {
        "id": _TEXT,
        "run_id": {"type": "string", "description": "empty for a saga that shares a workflow with others"},
        "started": {"type": "boolean", "description": "false: the id existed, with the same saga and input"},
        "outcome": {"anyOf": [{"$ref": "#/components/schemas/Outcome"}, {"type": "null"}]},
    },
}
_ERROR = {"type": "object", "required": ["error"], "properties": {"error": _TEXT, "state": _TEXT}}

_ERRORS = {
    "400": "the body is not what is expected",
    "401": "no token, or a wrong one",
    "403": "the token does not have the scope",
    "404": "no such saga",
    "408": "the body arrived too slowly",
    "409": "the id belongs to another start, or to a saga that was undone",
    "413": "the body is too large",
    "415": "the body is not application/json",
    "422": "the input or the id is not valid",
    "429": "too many starts with this token",
    "503": "Temporal or the ledger does not answer",
}


def openapi_document(definitions: Mapping[str, Definition]) -> dict[str, Any]:
    """The document. ``definitions`` are the sagas that the caller may start."""
    read = {
        "/sagas/{id}": {"get": _operation("The outcome of a saga", "200", _ref("Outcome"), id_in_path=True)},
        "/sagas/{id}/notifications": {
            "get": _operation(
                "The notifications of a saga and their delivery",
                "200",
                {"type": "array", "items": {"type": "object"}},
                id_in_path=True,
            )
        },
    }
    starts = {f"/sagas/{name}": {"post": _start(definition)} for name, definition in sorted(definitions.items())}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sagas", "version": version("saga-orchestrator")},
        "security": [{"token": []}],
        "paths": {**read, **starts},
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Outcome": _OUTCOME, "Started": _STARTED, "Error": _ERROR},
        },
    }


def _start(definition: Definition) -> dict[str, Any]:
    # With an `$id` of its own, references such as `#/$defs/line` are resolved inside the schema.
    schema: Any = definition.input
    if isinstance(schema, Mapping):
        schema = {"$id": f"urn:saga:{definition.saga}:input", **schema}
    body = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "input": schema,
            "id": {"type": "string", "description": "the id of the saga; default: from the definition"},
            "wait": {"type": "string", "description": "how long to wait for the end, up to 60s", "examples": ["30s"]},
        },
    }
    operation = _operation(
        definition.description or f"Start {definition.saga}", "202", _ref("Started"), errors=tuple(_ERRORS)
    )
    operation["responses"]["200"] = _response("the saga has ended", _ref("Started"))
    operation["operationId"] = f"start-{definition.saga}"
    operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation


def _operation(
    summary: str,
    status: str,
    schema: Mapping[str, Any],
    *,
    id_in_path: bool = False,
    errors: tuple[str, ...] = ("401", "403", "404", "503"),
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {
            status: _response("done" if status == "200" else "the saga runs", schema),
            **{error: _response(_ERRORS[error], _ref("Error")) for error in errors},
        },
    }
    if id_in_path:
        operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": _TEXT}]
    return operation


def _response(description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
