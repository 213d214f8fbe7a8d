"""The paths of operators, and their part of the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saga_workers.serve.openapi_parts import TEXT, operation
from saga_workers.serve.operation_request import FIELDS, REQUIRED
from sagas.protocol.access_view import Operation

OPERATION_PATHS: Mapping[Operation, str] = {
    "cancel": "/sagas/{id}/cancel",
    "pause": "/sagas/{id}/pause",
    "resume": "/sagas/{id}/resume",
    "signal": "/sagas/{id}/signals/{signal}",
    "resolve": "/sagas/{id}/resolve",
    "undo": "/sagas/{id}/undo",
}

_SUMMARIES: Mapping[Operation, str] = {
    "cancel": "Cancel a saga and undo its steps",
    "pause": "Stop a saga from starting calls",
    "resume": "Let a paused saga go on",
    "signal": "Complete a `wait` step, or reject it",
    "resolve": "Decide about a parked step",
    "undo": "Undo a saga that has completed",
}
_IDS = {"type": "array", "items": TEXT}
_ANSWERS: Mapping[Operation, Mapping[str, Any]] = {
    "cancel": {"response": {"enum": ["accepted", "recorded", "already", "requested"]}, "note": TEXT},
    "pause": {"response": {"const": "paused"}, "held": _IDS, "in_flight": _IDS, "note": TEXT},
    "resume": {"response": {"const": "resumed"}, "state": TEXT},
    "signal": {"signal": TEXT, "response": {"enum": ["sent", "rejected"]}, "note": TEXT},
    "resolve": {
        "response": {"const": "accepted"},
        "state": TEXT,
        "note": TEXT,
        "dry_run": {"const": True},
        "next": _IDS,
    },
    "undo": {"response": {"const": "undoing"}},
}
_ERRORS = ("400", "401", "403", "404", "408", "409", "413", "415", "422", "429", "503")


def operator_paths() -> dict[str, Any]:
    """The paths with what each of them takes and answers."""
    return {
        path: {
            "post": operation(name, path, _SUMMARIES[name], _answer(name), body=_body(name), errors=_ERRORS),
        }
        for name, path in OPERATION_PATHS.items()
    }


def _body(name: Operation) -> dict[str, Any]:
    required = {"required": list(REQUIRED[name])} if name in REQUIRED else {}
    return {"type": "object", "additionalProperties": False, "properties": dict(FIELDS[name]), **required}


def _answer(name: Operation) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["id"],
        "properties": {"id": TEXT, **_ANSWERS[name]},
    }
