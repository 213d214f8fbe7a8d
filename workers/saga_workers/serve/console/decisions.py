"""The pages on which a person operates a saga. Each shows first what would follow, and asks for the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from saga_workers.serve.console.console_project import ConsoleProject, require_id
from saga_workers.serve.console.forms import read_form
from saga_workers.serve.console.html_responses import html_response, redirect
from saga_workers.serve.console.possible_requests import (
    awaited_signals,
    awaits_event,
    parked_operation,
    possible_requests,
    takes_signals,
)
from saga_workers.serve.console.previews import DECISION_FIELDS, PreviewedRequest, preview_decision, request_in
from saga_workers.serve.console.progress import cancel_doubt, progress_of
from saga_workers.serve.console.request_answers import RequestAnswer
from saga_workers.serve.console.signal_data import read_parts
from saga_workers.serve.console.templates import render, saga_path
from saga_workers.serve.console.visitors import PageNotFound, Visitor
from saga_workers.serve.limits import QUERY_TIMEOUT
from saga_workers.serve.operation_request import MAX_TEXT
from saga_workers.serve.operations import Operations
from saga_workers.serve.request_body import BadRequest
from saga_workers.views.saga_view import read_view
from sagas.errors import RefusedError, SagaError, UsageError
from sagas.presentation.step_text import parked_arguments
from sagas.protocol.access_view import Operation
from sagas.protocol.saga_view import SagaView

_OPERATIONS: Mapping[str, Operation] = {
    "cancel": "cancel",
    "pause": "pause",
    "resume": "resume",
    "resolve": "resolve",
    "signal": "signal",
    "undo": "undo",
}
_FIELDS = (*DECISION_FIELDS, "name", "data", "reject")

HAS_CHANGED = (
    "it has changed since this page was opened: look at what follows now, and send it again if you still want it"
)


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that was refused, so nothing was done: the status of the response, and why."""

    status: int
    why: str

    @classmethod
    def by(cls, error: BadRequest | SagaError) -> Refused:
        """The refusal that an error stands for."""
        if isinstance(error, BadRequest):
            return cls(error.status, str(error))
        return cls(409 if isinstance(error, RefusedError) else 400, error.message)


