"""Starts a saga exactly once: one run per saga id, however often the start is repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

from temporalio.client import WorkflowHandle
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from saga_activities.guard.tables import MAX_SAGA_ID
from saga_activities.ledger.claims import Claim, NewClaim
from saga_activities.ledger.rows import RunRow
from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.locator import Locator
from saga_workers.start.start_limits import MAX_BULK_INPUT
from saga_workers.temporal.refusals import refusal_reason
from saga_workers.temporal.run_states import closed_state
from saga_workers.temporal.temporal_client import start_headers, to_header
from saga_workers.temporal.temporal_runs import first_input
from saga_workers.views.saga_view import read_view
from sagas.bulk.wire_format import MAX_MEMBERS
from sagas.definition.input_validation import invalid_input, validate_input
from sagas.definition.model import Definition
from sagas.definition.saga_ids import check_saga_id, label_problem
from sagas.definition.snapshot import to_snapshot
from sagas.errors import RefusedError, UsageError
from sagas.expressions import ExpressionError, compile_value
from sagas.presentation.web_ui_text import static_details
from sagas.protocol.origin import Origin
from sagas.protocol.payloads import (
    BULK_PREFIX,
    BULK_WORKFLOW,
    DEFINITION_HEADER,
    GENERATION_HEADER,
    RESUMED_HEADER,
    SIGNATURE_HEADER,
    input_digest,
)
from sagas.protocol.saga_view import FINAL_STATES, STARTED_AGAIN
from sagas.settings.definition_keys import DefinitionKeys
from sagas.text.exact_json import encode_json, value_text
from sagas.text.shell import saga_command
from sagas.text.uuid7 import uuid7
from sagas.workflow.limits import run_summary


@dataclass(frozen=True, slots=True)
class StartResult:
    """A saga that runs or has run under ``id``; ``started`` is False if it existed before.

    ``completed``: it existed, and has ended COMPLETED. ``source``: the ledger if Temporal has no run of it.
    ``bulk_id``: the bulk workflow that runs it; then there is no ``run_id``.
    """

    id: str
    run_id: str
    started: bool
    completed: bool = False
    source: Literal["ledger"] | None = None
    bulk_id: str | None = None


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A validated start. ``id`` is None if the definition has no id template."""

    input: Any
    id: str | None
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BulkRow:
    """One saga of a bulk workflow."""

    id: str
    request: StartRequest


