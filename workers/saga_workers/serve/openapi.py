"""The OpenAPI 3.1 document of `saga serve`: what each token may do, with the input schema of each saga."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.metadata import version
from typing import Any

from saga_workers.serve.codec_endpoint import CODEC_PATHS
from saga_workers.serve.openapi_operators import operator_paths
from saga_workers.serve.openapi_parts import ERRORS, TEXT, operation, reference, response
from sagas.definition.model import Definition
from sagas.protocol.callback_address import CALLBACK_PATH

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
    "paused",
    "incomplete",
    "verified",
    "source",
)
"""The fields of a view that are public: neither the input nor the results of steps are exposed."""

_STATES = ("RUNNING", "COMMITTED", "COMPENSATING", "PARKED", "COMPLETED", "COMPENSATED", "RESIDUE", "TERMINATED")
_ANY: Mapping[str, Any] = {}
_TIME = {"type": ["string", "null"], "format": "date-time"}

_OUTCOME = {
    "type": "object",
    "required": list(OUTCOME_FIELDS),
    "properties": {
        "id": TEXT,
        "saga": TEXT,
        "state": {"type": "string", "examples": list(_STATES)},
        "phase": {"type": ["string", "null"], "enum": ["forward", "committed", "backward", None]},
        "reason": {"type": ["object", "null"]},
        "output": _ANY,
        "started_at": _TIME,
        "committed_at": _TIME,
        "ended_at": _TIME,
        "paused": {
            "type": ["object", "null"],
            "description": "nothing of it begins; `kind`: all sagas of the `name` are paused, a connection is, or its "
            "circuit breaker is open; null: this saga alone is paused",
            "properties": {
                "kind": {"enum": ["saga", "connection", "circuit_breaker", None]},
                "name": {"type": ["string", "null"]},
                "who": TEXT,
                "at": _TIME,
            },
        },
        "incomplete": {"type": ["string", "null"], "description": "why the document is not complete"},
        "verified": {"enum": [False, None], "description": "false: `saga serve` has no key to verify the end with"},
        "source": {"enum": ["ledger", None], "description": "where it was read if Temporal has no run of it"},
    },
}
_STARTED = {
    "type": "object",
    "required": ["id", "run_id", "started", "outcome"],
    "properties": {
        "id": TEXT,
        "run_id": {"type": "string", "description": "empty for a saga that shares a workflow with others"},
        "started": {"type": "boolean", "description": "false: the id existed, with the same saga and input"},
        "outcome": {"anyOf": [{"$ref": "#/components/schemas/Outcome"}, {"type": "null"}]},
    },
}
_ERROR = {"type": "object", "required": ["error"], "properties": {"error": TEXT, "state": TEXT}}
_PAYLOADS = {"type": "object", "required": ["payloads"], "properties": {"payloads": {"type": "array", "items": {}}}}
_CALLBACK = CALLBACK_PATH.replace(":path", "")
_RECEIPT = {"type": "object", "required": ["status"], "properties": {"status": TEXT}}


def openapi_document(
    definitions: Mapping[str, Definition], scopes: Collection[str], *, has_codec: bool = False
) -> dict[str, Any]:
    """The document for a token with these scopes. ``definitions`` are the sagas that can be started; ``has_codec``:
    payloads can be converted.
    """
    starts = definitions if "start" in scopes else {}
    paths: dict[str, Any] = {
        **(_read_paths() if "read" in scopes else {}),
        **{f"/sagas/{name}": {"post": _start(definition)} for name, definition in sorted(starts.items())},
        **(operator_paths() if "operate" in scopes else {}),
        **(_codec_paths() if has_codec and "decode" in scopes else {}),
        _CALLBACK: {"post": _callback()},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sagas", "version": version("saga-orchestrator")},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Outcome": _OUTCOME, **({"Started": _STARTED} if starts else {}), "Error": _ERROR},
        },
    }


def _read_paths() -> dict[str, Any]:
    outcome, notifications, this = "/sagas/{id}", "/sagas/{id}/notifications", "/openapi.json"
    delivery = {"type": "array", "items": {"type": "object"}}
    return {
        outcome: {"get": operation("outcome", outcome, "The outcome of a saga", reference("Outcome"))},
        notifications: {
            "get": operation("notifications", notifications, "The notifications of a saga and their delivery", delivery)
        },
        this: {"get": operation("openapi", this, "What this token may do", {"type": "object"})},
    }


def _codec_paths() -> dict[str, Any]:
    errors = ("400", "401", "403", "404", "408", "413", "422", "429", "503")
    summary = "Decode or encode payloads of Temporal"
    return {
        path: {"post": operation(f"codec-{at}", path, summary, _PAYLOADS, body=_PAYLOADS, errors=errors)}
        for at, path in enumerate(CODEC_PATHS)
    }


def _callback() -> dict[str, Any]:
    errors = ("400", "404", "408", "409", "410", "413", "429", "503")
    summary = "The answer of a participant, at the address that it was given"
    described = operation("callback", _CALLBACK, summary, _RECEIPT, body={}, errors=errors)
    return {**described, "security": []}


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
    described = operation(
        f"start-{definition.saga}",
        f"/sagas/{definition.saga}",
        definition.description or f"Start {definition.saga}",
        reference("Started"),
        status="202",
        body=body,
        errors=tuple(error for error in ERRORS if error != "410"),
    )
    described["responses"]["200"] = response("the saga has ended", reference("Started"))
    return described
