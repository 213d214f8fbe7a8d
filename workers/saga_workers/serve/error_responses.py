"""The errors that several endpoints of the HTTP API answer."""

from __future__ import annotations

import logging

from starlette.responses import Response
from temporalio.service import RPCError

from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.runtime.http_server import error_response
from saga_workers.runtime.logs import fields
from saga_workers.serve.request_body import BadRequest

log = logging.getLogger("saga.serve")


def bad_request(error: BadRequest) -> Response:
    """The body may not be read to its end, so the connection closes."""
    retry = {"Retry-After": "5"} if error.status == 503 else {}
    return error_response(error.status, str(error), {"Connection": "close", **retry})


def too_many_wrong_tokens() -> Response:
    return error_response(429, "too many wrong tokens from this address; try again", {"Retry-After": "1"})


def temporal_is_down(error: RPCError | TimeoutError) -> Response:
    reason = f": {error.message}" if isinstance(error, RPCError) else " in time"
    return error_response(503, f"Temporal does not answer{reason}", {"Retry-After": "5"})


def ledger_is_down(error: LedgerUnavailable, about: str) -> Response:
    log.warning("Temporal does not know the saga, and %s", error.message, extra=fields(saga=about))
    return error_response(503, "the ledger does not answer", {"Retry-After": "5"})