@dataclass(frozen=True, slots=True)
class _ClaimedId:
    """The claim of an id for a single start. ``made_at`` is None if it was claimed before.

    ``bulk``: the claim of the bulk workflow that runs it. ``row``: the newest of the id.
    """

    saga_id: str
    made_at: datetime | None
    bulk: Claim | None
    row: RunRow | None


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
        keys: DefinitionKeys,
        variables: Mapping[str, Any] | None = None,
        attributes: tuple[str, ...] = (),
    ) -> None:
        self._locator = locator
        self._ledger = locator.ledger
        self._temporal = locator.temporal
        self._definition = definition
        self._task_queue = task_queue
        self._variables = dict(variables or {})
        self._attributes = attributes
        self._id_template = None if definition.id is None else compile_value(definition.id)
        self._label_templates = compile_value(dict(definition.labels)) if definition.labels else None
        header = to_header(
            {"definition": to_snapshot(definition), "vars": self._variables, "attributes": list(attributes)}
        )
        self._headers: dict[str, Any] = {DEFINITION_HEADER: header}
        signature = keys.sign("definition", header.data)
        if signature is not None:
            self._headers[SIGNATURE_HEADER] = to_header(signature)
        self._static_details = static_details(definition)

    def make_request(self, input: Any) -> StartRequest:
        """Validate an input and derive the id and labels from it. Raises UsageError with the first problems."""
        name = self._definition.saga
        checked, problems = validate_input(self._definition, input)
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
            raise UsageError(f"{what} of {name} cannot be evaluated for this input: {error.message}") from None
        id = None if self._id_template is None else id_text(rendered)
        if self._id_template is not None and id is None:
            raise UsageError(f"the id of {name} is empty for this input, or neither a string nor a number")
        if (problem := label_problem([f"{label}={value}" for label, value in labels.items()])) is not None:
            raise UsageError(problem)
        return StartRequest(checked, id, labels)

    async def start(
        self,
        request: StartRequest,
        *,
        id: str | None = None,
        again: bool = False,
        labels: Mapping[str, str] | None = None,
    ) -> StartResult:
        """Start a saga, or find the run that exists already. ``labels`` are added to the definition's.

        Raises UsageError if the id is not valid; RefusedError if the id belongs to another saga or input, to a run that
        was undone (use ``again``), or to one that was terminated; LedgerUnavailable if only the ledger could tell.
        """
        given = request.id if id is None else id
        saga_id = check_saga_id(self.new_id() if given is None else given)
        claim = None if given is None else await self._claim(saga_id, request, labels)
        if claim is not None and claim.bulk is not None:
            return await self._run_in_bulk(claim.bulk, request.input)
        past = None if claim is None or claim.row is None else (await self._locator.locate(saga_id)).row
        headers = dict(self._headers)
        reuse = WorkflowIDReusePolicy.REJECT_DUPLICATE
        if past is not None and not (again and past.view.state in STARTED_AGAIN):
            await self._give_up(claim)
            return self._run_in_ledger(past, request.input)
        if again:
            generation = await _next_generation(self._locator, saga_id, past)
            if generation is not None:
                headers[GENERATION_HEADER] = generation
                reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE
        try:
            with start_headers(headers):
                handle = await self._temporal.start_workflow(
                    self._definition.saga,
                    request.input,
                    id=saga_id,
                    task_queue=self._task_queue,
                    id_reuse_policy=reuse,
                    id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                    static_summary=run_summary(self._definition.description or self._definition.saga),
                    static_details=self._static_details,
                    search_attributes=self._search_attributes(request, labels),
                )
        except WorkflowAlreadyStartedError:
            return await self._existing_run(request.input, saga_id, claim)
        except RPCError as error:
            if (reason := refusal_reason(error)) is not None:
                raise UsageError(f"{saga_id} cannot be started: {reason}") from error
            raise
        return StartResult(saga_id, handle.first_execution_run_id or handle.result_run_id or "", True)

    async def resume(
        self,
        saga_id: str,
        request: StartRequest,
        origin: Origin,
        generations: Mapping[str, int],
        *,
        replaces: bool,
    ) -> StartResult:
        """Start a saga again whose run was deleted, at the generations that its entries had.

        ``replaces``: end the open run of the id, which was started with another input. Raises RefusedError if a run of
        it has just been started.
        """
        claim = await self._claim(saga_id, request, None)
        if claim is not None and claim.bulk is not None:
            raise RefusedError(f"{saga_id} runs in the bulk workflow {claim.bulk.bulk_id}")
        headers = {**self._headers, RESUMED_HEADER: {"started_at": origin.started_at, "generations": dict(generations)}}
        if origin.generation > 1:
            headers[GENERATION_HEADER] = origin.generation
        conflict = WorkflowIDConflictPolicy.TERMINATE_EXISTING if replaces else WorkflowIDConflictPolicy.FAIL
        try:
            with start_headers(headers):
                handle = await self._temporal.start_workflow(
                    self._definition.saga,
                    request.input,
                    id=saga_id,
                    task_queue=self._task_queue,
                    id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                    id_conflict_policy=conflict,
                    static_summary=run_summary(self._definition.description or self._definition.saga),
                    static_details=self._static_details,
                    search_attributes=self._search_attributes(request, None),
                )
        except WorkflowAlreadyStartedError as error:
            raise RefusedError(f"{saga_id} has just been started", help=saga_command("show", saga_id)) from error
        return StartResult(saga_id, handle.first_execution_run_id or handle.result_run_id or "", True)

    @property
    def definition(self) -> Definition:
        return self._definition

    @property
    def locator(self) -> Locator:
        return self._locator

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
        self._ledger.require()
        for saga in sagas:
            if (size := len(encode_json(saga.request.input))) > MAX_BULK_INPUT:
                raise UsageError(
                    f"the input of {saga.id} has {size:,} bytes, and bulk execution takes {MAX_BULK_INPUT:,}: "
                    "start it on its own"
                )
        extra = {} if batch is None else {"batch": batch}
        rows = [[check_saga_id(saga.id), saga.request.input, {**saga.request.labels, **extra}] for saga in sagas]
        for _, _, labels in rows:
            if (problem := label_problem([f"{name}={value}" for name, value in labels.items()])) is not None:
                raise UsageError(problem)
        attributes = None
        if extra and "SagaLabels" in self._attributes:
            key = SearchAttributeKey.for_keyword_list("SagaLabels")
            attributes = TypedSearchAttributes([SearchAttributePair(key, [f"batch={batch}"])])
        with start_headers(self._headers):
            return await self._temporal.start_workflow(
                BULK_WORKFLOW,
                {"saga": self._definition.saga, "sagas": rows, "again": again, "chunk_size": chunk_size},
                id=f"{BULK_PREFIX}{self._definition.saga}-{uuid7()}",
                task_queue=self._task_queue,
                static_summary=run_summary(f"{len(rows)} × {self._definition.saga}"),
                static_details=self._static_details,
                search_attributes=attributes,
            )

    def _search_attributes(
        self, request: StartRequest, extra_labels: Mapping[str, str] | None
    ) -> TypedSearchAttributes | None:
        labels = {**request.labels, **(extra_labels or {})}
        if not labels or "SagaLabels" not in self._attributes:
            return None
        values = [f"{name}={value}" for name, value in labels.items()]
        if (problem := label_problem(values)) is not None:
            raise UsageError(problem)
        return TypedSearchAttributes([SearchAttributePair(SearchAttributeKey.for_keyword_list("SagaLabels"), values)])

    async def _claim(self, saga_id: str, request: StartRequest, labels: Mapping[str, str] | None) -> _ClaimedId | None:
        """Claim the id in the ledger, so that no bulk workflow runs it too. None if it does not answer.

        Raises LedgerUnavailable if it does not answer, and Temporal does not know the id.
        """
        if len(saga_id) > MAX_SAGA_ID:
            return None
        new = NewClaim(saga_id, input_digest(request.input), {**request.labels, **(labels or {})})
        at = datetime.now(UTC)
        try:
            claim = await self._ledger.claim_single(new, self._definition.saga, at)
            bulk = claim.held if claim.held is not None and claim.held.bulk_id is not None else None
            return _ClaimedId(saga_id, at if claim.made else None, bulk, claim.row)
        except LedgerUnavailable as error:
            if (await self._locator.within_temporal().locate(saga_id)).home is not None:
                return None
            raise LedgerUnavailable(
                f"it is unknown whether {saga_id} has run before: {error.message}", help="start it again later"
            ) from error

    async def _give_up(self, claim: _ClaimedId | None) -> None:
        """Release the claim of an id under which nothing was started.

        Only with a row it is protected from bulk workflows without the claim.
        """
        if claim is not None and claim.made_at is not None and claim.row is not None:
            with suppress(LedgerUnavailable):  # it is deleted with the ledger's upkeep
                await self._ledger.release_single(claim.saga_id, claim.made_at)

    async def _run_in_bulk(self, claim: Claim, input: Any) -> StartResult:
        """The saga that a bulk workflow runs, if it may count as this start."""
        self.check_claim(claim, input)
        saga_id = claim.saga_id
        view = await read_view(self._locator, saga_id)
        if view.state not in FINAL_STATES:
            return StartResult(saga_id, "", False, bulk_id=view.bulk_workflow)
        if view.state != "COMPLETED":
            raise AlreadyEnded(saga_id, view.state)
        return StartResult(saga_id, "", False, completed=True, source="ledger")

    def check_claim(self, claim: Claim, input: Any) -> None:
        """Raise RefusedError unless the saga that has claimed this id may count as this start."""
        self._require_same_start(claim.saga_id, claim.saga, claim.input_digest, input)

    def _require_same_start(
        self, saga_id: str, saga: str, digest: str | None, input: Any, state: str | None = None
    ) -> None:
        """Raise RefusedError unless the id belongs to this saga with this input.

        ``digest``: that of the input it was started with; None: not recorded. ``state``: how it has ended.
        """
        if saga != self._definition.saga:
            raise RefusedError(
                f"the id {saga_id} belongs to a run of the saga {saga}", help="choose another id with --id"
            )
        if digest in (None, input_digest(input)):
            return
        if state in STARTED_AGAIN:
            raise RefusedError(
                f"{saga_id} has been started with another input, and has ended {state}",
                help="start it with this input as a new generation with --again, or choose another id with --id",
            )
        raise RefusedError(
            f"{saga_id} has been started with another input",
            help=f"inspect it with `{saga_command('show', saga_id)}`, or choose another id with --id",
        )

    def _run_in_ledger(self, row: RunRow, input: Any) -> StartResult:
        """The run that only the ledger knows, if it may count as this start."""
        view = row.view
        self._require_same_start(view.id, view.saga, row.input_digest, input, view.state)
        if view.state != "COMPLETED":
            raise AlreadyEnded(view.id, view.state)
        return StartResult(view.id, "", False, completed=True, source="ledger")

    async def _existing_run(self, input: Any, saga_id: str, claim: _ClaimedId | None) -> StartResult:
        """The run under this id, if it is the same saga with the same input and may count as this start."""
        location = await self._locator.within_temporal().locate(saga_id)
        if location.run is None:
            raise RefusedError(f"the existing run of {saga_id} has just been deleted; start it again")
        run = location.run.run
        if not run.running:
            await self._give_up(claim)
        state = None if run.running else await closed_state(run)
        # Another saga's input may not be readable; the name alone refuses it.
        is_same_saga = run.workflow_type == self._definition.saga
        digest = input_digest(await first_input(self._temporal, location.run)) if is_same_saga else None
        self._require_same_start(saga_id, run.workflow_type, digest, input, state)
        if state is None:
            return StartResult(saga_id, run.run_id, False)
        if location.undo is not None:
            state = (await read_view(self._locator.within_temporal(), saga_id)).state
        if state != "COMPLETED":
            raise AlreadyEnded(saga_id, state)
        return StartResult(saga_id, run.run_id, False, completed=True)


