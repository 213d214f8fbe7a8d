"""Starts a saga exactly once: one run per saga id, however often the start is repeated."""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from temporalio.client import WithStartWorkflowOperation, WorkflowHandle
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from saga_activities.input_checks import INPUT_CHECKS
from saga_activities.ledger.records import Claim
from saga_workers.bulk.acceptance import Acceptance, start_accepted
from saga_workers.location.locator import Locator
from saga_workers.start.existing_sagas import ExistingSagas
from saga_workers.start.expression_failures import failure_reason
from saga_workers.start.start_limits import MAX_BULK_INPUT
from saga_workers.start.start_requests import BulkRow, StartRequest, StartResult
from saga_workers.temporal.refusals import refusal_reason
from saga_workers.temporal.temporal_client import start_headers, to_header
from sagas.bulk.names import MAX_MEMBERS
from sagas.definition.input_validation import invalid_input, validate_input
from sagas.definition.model import Definition
from sagas.definition.saga_ids import check_saga_id, label_problem
from sagas.definition.sensitivity import SensitiveMask, has_sensitive_values, is_in_id, sensitive_values
from sagas.definition.snapshot import to_snapshot
from sagas.errors import RefusedError, UsageError
from sagas.expressions import ExpressionError, compile_value
from sagas.expressions.values import type_name
from sagas.expressions.work_budget import TooComplex, bounded
from sagas.presentation.web_ui_text import static_details
from sagas.protocol.origin import Origin
from sagas.protocol.payloads import (
    BULK_PREFIX,
    BULK_WORKFLOW,
    DEFINITION_HEADER,
    EVENT_MEMO,
    GENERATION_HEADER,
    OWNER_HEADER,
    RESUMED_HEADER,
    SIGNATURE_HEADER,
    STARTED_AT_MEMO,
)
from sagas.protocol.redelivery_names import REDELIVERY_HEADER
from sagas.protocol.saga_view import STARTED_AGAIN
from sagas.protocol.signed_start import sign_start
from sagas.settings.signing_keys import SigningKeys
from sagas.text.exact_json import encode_json, value_text
from sagas.text.shell import saga_command
from sagas.text.uuid7 import uuid7
from sagas.workflow.summaries import run_summary