class DecisionPages:
    """The form of a request, and the answer of the saga to it."""

    def __init__(self, project: ConsoleProject, operations: Operations) -> None:
        self._project = project
        self._operations = operations

    async def show(self, request: Request, visitor: Visitor) -> Response:
        """The form, with what would follow."""
        operation, view = await self._asked(request)
        return await self._form(operation, view, visitor, request.query_params)

    async def send(self, request: Request, visitor: Visitor) -> Response:
        """Make the request in the form, and lead to its answer: to open that page again does not send the form again.

        The form is shown again, with what would follow, on request, if the saga refuses it, and if something else waits
        by now for a decision about the step.
        """
        form = await read_form(request, visitor.session)
        operation, view = await self._asked(request)
        if form.get("go") != "send":
            return await self._form(operation, view, visitor, form)
        parked = parked_operation(view, form.get("step")) if operation == "resolve" else None
        if parked is not None and (parked.op, parked.since) != (form.get("op"), form.get("since")):
            return await self._form(operation, view, visitor, form, Refused(409, HAS_CHANGED))
        answer, problem = dict[str, Any](), ""
        try:
            answer = await self._operations.perform(request_in(operation, form), view.id, who=visitor.caller.name)
        except (BadRequest, RefusedError, UsageError) as error:
            refused = Refused.by(error)
            if operation == "resolve" and parked is None:
                return _answer_page(
                    visitor, RequestAnswer(view.id, _word(operation, form), {}, refused.why), refused.status
                )
            return await self._form(operation, view, visitor, form, refused)
        except SagaError as error:
            problem = error.message
        number = visitor.session.answers.keep(RequestAnswer(view.id, _word(operation, form), answer, problem))
        return redirect(saga_path(view.id, f"/answer?{urlencode({'number': number})}"))

    async def show_answer(self, request: Request, visitor: Visitor) -> Response:
        """The answer to a request of this session, as long as it is kept; then the page of the saga."""
        saga_id = require_id(unquote(request.path_params["id"]))
        answer = visitor.session.answers.find(request.query_params.get("number", ""))
        if not isinstance(answer, RequestAnswer) or answer.saga_id != saga_id:
            return redirect(saga_path(saga_id))
        return _answer_page(visitor, answer)

    async def _form(
        self,
        operation: Operation,
        view: SagaView,
        visitor: Visitor,
        form: Mapping[str, str],
        refused: Refused | None = None,
    ) -> Response:
        parked = parked_operation(view, form.get("step"))
        if operation == "resolve" and parked is None:
            raise PageNotFound(f"nothing of {view.id} waits for this decision any more")
        preview = await self._preview(operation, view, form, visitor.caller.name)
        problems = [problem for problem in (refused and refused.why, preview.refusal) if problem]
        page = render(
            "decide.html",
            f"{_word(operation, form)}: {view.id}",
            visitor=visitor,
            place="sagas",
            view=view,
            operation=operation,
            parked=parked,
            called_with=None if parked is None else parked_arguments(view, parked),
            step=_step_names(view).get(form.get("step", "")) or form.get("step", ""),
            word=_word(operation, form),
            fields={name: form.get(name, "") for name in _FIELDS},
            max_text=MAX_TEXT,
            preview=preview,
            problems=list(dict.fromkeys(problems)),
            missing=[name for name in ("with", "result") if any(f"--{name}" in problem for problem in problems)],
            needs_definition=[command for command in parked.commands if " --definition " in command] if parked else [],
            signal=form.get("name", "") if operation == "signal" else None,
            parts=self._read_parts(view, form.get("name", "")) if operation == "signal" else (),
            may_send=preview.refusal is None or (parked is not None and _word(operation, form) in parked.decisions),
        )
        return html_response(200 if refused is None else refused.status, page)

    def _read_parts(self, view: SagaView, signal: str) -> Sequence[str]:
        """The parts of the data that later steps read, by the definition that the project has now."""
        definition, entry = self._project.project.definitions.get(view.saga), awaited_signals(view).get(signal)
        return [] if definition is None or entry is None else read_parts(definition, entry.partition("#")[0])

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
        return operation, await self._project.require_shown(view)

    async def _preview(
        self, operation: Operation, view: SagaView, form: Mapping[str, str], who: str
    ) -> PreviewedRequest:
        """The consequences of a request. The texts may be missing in a decision that a person has yet to give."""
        if operation == "resolve":
            return await preview_decision(self._operations, view.id, form, who)
        names = _step_names(view)
        if operation == "signal":
            return _preview_signal(view, form.get("name", ""), names)
        if operation not in possible_requests(view):
            return PreviewedRequest(refusal=f"{view.id} would refuse that now")
        if operation == "cancel" and awaits_event(view):
            return PreviewedRequest(["nobody waits any more for its event to be served: it starts the saga no more"])
        undone = progress_of(view).would_undo if operation in ("cancel", "undo") else ()
        doubt = cancel_doubt(view) if operation == "cancel" else None
        first, end = ([], "") if doubt is None else ([doubt], ", if it has not")
        return PreviewedRequest([*first, *(f"{names[step]} will be undone{end}" for step in undone)])


def _answer_page(visitor: Visitor, answer: RequestAnswer, status: int = 200) -> Response:
    title = f"{answer.word}: {answer.saga_id}"
    return html_response(status, render("answer.html", title, visitor=visitor, place="sagas", answer=answer))


def _preview_signal(view: SagaView, name: str, names: Mapping[str, str]) -> PreviewedRequest:
    if not takes_signals(view):
        return PreviewedRequest(refusal=f"{view.id} takes no signals any more")
    step = awaited_signals(view).get(name)
    if step is None:
        return PreviewedRequest(["no step waits for it yet: it is kept until one does"])
    return PreviewedRequest([f"{names[step]} ends with the data, or is rejected if you give a reason for that"])


def _step_names(view: SagaView) -> dict[str, str]:
    """The names of the entries for people, by their ids."""
    return {step.id: step.name or step.id for step in view.steps}


def _word(operation: Operation, form: Mapping[str, str]) -> str:
    """The name of what is asked for: the operation, or the decision."""
    return form.get("decision", "") if operation == "resolve" else operation
