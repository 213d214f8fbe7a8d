"""Starting a saga once: one run per saga id, whoever asks and however often."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus, WorkflowHistoryEventFilterType
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError

from sagas.definition.input import check_input
from sagas.definition.model import Definition
from sagas.definition.snapshot import to_snapshot
from sagas.errors import RefusedError, UsageError
from sagas.expressions import ExpressionError, compile_value
from sagas.plan_text import static_details
from sagas.wire import DEFINITION_HEADER, GENERATION_HEADER
from workers.headers import start_headers
from workers.stories import TERMINATED_STATES, closed_story, read_story


@dataclass(frozen=True, slots=True)
class Started:
    """A saga that runs or ran under ``id``; ``started`` is False when it was there before."""

    id: str
    run_id: str
    started: bool


async def start(
    temporal: Temporal,
    definition: Definition,
    input: Any,
    *,
    task_queue: str,
    id: str | None = None,
    again: bool = False,
    variables: Mapping[str, Any] | None = None,
    attributes: tuple[str, ...] = (),
) -> Started:
    """Start a saga, or find the run that is already there.

    Raises UsageError: the input or the id is not valid. RefusedError: the id belongs to another saga or input, to a
    run that was undone (use ``again``), or to one that was terminated.
    """
    checked, problems = check_input(definition, input)
    if problems:
        raise UsageError(f"the input of {definition.saga} is not valid: {problems[0]}")
    context = {"input": checked, "vars": dict(variables or {}), "saga": {"name": definition.saga}}
    saga_id = id or _render_id(definition, context)
    snapshot = {"definition": to_snapshot(definition), "vars": dict(variables or {}), "attributes": list(attributes)}
    headers: dict[str, Any] = {DEFINITION_HEADER: snapshot}
    reuse = WorkflowIDReusePolicy.REJECT_DUPLICATE
    if again:
        generation = await _next_generation(temporal, saga_id)
        if generation is not None:
            headers[GENERATION_HEADER] = generation
            reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE
    try:
        with start_headers(headers):
            handle = await temporal.start_workflow(
                definition.saga,
                checked,
                id=saga_id,
                task_queue=task_queue,
                id_reuse_policy=reuse,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                static_summary=definition.description or definition.saga,
                static_details=static_details(definition),
                search_attributes=_labels(definition, context, attributes),
            )
    except WorkflowAlreadyStartedError:
        return await _existing(temporal, definition, checked, saga_id)
    return Started(saga_id, handle.first_execution_run_id or handle.result_run_id or "", True)


def _render_id(definition: Definition, context: Mapping[str, Any]) -> str:
    if definition.id is None:
        return f"{definition.saga}-{uuid7()}"
    try:
        rendered = compile_value(definition.id).render(context)
    except ExpressionError as error:
        raise UsageError(f"the id of {definition.saga} cannot be made from this input: {error.message}") from None
    if not isinstance(rendered, str) or not rendered.strip():
        raise UsageError(f"the id of {definition.saga} is empty for this input")
    return rendered


def _labels(
    definition: Definition, context: Mapping[str, Any], attributes: tuple[str, ...]
) -> TypedSearchAttributes | None:
    if not definition.labels or "SagaLabels" not in attributes:
        return None
    try:
        labels = compile_value(dict(definition.labels)).render(context)
    except ExpressionError as error:
        raise UsageError(f"a label of {definition.saga} cannot be made from this input: {error.message}") from None
    key = SearchAttributeKey.for_keyword_list("SagaLabels")
    return TypedSearchAttributes([SearchAttributePair(key, [f"{name}={value}" for name, value in labels.items()])])


async def _existing(temporal: Temporal, definition: Definition, input: Any, saga_id: str) -> Started:
    """The run under this id, if it is the same saga with the same input and may stand for this start."""
    handle = temporal.get_workflow_handle(saga_id)
    described = await handle.describe()
    if described.workflow_type != definition.saga:
        raise RefusedError(
            f"the id {saga_id} belongs to a saga {described.workflow_type}",
            help="give this one another id with --id",
        )
    if not await _same_input(temporal, saga_id, described.raw_description, input):
        raise RefusedError(
            f"{saga_id} has been started with another input",
            help=f"look at it with `saga show {saga_id}`, or give another id with --id",
        )
    if described.status in (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.COMPLETED):
        story = None if described.status is WorkflowExecutionStatus.RUNNING else await closed_story(described)
        if story is None or story.get("state") == "COMPLETED":
            return Started(saga_id, described.run_id, False)
    story = await read_story(temporal, saga_id)
    if story["state"] in TERMINATED_STATES:
        raise RefusedError(
            f"{saga_id} was terminated, so nobody knows which of its effects are there",
            help=f"look at it with `saga show {saga_id}`",
        )
    raise RefusedError(
        f"{saga_id} has ended {story['state']}",
        help="start it again as a new generation with --again",
    )


async def _same_input(temporal: Temporal, saga_id: str, description: Any, input: Any) -> bool:
    info = description.workflow_execution_info
    first_run = info.first_run_id or info.execution.run_id
    handle = temporal.get_workflow_handle(saga_id, run_id=first_run)
    async for event in handle.fetch_history_events(
        page_size=1, event_filter_type=WorkflowHistoryEventFilterType.ALL_EVENT
    ):
        payloads = event.workflow_execution_started_event_attributes.input.payloads
        values = await temporal.data_converter.decode(payloads)
        return bool(values) and values[0] == input
    return False


async def _next_generation(temporal: Temporal, saga_id: str) -> int | None:
    """The generation for `--again`: one more than the highest of any entry so far; None when the id is free."""
    try:
        story = await read_story(temporal, saga_id)
    except UsageError:
        return None
    if story["state"] in ("COMPENSATED", "RESIDUE"):
        highest = max((step.get("generation") or 1 for step in story.get("steps") or ()), default=1)
        return max(highest, story.get("generation") or 1) + 1
    return None


def uuid7() -> str:
    """A time-ordered UUID (RFC 9562, version 7)."""
    import time

    random = uuid.uuid4().int & ((1 << 74) - 1)
    value = (int(time.time() * 1000) & ((1 << 48) - 1)) << 80
    value |= 0x7 << 76 | (random >> 62) << 64 | 0b10 << 62 | (random & ((1 << 62) - 1))
    return str(uuid.UUID(int=value))
