"""The page on which a person decides about many parked steps with the same cause: first a list of what would follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from saga_workers.many_requests import ask_each
from saga_workers.serve.console.asked_sagas import asked_in
from saga_workers.serve.console.console_project import ConsoleProject
from saga_workers.serve.console.decisions import HAS_CHANGED
from saga_workers.serve.console.forms import read_form
from saga_workers.serve.console.html_responses import html_response, redirect
from saga_workers.serve.console.inbox import cause_id, read_asked
from saga_workers.serve.console.possible_requests import parked_operation
from saga_workers.serve.console.previews import PreviewedRequest, preview_decision, request_in
from saga_workers.serve.console.request_answers import ManyAnswers, RequestAnswer
from saga_workers.serve.console.templates import render
from saga_workers.serve.console.visitors import PageNotFound, Visitor
from saga_workers.serve.console_path import ROOT
from saga_workers.serve.limits import MAX_DECIDED, QUERY_TIMEOUT
from saga_workers.serve.operation_request import MAX_TEXT
from saga_workers.serve.operations import Operations
from saga_workers.serve.request_body import BadRequest
from saga_workers.views.parked import ParkedRow
from saga_workers.views.saga_view import read_view
from sagas.definition.saga_ids import workflow_id_problem
from sagas.errors import RefusedError, SagaError, UsageError

MANY_PATH = f"{ROOT}/inbox/decide"

_PICK = "pick."
"""The beginning of the names of the fields that select a parked step."""

_MAX_FIELDS = MAX_DECIDED + 30
MAX_BYTES = 256 * 1024
"""Bytes of a form: an id may have 1,000 characters."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A parked step about which the person may decide. ``number`` is that of its field in the form."""

    number: str
    row: ParkedRow
    preview: PreviewedRequest
    is_picked: bool

    @property
    def pick(self) -> str:
        """The value of its field: the parked operation that the person has seen."""
        return pick_of(self.row)


def pick_of(row: ParkedRow) -> str:
    return "\t".join((row.saga_id, row.step, row.op, row.since))


class ManyDecisionPages:
    """The form of one decision about many parked steps, and the answers to it."""

    def __init__(self, project: ConsoleProject, operations: Operations) -> None:
        self._project = project
        self._operations = operations

    async def show(self, request: Request, visitor: Visitor) -> Response:
        """The parked steps with the same cause, the first of them if they are too many, and what would follow."""
        return await self._form(dict(request.query_params), visitor)

    async def send(self, request: Request, visitor: Visitor) -> Response:
        """Decide about the selected steps, and lead to the answers: to open that page again does not decide again."""
        form = await read_form(request, visitor.session, max_fields=_MAX_FIELDS, max_bytes=MAX_BYTES)
        picked = [value for name, value in form.items() if name.startswith(_PICK)]
        if form.get("go") != "send":
            return await self._form(form, visitor, picked)
        if not picked:
            return await self._form(form, visitor, picked, "select the sagas that the decision is about")
        if len(picked) > MAX_DECIDED:
            raise BadRequest(400, f"a form decides about {MAX_DECIDED} steps at most, not {len(picked)}")
        seen = [tuple(pick.split("\t")) for pick in picked]
        if any(len(each) != 4 for each in seen):
            raise BadRequest(400, "the form cannot be read")
        try:
            request_in("resolve", {**form, "step": seen[0][1]})
        except BadRequest as error:
            return await self._form(form, visitor, picked, str(error))
        answers = await ask_each(
            seen, lambda each: self._decide(each, form, visitor.caller.name), saga_of=lambda each: each[0]
        )
        word = form.get("decision", "")
        rows = [
            RequestAnswer(each[0], word, {}, answer.message)
            if isinstance(answer, SagaError)
            else RequestAnswer(each[0], word, answer)
            for each, answer in zip(seen, answers, strict=True)
        ]
        number = visitor.session.answers.keep(ManyAnswers(word, seen[0][1].partition("#")[0], rows))
        return redirect(f"{MANY_PATH}/answer?{urlencode({'number': number})}")

    async def show_answers(self, request: Request, visitor: Visitor) -> Response:
        """The answers to a form of this session, as long as they are kept; then the inbox."""
        answers = visitor.session.answers.find(request.query_params.get("number", ""))
        if not isinstance(answers, ManyAnswers):
            return redirect(f"{ROOT}/inbox")
        failed = sum(1 for each in answers.answers if each.problem)
        page = render("many_answers.html", "Decisions", visitor=visitor, place="inbox", many=answers, failed=failed)
        return html_response(200, page)

    async def _decide(self, seen: Sequence[str], form: Mapping[str, str], who: str) -> Mapping[str, Any]:
        """Decide about one step, unless something else of it waits by now. Raises SagaError, RPCError."""
        saga_id, step, op, since = seen
        if (problem := workflow_id_problem(saga_id)) is not None:
            raise UsageError(problem)
        view = await read_view(self._project.locator, saga_id, timeout=QUERY_TIMEOUT)
        await self._project.shown.require(view)
        parked = parked_operation(view, step)
        if parked is None:
            raise RefusedError("nothing of it waits for this decision any more")
        if (parked.op, parked.since) != (op, since):
            raise RefusedError(HAS_CHANGED)
        return await self._operations.perform(request_in("resolve", {**form, "step": step}), view.id, who=who)

    async def _form(
        self,
        form: Mapping[str, str],
        visitor: Visitor,
        picked: Sequence[str] | None = None,
        problem: str | None = None,
    ) -> Response:
        """``picked``: the selection so far; None selects all that would be accepted."""
        asked, cause = asked_in(form), form.get("cause", "")
        parked_list, _ = await read_asked(self._project, asked)
        rows = [row for row in parked_list.operations if _matches(row, cause)]
        own = await self._project.shown.among((row.saga, row.saga_id) for row in rows)
        rows = [row for row in rows if row.saga_id in own]
        if not rows:
            raise PageNotFound("nothing waits for this decision any more")
        shown = rows[:MAX_DECIDED]

        async def preview(row: ParkedRow) -> PreviewedRequest:
            given = {**form, "step": row.step}
            return await preview_decision(self._operations, row.saga_id, given, visitor.caller.name)

        previews = await ask_each(shown, preview, saga_of=lambda row: row.saga_id)
        candidates = []
        for number, (row, previewed) in enumerate(zip(shown, previews, strict=True)):
            if isinstance(previewed, SagaError):
                previewed = PreviewedRequest(refusal=previewed.message)
            is_picked = previewed.refusal is None and (picked is None or pick_of(row) in picked)
            candidates.append(Candidate(f"{_PICK}{number}", row, previewed, is_picked))
        page = render(
            "decide_many.html",
            "Decide about many",
            visitor=visitor,
            place="inbox",
            asked=asked,
            cause=cause,
            word=form.get("decision", ""),
            candidates=candidates,
            first=rows[0],
            total=len(rows),
            asked_count=parked_list.asked,
            omitted=parked_list.omitted,
            fields={name: form.get(name, "") for name in ("reason", "evidence")},
            needs_evidence=any(each.preview.needs_evidence for each in candidates),
            max_text=MAX_TEXT,
            problem=problem,
        )
        return html_response(200 if problem is None else 400, page)


def _matches(row: ParkedRow, cause: str) -> bool:
    return cause_id(row.saga, row.definition_step, row.op, row.error) == cause and row.source is None
