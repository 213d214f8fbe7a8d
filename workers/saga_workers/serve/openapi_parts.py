"""The parts of an OpenAPI document that its operations share."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

TEXT: Mapping[str, Any] = {"type": "string"}

ERRORS = {
    "400": "the body is not what is expected",
    "401": "no token, or a wrong one",
    "403": "the token does not have the scope",
    "404": "no such saga",
    "408": "the body arrived too slowly",
    "409": "the saga refuses it, or the id belongs to another start",
    "410": "the saga does not wait for this callback any more",
    "413": "the body is too large",
    "415": "the body is not application/json",
    "422": "the input, the id or the value is not valid",
    "429": "too many starts with this token, or too many wrong tokens",
    "503": "Temporal, the worker or the ledger does not answer",
}
"""The meaning of each status of an error."""

READ_ERRORS = ("401", "403", "404", "429", "503")


def operation(
    id: str,
    path: str,
    summary: str,
    schema: Mapping[str, Any],
    *,
    status: str = "200",
    body: Mapping[str, Any] | None = None,
    errors: Collection[str] = READ_ERRORS,
) -> dict[str, Any]:
    """An operation with the parameters of its path. ``schema``: that of the answer; ``body``: that of the request."""
    described: dict[str, Any] = {
        "operationId": id,
        "summary": summary,
        "responses": {
            status: response("done" if status == "200" else "the saga runs", schema),
            **{error: response(ERRORS[error], reference("Error")) for error in errors},
        },
    }
    names = re.findall(r"{(\w+)}", path)
    if names:
        described["parameters"] = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in names]
    if body is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return described


def response(description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def reference(name: str) -> dict[str, str]:
    """A reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}
