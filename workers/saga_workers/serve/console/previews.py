"""The consequences of a request of a person, before it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from saga_workers.serve.console.words import FIELD_LABELS
from saga_workers.serve.operation_request import OperationRequest, checked_operation
from saga_workers.serve.operations import Operations
from saga_workers.serve.request_body import BadRequest
from saga_workers.temporal.temporal_runs import NoAnswer
from sagas.errors import RefusedError, UsageError
from sagas.protocol.access_view import Operation
from sagas.text.json_values import parse_json

DECISION_FIELDS = ("step", "decision", "reason", "evidence", "with", "result")

_FIELDS: Mapping[Operation, Sequence[str]] = {"resolve": DECISION_FIELDS, "signal": ("data", "reject")}
_JSON_FIELDS = ("with", "result", "data")
_NOT_YET = "a preview"
"""Stands for a text that the form will have when it is sent."""


@dataclass(frozen=True, slots=True)
class PreviewedRequest:
    """The immediate consequences of a request, in words, or why it would be refused as it is. ``needs_evidence``: the
    saga does not accept it without.
    """

    consequences: Sequence[str] = ()
    refusal: str | None = None
    needs_evidence: bool = False


def request_in(operation: Operation, form: Mapping[str, str]) -> OperationRequest:
    """The request in a form. Raises BadRequest if it is not well-formed."""
    names = _FIELDS.get(operation, ("reason",))
    fields: dict[str, Any] = {name: form[name].strip() for name in names if form.get(name, "").strip()}
    for name in _JSON_FIELDS:
        if name in fields:
            try:
                fields[name] = parse_json(fields[name].encode())
            except ValueError as error:
                raise BadRequest(400, f"what is written under “{FIELD_LABELS[name]}” is not JSON: {error}") from None
    if operation in ("resolve", "undo") and "reason" not in fields:
        raise BadRequest(400, f"write the reason for it under “{FIELD_LABELS['reason']}”")
    return checked_operation(operation, fields, form.get("name", "") if operation == "signal" else None)


async def preview_decision(operations: Operations, saga_id: str, form: Mapping[str, str], who: str) -> PreviewedRequest:
    """The consequences of a decision. A person may have yet to give its texts."""

    async def preview(**texts: str) -> PreviewedRequest:
        try:
            asked = request_in("resolve", {**form, **texts})
            return PreviewedRequest((await operations.preview(asked, saga_id, who=who))["next"])
        except BadRequest as error:
            return PreviewedRequest(refusal=str(error))
        except (RefusedError, UsageError, NoAnswer) as error:
            return PreviewedRequest(refusal=error.message)

    reason = form.get("reason", "").strip() or _NOT_YET
    if form.get("decision") not in ("done", "compensate"):
        return await preview(reason=reason)
    without = await preview(reason=reason, evidence="")
    if without.refusal is None:
        return without
    proven = await preview(reason=reason, evidence=form.get("evidence", "").strip() or _NOT_YET)
    return replace(proven, needs_evidence=proven.refusal != without.refusal)
