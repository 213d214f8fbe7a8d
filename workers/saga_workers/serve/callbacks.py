"""The callbacks of participants: an address proves that they may answer, and the saga gets a signed update."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.runtime.http_server import json_response
from saga_workers.serve.admission import Admission
from saga_workers.serve.api_tokens import Callers, TokenBucket, TooManyFailures
from saga_workers.serve.authorization import client_address
from saga_workers.serve.error_responses import bad_request, temporal_is_down, too_many_wrong_tokens
from saga_workers.serve.request_body import BadRequest
from sagas.builtins.callbacks import CALLBACK_UPDATE
from sagas.protocol.callback_address import called_back
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.signed_content import message_content
from sagas.settings.signing_keys import SigningKeys

_UPDATE_TIMEOUT = timedelta(seconds=12)
"""A worker must say in this time that the saga has the callback; otherwise the participant sends it again."""

_PAUSES = (0.2, 0.5, 1.0)
"""Seconds after which a callback is handed over again that its saga could not take: its run may just be continued as
another one. After them the participant has to send it again."""

_KEPT_HEADERS = ("content-type",)
"""The headers that a definition may read. Others may carry credentials, and the history of the saga keeps them."""

_REFUSALS: Mapping[str, tuple[int, str]] = {
    "answered": (409, "the request was answered before, and the first answer counts"),
    "late": (410, "the saga does not wait for this callback any more"),
    "busy": (503, "the saga cannot take this callback now; send it again"),
}
_OF_TYPE: Mapping[str | None, str] = {"CallbackAnswered": "answered", "CallbackLate": "late", "CallbackBusy": "busy"}
"""The refusals of updates, by the type of their failure, see :data:`sagas.builtins.callbacks.CallbackRefusal`."""


class CallbackReceiver:
    """Receives callbacks for the sagas of one project."""

    def __init__(self, temporal: Temporal, keys: SigningKeys, callers: Callers, admission: Admission) -> None:
        self._temporal = temporal
        self._keys = keys
        self._callers = callers
        self._admission = admission

    async def answer(self, request: Request) -> Response:
        """Hand the answer of a participant to its saga: 200 once the saga has it."""
        saga, call, token = (request.path_params[name] for name in ("saga", "call", "token"))
        try:
            called = self._called_back(saga, call, token, self._callers.failed(client_address(request)))
            async with self._admission.callbacks.receive(token, request) as body, self._admission.callback():
                receipt = await self._hand_over(called, request.headers, body)
        except TooManyFailures:
            return too_many_wrong_tokens()
        except BadRequest as error:
            return bad_request(error)
        except (RPCError, TimeoutError) as error:
            return temporal_is_down(error)
        return json_response(200, {"status": receipt})

    def _called_back(self, saga: str, call: str, token: str, failed: TokenBucket) -> tuple[str, str]:
        """The saga and the call that an address names. Raises BadRequest if it is not one of this project.

        ``failed`` counts wrong ones; raises TooManyFailures if it is empty.
        """
        called = called_back(saga, call, token, self._keys)
        if called is None:
            if not failed.take():
                raise TooManyFailures
            raise BadRequest(404, "no request was sent with this address")
        return called

    async def _hand_over(self, called: tuple[str, str], headers: Mapping[str, str], body: bytes) -> str:
        """Give a callback to its saga, or to the run that undoes it; returns what has become of it.

        Raises BadRequest if it does not count, RPCError and TimeoutError if Temporal or the worker does not answer.
        """
        saga_id, key = called
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise BadRequest(400, "the body is not UTF-8 text") from None
        kept = {name: headers[name] for name in _KEPT_HEADERS if name in headers}
        message: dict[str, Any] = {"key": key, "response": {"headers": kept, "text": text}}
        message["signature"] = self._keys.sign("callback", message_content([saga_id], message))
        receipt = await self._receipt(saga_id, message)
        for pause in _PAUSES:
            if receipt != "busy":
                break
            await asyncio.sleep(pause)
            receipt = await self._receipt(saga_id, message)
        if receipt in _REFUSALS:
            raise BadRequest(*_REFUSALS[receipt])
        return receipt

    async def _receipt(self, saga_id: str, message: Mapping[str, Any]) -> str:
        """Return what has become of the callback in the saga, or in the run that undoes it."""
        receipt = await self._update(saga_id, message) or await self._update(saga_id + UNDO_SUFFIX, message)
        return receipt or "late"

    async def _update(self, workflow_id: str, message: Mapping[str, Any]) -> str | None:
        """Return what has become of the callback in this workflow; None if it has ended, or does not exist."""
        handle = self._temporal.get_workflow_handle(workflow_id)
        try:
            return await handle.execute_update(CALLBACK_UPDATE, message, rpc_timeout=_UPDATE_TIMEOUT)
        except WorkflowUpdateRPCTimeoutOrCancelledError:
            raise TimeoutError from None
        except WorkflowUpdateFailedError as error:
            kind = error.cause.type if isinstance(error.cause, ApplicationError) else None
            return _OF_TYPE.get(kind, "busy")  # such as a worker that does not have the key yet
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            if error.status is RPCStatusCode.RESOURCE_EXHAUSTED:  # too many at once
                return "busy"
            raise
