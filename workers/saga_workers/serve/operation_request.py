"""The requests of operators: each has a body with these fields, which are checked before anything is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from saga_workers.serve.request_body import BadRequest, parse_object
from sagas.machine.decisions.form import DECISIONS, malformed_decision
from sagas.protocol.access_view import Operation
from sagas.protocol.messages import DecisionMade

MAX_TEXT = 1000
"""Characters of a text in a body."""

Schema = Mapping[str, Any]

_TEXT: Schema = {"type": ["string", "null"], "maxLength": MAX_TEXT}
_REASON: Schema = {**_TEXT, "description": "why; recorded"}
_JSON: Schema = {}

FIELDS: Mapping[Operation, Mapping[str, Schema]] = {
    "cancel": {"reason": _REASON},
    "pause": {"reason": _REASON},
    "resume": {"reason": _REASON},
    "signal": {
        "data": {**_JSON, "description": "the result of the step that waits"},
        "reject": {**_TEXT, "description": "instead of data: reject the step, with this reason"},
    },
    "resolve": {
        "step": {**_TEXT, "type": "string", "description": "the entry id of the parked step"},
        "decision": {"enum": list(DECISIONS)},
        "reason": {**_REASON, "type": "string"},
        "evidence": {**_TEXT, "description": "how you know that the effect exists, or that it does not"},
        "with": {"type": ["object", "null"], "description": "with retry: new arguments"},
        "result": {**_JSON, "description": "with done: the result of the step"},
        "dry_run": {"type": "boolean", "description": "answer with the consequences, and change nothing"},
    },
    "undo": {"reason": {**_REASON, "type": "string"}},
}
"""The fields of each body with their JSON Schemas, as the OpenAPI document has them."""

REQUIRED: Mapping[Operation, tuple[str, ...]] = {
    "resolve": ("step", "decision", "reason"),
    "undo": ("reason",),
}
"""The fields that a body must have."""

_EXAMPLES: Mapping[Operation, str] = {
    "signal": '{"data": {}}',
    "resolve": '{"step": "charge", "decision": "retry", "reason": "…"}',
}


@dataclass(frozen=True, slots=True)
class OperationRequest:
    """A request that is well-formed. ``fields``: those of the body that are not null. ``signal``: its name."""

    operation: Operation
    fields: Mapping[str, Any]
    signal: str | None = None

    @property
    def reason(self) -> str:
        """The reason that was given, or with which a step is rejected; empty if there is none."""
        return (self.fields.get("reason") or self.fields.get("reject") or "").strip()

    @property
    def is_dry_run(self) -> bool:
        """True if it only asks for the consequences."""
        return self.fields.get("dry_run", False)

    @property
    def has_words(self) -> bool:
        """True if the audit has words of the sender: a reason, or the name of a step or a signal."""
        return bool(self.reason) or self.operation in ("signal", "resolve")

    def detail(self, mask: Callable[[str], str]) -> str | None:
        """The part of the operation that the audit names beside its kind. ``mask`` masks words of the sender."""
        if self.operation == "resolve":
            return f"{mask(self.fields['step'])} {self.fields['decision']}"
        return None if self.signal is None else mask(self.signal)

    def decision(self, who: str) -> dict[str, Any]:
        """The decision of a person with this name, as a saga receives it."""
        names = ("step", "decision", "evidence", "with", "result")
        given = {name: self.fields.get(name) for name in names}
        return {**given, "reason": self.reason, "definition": None, "who": who}


def parse_operation(operation: Operation, signal: str | None, content_type: str, body: bytes) -> OperationRequest:
    """Parse the body of a request; ``signal``: the name of the signal. Raises BadRequest."""
    example = _EXAMPLES.get(operation, '{"reason": "…"}')
    return checked_operation(operation, parse_object(content_type, body, tuple(FIELDS[operation]), example), signal)


def checked_operation(operation: Operation, fields: Mapping[str, Any], signal: str | None = None) -> OperationRequest:
    """The request with these fields. Raises BadRequest if it is not well-formed."""
    if signal is not None:
        _check_text("the name of the signal", signal)
    given = {name: value for name, value in fields.items() if value is not None}
    for name, schema in FIELDS[operation].items():
        if name in given and "maxLength" in schema:
            _check_text(name, given[name])
    if operation == "resolve":
        _check_decision(given)
    if operation == "undo" and not given.get("reason", "").strip():
        raise BadRequest(400, "an undo needs the string `reason`")
    if "reject" in given and "data" in given:
        raise BadRequest(400, "send either data or reject")
    if "reject" in given and not given["reject"].strip():
        raise BadRequest(400, "reject must have the reason")
    return OperationRequest(operation, given, signal)


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise BadRequest(400, f"{name} must be a string")
    if len(value) > MAX_TEXT:
        raise BadRequest(400, f"{name} has {len(value)} characters, and may have {MAX_TEXT}")


def _check_decision(given: Mapping[str, Any]) -> None:
    if not isinstance(given.get("dry_run", False), bool):
        raise BadRequest(400, "dry_run must be true or false")
    fields: Any = {name: given.get(name) for name in ("step", "decision", "reason", "result", "evidence")}
    problem = malformed_decision(DecisionMade(**fields, arguments=given.get("with"), who="", at=0))
    if problem is not None:
        raise BadRequest(400, problem)
