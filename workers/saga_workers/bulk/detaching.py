"""Gives sagas of a bulk workflow workflows of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError

from saga_workers.temporal.temporal_client import start_headers, to_header
from sagas.definition.snapshot import from_snapshot
from sagas.machine.snapshot import expand
from sagas.presentation.web_ui_text import static_details
from sagas.protocol.payloads import DETACHED_HEADER, STARTED_AT_MEMO, pack_state
from sagas.settings.definition_keys import DefinitionKeys, detached_content
from sagas.workflow.limits import run_summary

_AT_ONCE = 20


class SagaDetacher:
    """Starts workflows that go on with sagas of bulk workflows; ``keys`` sign what they start with."""

    def __init__(self, temporal: Temporal, task_queue: str, keys: DefinitionKeys) -> None:
        self._temporal = temporal
        self._task_queue = task_queue
        self._keys = keys

    async def __call__(
        self, request: Mapping[str, Any], states: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
    ) -> None:
        """Start one for each saga. One that has a workflow already keeps it: this one or an earlier attempt's."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def start(summary: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
            async with gate:
                await self._start(request, summary, machine)

        async with asyncio.TaskGroup() as group:
            for summary, machine in states:
                group.create_task(start(summary, machine))

    async def _start(self, request: Mapping[str, Any], summary: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
        saga_id = machine["saga_id"]
        definition = from_snapshot(request["definition"])
        value = {
            "machine": pack_state(expand(machine, request["definition"])),
            "attributes": request["attributes"],
            "bulk_id": request["bulk_id"],
            "why": summary["why"],
        }
        signature = self._keys.sign("detached", detached_content(saga_id, value))
        headers: dict[str, Any] = {DETACHED_HEADER: to_header(signature or {})}
        labels = [f"{name}={label}" for name, label in summary["labels"].items()]
        attributes = None
        if labels and "SagaLabels" in request["attributes"]:
            pair = SearchAttributePair(SearchAttributeKey.for_keyword_list("SagaLabels"), labels)
            attributes = TypedSearchAttributes([pair])
        # A saga that was undone before, and is started again, has a closed run of this id.
        again = machine.get("generation", 1) > 1
        try:
            with start_headers(headers):
                await self._temporal.start_workflow(
                    request["saga"],
                    value,
                    id=saga_id,
                    task_queue=self._task_queue,
                    id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE
                    if again
                    else WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                    memo=None if machine["started_at"] is None else {STARTED_AT_MEMO: machine["started_at"]},
                    static_summary=run_summary(definition.description or definition.saga),
                    static_details=static_details(definition),
                    search_attributes=attributes,
                )
        except WorkflowAlreadyStartedError:
            return
