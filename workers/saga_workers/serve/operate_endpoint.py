"""`POST /sagas/ID/cancel` and the other requests of operators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from temporalio.service import RPCError

from saga_activities.input_checks import INPUT_CHECKS
from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.runtime.http_server import error_response, json_response
from saga_workers.serve.admission import Admission
from saga_workers.serve.api_tokens import Caller
from saga_workers.serve.error_responses import bad_request, ledger_is_down, temporal_is_down
from saga_workers.serve.operation_request import OperationRequest, parse_operation
from saga_workers.serve.operations import NotRecorded, Operations, UnknownSaga
from saga_workers.serve.request_body import BadRequest, checked_in_time, longest_body, read_body
from saga_workers.temporal.temporal_runs import NoAnswer
from sagas.definition.saga_ids import workflow_id_problem
from sagas.errors import SagaError, UsageError
from sagas.protocol.access_view import Operation


class OperateEndpoint:
    """Answers the requests of operators."""

    def __init__(self, operations: Operations, admission: Admission, max_body_bytes: int) -> None:
        self._operations = operations
        self._admission = admission
        self._max_body_bytes = max_body_bytes

    def answering(self, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of this operation."""
        return partial(self._answer, operation)

    async def _answer(self, operation: Operation, request: Request) -> Response:
        caller: Caller = request.state.caller
        saga_id = unquote(request.path_params["id"])
        if (problem := workflow_id_problem(saga_id)) is not None:
            return error_response(404, problem)
        try:
            with self._admission.bodies.hold(caller.name, longest_body(request, self._max_body_bytes)):
                asked = await self._read(operation, request, caller)
                perform = self._operations.preview if asked.is_dry_run else self._operations.perform
                async with self._admission.operation(caller.name):
                    answer = await perform(asked, saga_id, who=caller.name)
        except BadRequest as error:
            return bad_request(error)
        except UnknownSaga as error:
            return error_response(404, error.message)
        except UsageError as error:
            return error_response(422, error.message)
        except LedgerUnavailable as error:
            return ledger_is_down(error, saga_id)
        except (NotRecorded, NoAnswer) as error:
            return error_response(503, error.message, {"Retry-After": "5"})
        except (RPCError, TimeoutError) as error:
            return temporal_is_down(error)
        except SagaError as error:
            return error_response(409, error.message)
        return json_response(200, answer)

    async def _read(self, operation: Operation, request: Request, caller: Caller) -> OperationRequest:
        """The request, well-formed. Raises BadRequest."""
        signal = unquote(request.path_params["signal"]) if operation == "signal" else None
        sent = await read_body(request, self._max_body_bytes)
        parse = partial(parse_operation, operation, signal, request.headers.get("content-type", ""), sent)
        return await checked_in_time(INPUT_CHECKS.run(parse, caller=caller.name, size=len(sent)))