def id_text(value: Any) -> str | None:
    """The id that a template gives: a string, or a number with its digits; None if it gives none."""
    is_text = isinstance(value, str) or (isinstance(value, int | Decimal) and not isinstance(value, bool))
    text = value_text(value) if is_text else ""
    return text if text.strip() else None


class AlreadyEnded(RefusedError):
    """The id belongs to a run that ended without completing; ``state`` is how."""

    def __init__(self, saga_id: str, state: str) -> None:
        self.state = state
        if state == "TERMINATED":
            super().__init__(
                f"{saga_id} was terminated, so it is unknown which of its effects exist",
                help=f"inspect it with `{saga_command('show', saga_id)}`",
            )
        elif state in STARTED_AGAIN:
            super().__init__(
                f"{saga_id} has ended {state}",
                help="start it again as a new generation with --again",
            )
        else:
            super().__init__(
                f"{saga_id} is {state}",
                help=f"inspect it with `{saga_command('show', saga_id)}`, or choose another id with --id",
            )


async def _next_generation(locator: Locator, saga_id: str, past: RunRow | None) -> int | None:
    """The generation for `--again`: the highest of any entry so far plus one; None if it may not be started again.

    ``past``: what the ledger has of a run that Temporal does not know.
    """
    in_temporal = locator.within_temporal()
    if past is None and (await in_temporal.locate(saga_id)).home is None:
        return None
    view = await read_view(in_temporal, saga_id) if past is None else past.view
    if view.state not in STARTED_AGAIN:
        return None
    return max([view.generation or 1, *(step.generation or 1 for step in view.steps)]) + 1