class SagaStarter:
    """Starts sagas of one definition; what all starts share is prepared once.

    ``attributes``: those of the engine's search attributes that the namespace has. ``variables``: the project's.
    ``keys`` sign the definition for the workers.
    """

    def __init__(
        self,
        locator: Locator,
        definition: Definition,
        *,
        task_queue: str,
        keys: SigningKeys,
        variables: Mapping[str, Any] | None = None,
        attributes: tuple[str, ...] = (),
    ) -> None:
        self._locator = locator
        self._existing = ExistingSagas(locator, definition)
        self._temporal = locator.temporal
        self._definition = definition
        self._task_queue = task_queue
        self._variables = dict(variables or {})
        self._attributes = attributes
        self._has_sensitive_values = has_sensitive_values(definition.input)
        self._id_template = None if definition.id is None else compile_value(definition.id)
        self._label_templates = compile_value(dict(definition.labels)) if definition.labels else None
        header = to_header(
            {"definition": to_snapshot(definition), "vars": self._variables, "attributes": list(attributes)}
        )
        self._header = header
        self._keys = keys
        self._static_details = static_details(definition)

    async def check(self, input: Any, *, caller: Hashable | None = None) -> StartRequest:
        """Return :meth:`make_request` of an input that may take long to check. Raises UsageError, as it does.

        ``caller``: who has sent it; by default all inputs of this saga have one.
        """
        name = self._definition.saga
        return await INPUT_CHECKS.run(lambda: self.make_request(input), caller=name if caller is None else caller)

    def make_request(self, input: Any) -> StartRequest:
        """Validate an input and derive the id and labels from it. Raises UsageError with the first problems."""
        name = self._definition.saga
        with bounded() as budget:
            before = budget.remaining
            try:
                checked, problems = validate_input(self._definition, input)
            except TooComplex as error:
                checked, problems = input, [f"input: {error.message}"]
            steps = before - budget.remaining
        if problems:
            raise UsageError(invalid_input(name, problems))
        context = {"input": checked, "vars": self._variables, "saga": {"name": name}}
        labels: Mapping[str, str] = {}
        what = "the id"
        try:
            rendered = None if self._id_template is None else self._id_template.render(context)
            what = "a label"
            if self._label_templates is not None:
                labels = {key: value_text(value) for key, value in self._label_templates.render(context).items()}
        except ExpressionError as error:
            reason = failure_reason(error, self._definition.input)
            raise UsageError(f"{what} of {name} cannot be evaluated for this input: {reason}") from None
        id = None if self._id_template is None else id_text(rendered)
        if self._id_template is not None and id is None:
            raise UsageError(f"for this input the id of {name} {id_problem(rendered)}; correct the input or its `id`")
        _label_texts(labels)
        return StartRequest(checked, id, labels, steps)

    async def start(
        self,
        request: StartRequest,
        *,
        id: str | None = None,
        again: bool = False,
        after: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> StartResult:
        """Start a saga, or find the run that exists already. ``labels`` are added to the definition's. ``after``: with
        ``again`` only after this generation.

        Raises UsageError if the id is not valid; RefusedError if the id belongs to another saga or input, to a run that
        was undone (use ``again``), or to one that was terminated; LedgerUnavailable if only the ledger could tell.
        """
        given = request.id if id is None else id
        saga_id = self.new_id() if given is None else self.check_id(given, request)
        claim = None if given is None else await self._existing.claim(saga_id, request, labels)
        if claim is not None and claim.bulk is not None:
            return await self._existing.run_in_bulk(claim.bulk, request.input)
        past = await self._existing.past_run(claim)
        if past is not None and not (again and past.view.state in STARTED_AGAIN):
            await self._existing.give_up(claim)
            return self._existing.run_in_ledger(past, request.input)
        headers: dict[str, Any] = {} if request.redelivery is None else {REDELIVERY_HEADER: dict(request.redelivery)}
        reuse = WorkflowIDReusePolicy.REJECT_DUPLICATE
        try:
            generation = await self._existing.next_generation(saga_id, past, after) if again else None
        except RefusedError:
            await self._existing.give_up(claim)
            raise
        if generation is not None:
            headers[GENERATION_HEADER] = generation
            reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE
        try:
            return await self._start_workflow(saga_id, request, headers, reuse, labels=labels)
        except WorkflowAlreadyStartedError:
            if not await self._existing.is_free(saga_id):
                return await self._existing.run_in_temporal(saga_id, request.input, claim)
        reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
        try:
            return await self._start_workflow(saga_id, request, headers, reuse, labels=labels)
        except WorkflowAlreadyStartedError:  # it has been started meanwhile
            return await self._existing.run_in_temporal(saga_id, request.input, claim)

    async def resume(
        self,
        saga_id: str,
        request: StartRequest,
        origin: Origin,
        generations: Mapping[str, int],
        *,
        decision: Mapping[str, str],
        undone: Collection[str] = (),
        undecided: Collection[str] = (),
        committed: bool | None = None,
        replaces: bool,
        undone_parent: str | None = None,
    ) -> StartResult:
        """Start a saga again whose run was deleted, at the generations that its entries had.

        ``decision``: ``who`` does it, and the ``reason``. ``undone``: entries of which a person knows that their undo
        in another database or service has happened. ``undecided``: those about which an operator was asked, as far as
        the ledger tells. ``committed``: what that person says of its commit point, which
        counts if nothing else tells. ``replaces``: end the open run of the id, which was started with another input.
        ``undone_parent``: the id of the saga that it was nested in, which is undone, so that it is undone as well.
        Raises RefusedError if a run of it has just been started.
        """
        labels = await self._existing.claim_deleted(saga_id, request)
        resumed = {
            "started_at": origin.started_at,
            "generations": dict(generations),
            "undone": list(undone),
            **decision,
            "reason": SensitiveMask(sensitive_values(self._definition.input, request.input)).text(decision["reason"]),
        }
        if undecided:
            resumed["undecided"] = list(undecided)
        if committed is not None:
            resumed["committed"] = committed
        if undone_parent is not None:
            resumed["cancelled"] = f"{undone_parent} is undone"
        if origin.root_start:
            resumed["root_start"] = origin.root_start
        headers: dict[str, Any] = {RESUMED_HEADER: resumed}
        if origin.generation > 1:
            headers[GENERATION_HEADER] = origin.generation
        conflict = WorkflowIDConflictPolicy.TERMINATE_EXISTING if replaces else WorkflowIDConflictPolicy.FAIL
        try:
            return await self._start_workflow(
                saga_id,
                request,
                headers,
                WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                conflict,
                labels=labels,
                owner=undone_parent,
            )
        except WorkflowAlreadyStartedError as error:
            raise RefusedError(f"{saga_id} has just been started", help=saga_command("show", saga_id)) from error

    async def _start_workflow(
        self,
        saga_id: str,
        request: StartRequest,
        headers: Mapping[str, Any],
        reuse: WorkflowIDReusePolicy,
        conflict: WorkflowIDConflictPolicy = WorkflowIDConflictPolicy.FAIL,
        *,
        labels: Mapping[str, str] | None = None,
        owner: str | None = None,
    ) -> StartResult:
        """Raises WorkflowAlreadyStartedError; UsageError if Temporal refuses the request."""
        memo: dict[str, Any] = {} if request.event is None else {EVENT_MEMO: request.event}
        if (resumed := headers.get(RESUMED_HEADER)) is not None:
            memo[STARTED_AT_MEMO] = resumed["started_at"]  # lists show it, and the purge of the guards needs it
        try:
            signed = self._signed_headers(saga_id, {saga_id: request.input}, headers)
            with start_headers({**signed, **headers, **({} if owner is None else {OWNER_HEADER: owner})}):
                handle = await self._temporal.start_workflow(
                    self._definition.saga,
                    request.input,
                    id=saga_id,
                    task_queue=self._task_queue,
                    id_reuse_policy=reuse,
                    id_conflict_policy=conflict,
                    static_summary=run_summary(self._definition.description or self._definition.saga),
                    static_details=self._static_details,
                    search_attributes=self._search_attributes({**request.labels, **(labels or {})}),
                    memo=memo or None,
                )
        except RPCError as error:
            if (reason := refusal_reason(error, len(encode_json(request.input)))) is not None:
                raise UsageError(f"{saga_id} cannot be started: {reason}") from error
            raise
        return StartResult(saga_id, handle.first_execution_run_id or handle.result_run_id or "", True)

    def _signed_headers(
        self, workflow_id: str, starts: Mapping[str, Any], earlier: Mapping[str, Any]
    ) -> dict[str, Any]:
        signature = sign_start(self._keys, workflow_id, self._header.data, starts, earlier, at=time.time())
        headers: dict[str, Any] = {DEFINITION_HEADER: self._header}
        return headers if signature is None else {**headers, SIGNATURE_HEADER: to_header(signature)}

    @property
    def definition(self) -> Definition:
        return self._definition

    @property
    def locator(self) -> Locator:
        return self._locator

    def check_id(self, id: str, request: StartRequest) -> str:
        """The id. Raises UsageError if the saga of this request may not have it. The one of the definition may have an
        `x-sensitive` value, as its author has decided.
        """
        is_given = check_saga_id(id) != request.id
        if not (is_given and self._has_sensitive_values):
            return id
        if is_in_id(sensitive_values(self._definition.input, request.input), id):
            raise UsageError(
                f"the given id of this {self._definition.saga} is, or has in it, an x-sensitive value of its input, and"
                " ids are shown everywhere; choose another id"
            )
        return id

    def new_id(self) -> str:
        """An id for a saga whose definition and start give none."""
        return f"{self._definition.saga}-{uuid7()}"

    async def start_bulk(
        self,
        sagas: Sequence[BulkRow],
        *,
        again: bool = False,
        batch: str | None = None,
        chunk_size: int = MAX_MEMBERS,
    ) -> WorkflowHandle[Any, Any]:
        """Start one workflow for all of these sagas, at most MAX_MEMBERS. ``batch`` becomes its label, and theirs.

        Raises UsageError if there is no ledger, an id or a label is not valid, or an input is too large.
        """
        request, headers, options = self._bulk_start(sagas, again=again, batch=batch, chunk_size=chunk_size)
        with start_headers(headers):
            return await self._temporal.start_workflow(BULK_WORKFLOW, request, **options)

    async def start_bulk_accepted(self, sagas: Sequence[BulkRow]) -> tuple[str, Acceptance | None]:
        """Start one workflow as :meth:`start_bulk` does; its id, and what a worker has answered: see `wait_accepted`.

        Raises UsageError, and RPCError if Temporal does not answer, or refuses the start.
        """
        request, headers, options = self._bulk_start(sagas)
        conflict = WorkflowIDConflictPolicy.USE_EXISTING  # the request may be sent again until a worker has answered
        with start_headers(headers):
            start = WithStartWorkflowOperation[Any, Any](BULK_WORKFLOW, request, id_conflict_policy=conflict, **options)
            ids = [saga.id for saga in sagas]
            return options["id"], await start_accepted(self._temporal, start, options["id"], ids)

    def _bulk_start(
        self,
        sagas: Sequence[BulkRow],
        *,
        again: bool = False,
        batch: str | None = None,
        chunk_size: int = MAX_MEMBERS,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The input, the headers and the options of a bulk workflow."""
        self._locator.ledger.require()
        for saga in sagas:
            if (size := len(encode_json(saga.request.input))) > MAX_BULK_INPUT:
                raise UsageError(
                    f"the input of {saga.id} has {size:,} bytes, and bulk execution takes {MAX_BULK_INPUT:,}: "
                    "start it on its own"
                )
        extra = {} if batch is None else {"batch": batch}
        rows = [
            [self.check_id(saga.id, saga.request), saga.request.input, {**saga.request.labels, **extra}]
            for saga in sagas
        ]
        for _, _, labels in rows:
            _label_texts(labels)
        workflow_id = f"{BULK_PREFIX}{self._definition.saga}-{uuid7()}"
        request = {"saga": self._definition.saga, "sagas": rows, "again": again, "chunk_size": chunk_size}
        options: dict[str, Any] = {
            "id": workflow_id,
            "task_queue": self._task_queue,
            "static_summary": run_summary(f"{len(rows)} × {self._definition.saga}"),
            "static_details": self._static_details,
            "search_attributes": self._search_attributes(extra),
        }
        earlier = {"again": True} if again else {}
        return request, self._signed_headers(workflow_id, {id: input for id, input, _ in rows}, earlier), options

    def check_claim(self, claim: Claim, input: Any) -> None:
        """Raise RefusedError unless the saga that has claimed this id may count as this start."""
        self._existing.check_claim(claim, input)

    def _search_attributes(self, labels: Mapping[str, str]) -> TypedSearchAttributes | None:
        """The search attributes of a run. Raises UsageError if Temporal would not store the labels."""
        if not labels or "SagaLabels" not in self._attributes:
            return None
        key = SearchAttributeKey.for_keyword_list("SagaLabels")
        return TypedSearchAttributes([SearchAttributePair(key, _label_texts(labels))])


def _label_texts(labels: Mapping[str, str]) -> list[str]:
    """The labels as the search attribute has them. Raises UsageError if Temporal would not store them."""
    texts = [f"{name}={value}" for name, value in labels.items()]
    if (problem := label_problem(texts)) is not None:
        raise UsageError(problem)
    return texts


def id_text(value: Any) -> str | None:
    """The id that a template gives: a string, or a number with its digits; None if it gives none."""
    is_text = isinstance(value, str) or (isinstance(value, int | Decimal) and not isinstance(value, bool))
    text = value_text(value) if is_text else ""
    return text if text.strip() else None


def id_problem(value: Any) -> str:
    """The reason why :func:`id_text` has no id of a value, as the predicate of a sentence."""
    return "is empty" if isinstance(value, str) else f"is {type_name(value)}, not a string or a number"
