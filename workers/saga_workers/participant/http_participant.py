"""Serves a `@participant` over HTTP: `http_app(Trains)` is an ASGI application for any server.

=============  ===================  ===========================================================
request        key in the header    response
=============  ===================  ===========================================================
POST /do       `Idempotency-Key`    200 and the result; 422 rejected; 409 undone before it came
POST /undo     `Saga-Undoes`        200; 409 if it is confirmed; 422 if `undo` rejects
POST /confirm  `Saga-Confirms`      200; 409 if it is not done, or undone; 422 if `confirm` rejects
POST /probe    `Idempotency-Key`,   200 and {"state": "done", "result": …} or {"state": "absent"}
               or `key` in JSON
=============  ===================  ===========================================================

What is still in progress, or cannot be decided now, is answered with 503 and `Retry-After`, never with a status that a
saga takes for a rejection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga_activities.connections import DatabaseConnections
from saga_activities.guard.entry_key import usable_saga_id
from saga_activities.participants import CommandCall, CommandOp, ParticipantCommands
from saga_workers.participant.json_requests import answer_json
from saga_workers.runtime.http_server import error_response, json_response
from sagas.actions.consumers import HANDLER_ATTRIBUTE
from sagas.actions.participants import Participant
from sagas.builtins.http_headers import CONFIRMS_HEADER, DEFAULT_KEY_HEADER, SAGA_ID_HEADER, UNDOES_HEADER
from sagas.errors import UsageError
from sagas.protocol.outcomes import Outcome
from sagas.settings import Settings, load_settings

_KEY_HEADERS: dict[CommandOp, str] = {
    "do": DEFAULT_KEY_HEADER,
    "undo": UNDOES_HEADER,
    "confirm": CONFIRMS_HEADER,
    "probe": DEFAULT_KEY_HEADER,
}

_TRY_AGAIN = {"Retry-After": "1"}

log = logging.getLogger("saga.participant")


def http_app(participant: type, *, project: Path | str | None = None, settings: Settings | None = None) -> Starlette:
    """An ASGI application that serves a class with ``@participant``: `POST /do`, `/undo`, `/confirm` and `/probe`.

    Its connection is that of the saga.toml in ``project``, by default found upwards from the current folder, and is
    opened with the first request. Raises UsageError for a class that is not a participant.
    """
    note = getattr(participant, HANDLER_ATTRIBUTE, None)
    if not isinstance(note, Participant):
        raise UsageError(f"{participant.__name__} is not a participant", help="declare it with @participant(…)")
    service = _HttpParticipant(note, lambda: settings or load_settings(None if project is None else Path(project)))
    return Starlette(routes=[Route(f"/{op}", service.endpoint(op), methods=["POST"]) for op in _KEY_HEADERS])


class _HttpParticipant:
    def __init__(self, participant: Participant, settings: Callable[[], Settings]) -> None:
        self._participant = participant
        self._settings = settings

    @cached_property
    def _commands(self) -> ParticipantCommands:
        settings = self._settings()
        guard = DatabaseConnections(settings.sql_connections()).guard(self._participant.connection)
        return ParticipantCommands.of(self._participant, guard, max_event_bytes=settings.kafka.max_message_bytes)

    def endpoint(self, op: CommandOp) -> Any:
        async def respond(request: Request) -> Response:
            return await answer_json(request, lambda body: self._perform(op, request, body))

        return respond

    async def _perform(self, op: CommandOp, request: Request, body: Any) -> Response:
        name = _KEY_HEADERS[op]
        sent = set(request.headers.getlist(name))
        try:
            [key] = {unquote(header, errors="strict") for header in sent} or {""}
        except ValueError:
            return error_response(400, f"the header {name} must be one key, percent-encoded UTF-8, not {sorted(sent)}")
        if op == "probe" and not key and isinstance(body, dict):
            key = str(body.get("key") or "")
        try:
            outcome = await self._commands.perform(CommandCall(op, key, body, _saga_id(request)))
        except ValueError:
            return error_response(400, f"the header {name} must have the key of a command, not {key!r}")
        return _probe_response(outcome) if op == "probe" and outcome.kind == "done" else _response(outcome)


def _saga_id(request: Request) -> str:
    """The id of the calling saga; empty if the request does not name one that the tables can hold."""
    return usable_saga_id(unquote(request.headers.get(SAGA_ID_HEADER, "")))


def _probe_response(outcome: Outcome) -> Response:
    absent = outcome.marker == "sealed"
    return json_response(200, {"state": "absent"} if absent else {"state": "done", "result": outcome.result})


def _response(outcome: Outcome) -> Response:
    if outcome.kind == "done":
        return json_response(200, outcome.result)
    failure = outcome.failure
    assert failure is not None
    if outcome.kind == "rejected":
        return json_response(422, {"error": failure.message, "details": failure.details})
    if outcome.kind == "late" or outcome.marker == "confirmed":
        return error_response(409, failure.message)
    if outcome.park_reason is not None:
        # Not in the usual `rejected`: with its first arguments the command may well have been done.
        return error_response(400, failure.message)
    log.warning("command not carried out: %s: %s", failure.type, failure.message)
    if outcome.kind == "unknown" or outcome.infrastructure or failure.type == "Timeout":
        return error_response(503, "it is in progress, or its database does not answer; try again", _TRY_AGAIN)
    return error_response(500, "the command failed, and nothing has happened; the log of the participant says why")
