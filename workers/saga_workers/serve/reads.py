"""`GET /sagas/ID` and what else callers read: notifications, and the document of the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from temporalio.service import RPCError

from saga_workers.client import Client
from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.locator import Locator
from saga_workers.runtime.http_server import error_response, json_response
from saga_workers.serve.admission import Admission
from saga_workers.serve.api_tokens import Caller
from saga_workers.serve.error_responses import ledger_is_down, temporal_is_down
from saga_workers.serve.limits import QUERY_TIMEOUT
from saga_workers.serve.openapi import openapi_document
from saga_workers.serve.project_sagas import ProjectSagas
from saga_workers.serve.public_outcome import public_notifications, public_outcome
from saga_workers.views.saga_view import read_view
from sagas.definition.saga_ids import workflow_id_problem
from sagas.errors import UsageError
from sagas.protocol.saga_view import SagaView


class ReadEndpoint:
    """Answers about the sagas of the project, and describes the starts of ``client``, if there is one.

    ``has_codec``: payloads can be converted.
    """

    def __init__(
        self, locator: Locator, client: Client | None, sagas: ProjectSagas, admission: Admission, *, has_codec: bool
    ) -> None:
        self._locator = locator
        self._has_codec = has_codec
        self._client = client
        self._sagas = sagas
        self._admission = admission

    async def show_outcome(self, request: Request) -> Response:
        return await self._respond(request, public_outcome)

    async def show_notifications(self, request: Request) -> Response:
        return await self._respond(request, public_notifications)

    async def _respond(self, request: Request, select: Callable[[SagaView], Any]) -> Response:
        caller: Caller = request.state.caller
        saga_id = unquote(request.path_params["id"])
        if (problem := workflow_id_problem(saga_id)) is not None:
            return error_response(404, problem)
        try:
            async with self._admission.read(caller.name):
                view = await self._sagas.require(await read_view(self._locator, saga_id, timeout=QUERY_TIMEOUT))
        except UsageError as error:
            return error_response(404, error.message)
        except LedgerUnavailable as error:
            return ledger_is_down(error, saga_id)
        except (RPCError, TimeoutError) as error:
            return temporal_is_down(error)
        return json_response(200, select(view))

    async def show_openapi(self, request: Request) -> Response:
        caller: Caller = request.state.caller
        definitions = {} if self._client is None else await self._sagas.definitions()
        return json_response(200, openapi_document(definitions, caller.scopes, has_codec=self._has_codec))
