"""The pages on which a person operates a saga. Each shows first what would follow, and asks for the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from saga_workers.serve.console.console_project import ConsoleProject, require_id
from saga_workers.serve.console.forms import read_form
from saga_workers.serve.console.html_responses import html_response
from saga_workers.serve.console.possible_requests import parked_operation, possible_requests
from saga_workers.serve.console.progress import progress_of
from saga_workers.serve.console.templates import render
from saga_workers.serve.console.visitors import PageNotFound, Visitor
from saga_workers.serve.limits import QUERY_TIMEOUT
from saga_workers.serve.operation_request import MAX_TEXT, OperationRequest, checked_operation
from saga_workers.serve.operations import Operations
from saga_workers.serve.request_body import BadRequest
from saga_workers.temporal.temporal_runs import NoAnswer
from saga_workers.views.saga_view import read_view
from sagas.errors import RefusedError, SagaError, UsageError
from sagas.protocol.access_view import Operation
from sagas.protocol.saga_view import SagaView
from sagas.text.json_values import parse_json

_OPERATIONS: Mapping[str, Operation] = {"cancel": "cancel", "pause": "pause", "resume": "resume", "resolve": "resolve"}
_JSON_FIELDS = ("with", "result")
_FIELDS = ("step", "decision", "reason", "evidence", *_JSON_FIELDS)
_NO_REASON_YET = "a preview"


class DecisionPages:
    """The form of a request, and the answer of the saga to it."""

    def __init__(self, project: ConsoleProject, operations: Operations) -> None:
        self._project = project
        self._operations = operations

    async def show(self, request: Request, visitor: Visitor) -> Response:
        """The form, with what would follow."""
        return await self._form(request, visitor, request.query_params)

    async def send(self, request: Request, visitor: Visitor) -> Response:
        """Make the request in the form; or show the form again with what would follow from what is in it."""
        form = await read_form(request, visitor.session)
        if form.get("go") != "send":
            return await self._form(request, visitor, form)
        operation, view = await self._asked(request)
        asked = _request(operation, form)
        problem, answer = "", dict[str, Any]()
        try:
            answer = await self._operations.perform(asked, view.id, who=visitor.caller.name)
        except SagaError as error:
            problem = error.message
            status = 409 if isinstance(error, RefusedError) else 400 if isinstance(error, UsageError) else 503
        else:
            status = 200
        page = render(
            "answer.html",
            f"{_word(operation, form)}: {view.id}",
            visitor=visitor,
            place="sagas",
            view=view,
            word=_word(operation, form),
            answer=answer,
            problem=problem,
        )
        return html_response(status, page)

    async def _form(self, request: Request, visitor: Visitor, form: Mapping[str, str]) -> Response:
        operation, view = await self._asked(request)
        parked = parked_operation(view, form.get("step"))
        if operation == "resolve" and parked is None:
            raise PageNotFound(f"nothing of {view.id} waits for this decision any more")
        consequences, refusal = list[str](), ""
        try:
            consequences = await self._consequences(operation, view, form, visitor.caller.name)
        except (RefusedError, UsageError, NoAnswer) as error:
            refusal = error.message
        page = render(
            "decide.html",
            f"{_word(operation, form)}: {view.id}",
            visitor=visitor,
            place="sagas",
            view=view,
            operation=operation,
            parked=parked,
            step=_step_names(view).get(form.get("step", "")) or form.get("step", ""),
            word=_word(operation, form),
            fields={name: form.get(name, "") for name in _FIELDS},
            max_text=MAX_TEXT,
            consequences=consequences,
            refusal=refusal,
        )
        return html_response(200, page)

    async def _asked(self, request: Request) -> tuple[Operation, SagaView]:
        """The operation and the saga in the address. Raises PageNotFound."""
        operation = _OPERATIONS.get(request.path_params["operation"])
        if operation is None:
            raise PageNotFound("there is no such page about a saga")
        saga_id = require_id(unquote(request.path_params["id"]))
        try:
            view = await read_view(self._project.locator, saga_id, timeout=QUERY_TIMEOUT)
        except UsageError as error:
            raise PageNotFound(error.message) from None
        return operation, self._project.require_shown(view)

    async def _consequences(
        self, operation: Operation, view: SagaView, form: Mapping[str, str], who: str
    ) -> Sequence[str]:
        """The immediate consequences, in words. Raises RefusedError if the saga would refuse it."""
        if operation == "resolve":
            asked = _request(operation, {**form, "reason": form.get("reason", "").strip() or _NO_REASON_YET})
            return (await self._operations.preview(asked, view.id, who=who))["next"]
        if operation not in possible_requests(view):
            raise RefusedError(f"{view.id} would refuse that now")
        names = _step_names(view)
        return [f"undo {names[step]}" for step in progress_of(view).would_undo] if operation == "cancel" else []


def _step_names(view: SagaView) -> dict[str, str]:
    """The names of the entries for people, by their ids."""
    return {step.id: step.name or step.id for step in view.steps}


def _request(operation: Operation, form: Mapping[str, str]) -> OperationRequest:
    """The request in a form. Raises BadRequest if it is not well-formed."""
    names = _FIELDS if operation == "resolve" else ("reason",)
    fields: dict[str, Any] = {name: form[name].strip() for name in names if form.get(name, "").strip()}
    for name in _JSON_FIELDS:
        if name in fields:
            try:
                fields[name] = parse_json(fields[name].encode())
            except ValueError as error:
                raise BadRequest(400, f"the field {name} is not JSON: {error}") from None
    return checked_operation(operation, fields)


def _word(operation: Operation, form: Mapping[str, str]) -> str:
    """The name of what is asked for: the operation, or the decision."""
    return form.get("decision", "") if operation == "resolve" else operation
