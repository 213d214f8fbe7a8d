"""Gives sagas of a bulk workflow workflows of their own."""

from __future__ import annotations

import asyncio
import contextlib
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
from temporalio.service import RPCError

from saga_workers.temporal.holding_runs import holder_in_words
from saga_workers.temporal.refusals import refusal_reason
from saga_workers.temporal.run_history import start_of_run
from saga_workers.temporal.saga_runs import describe_saga_run
from saga_workers.temporal.signed_departures import departed_from
from saga_workers.temporal.temporal_client import start_headers, to_header
from saga_workers.temporal.temporal_runs import RunDescription
from sagas.definition.snapshot import from_snapshot
from sagas.machine.snapshot import expand
from sagas.presentation.web_ui_text import static_details
from sagas.protocol.payloads import BULK_MEMO, DETACHED_HEADER, STARTED_AT_MEMO, pack_state
from sagas.protocol.signed_content import message_content
from sagas.settings.signing_keys import SigningKeys
from sagas.workflow.summaries import run_summary

_AT_ONCE = 20


class SagaDetacher:
    """Starts workflows that go on with sagas of bulk workflows; ``keys`` sign what they start with."""

    def __init__(self, temporal: Temporal, task_queue: str, keys: SigningKeys) -> None:
        self._temporal = temporal
        self._task_queue = task_queue
        self._keys = keys

    async def __call__(
        self, request: Mapping[str, Any], states: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
    ) -> dict[str, str]:
        """Start one for each saga. One that an earlier attempt has given a workflow keeps it.

        Returns the ids of those that Temporal refuses whenever they are sent, or whose id another run has, with the
        reasons. Raises another error of a start after all have been tried.
        """
        gate = asyncio.Semaphore(_AT_ONCE)

        async def start(summary: Mapping[str, Any], machine: Mapping[str, Any]) -> str | None:
            async with gate:
                try:
                    return await self._start(request, summary, machine)
                except RPCError as error:
                    if (reason := refusal_reason(error)) is None:
                        raise
                    return f"Temporal refuses its workflow: {reason}"

        answers = await asyncio.gather(*(start(*state) for state in states), return_exceptions=True)
        refused: dict[str, str] = {}
        for (summary, _), answer in zip(states, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            if answer is not None:
                refused[summary["saga_id"]] = answer
        return refused

    async def _start(
        self, request: Mapping[str, Any], summary: Mapping[str, Any], machine: Mapping[str, Any]
    ) -> str | None:
        """Start the workflow of one saga; returns why it cannot be started, if another run has the id."""
        saga_id = machine["saga_id"]
        definition = from_snapshot(request["definition"])
        value = {
            "machine": pack_state(expand(machine, request["definition"])),
            "attributes": request["attributes"],
            "bulk_id": request["bulk_id"],
            "claimed_at": request["claimed_at"] if summary["claimed"] else None,
            "why": summary["why"],
        }
        signature = self._keys.sign("detached", message_content([saga_id], value))
        headers: dict[str, Any] = {DETACHED_HEADER: to_header(signature or {})}
        labels = [f"{name}={label}" for name, label in summary["labels"].items()]
        attributes = None
        if labels and "SagaLabels" in request["attributes"]:
            pair = SearchAttributePair(SearchAttributeKey.for_keyword_list("SagaLabels"), labels)
            attributes = TypedSearchAttributes([pair])
        memo: dict[str, Any] = {BULK_MEMO: request["bulk_id"]}
        if machine["started_at"] is not None:
            memo[STARTED_AT_MEMO] = machine["started_at"]

        async def start(reuse: WorkflowIDReusePolicy) -> None:
            with start_headers(headers):
                await self._temporal.start_workflow(
                    request["saga"],
                    value,
                    id=saga_id,
                    task_queue=self._task_queue,
                    id_reuse_policy=reuse,
                    id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                    memo=memo,
                    static_summary=run_summary(definition.description or definition.saga),
                    static_details=static_details(definition),
                    search_attributes=attributes,
                )

        try:
            await start(WorkflowIDReusePolicy.REJECT_DUPLICATE)
        except WorkflowAlreadyStartedError:
            has_begun = machine["started_at"] is not None or machine.get("generation", 1) > 1
            described = await describe_saga_run(self._temporal, saga_id)
            bulk_id = None if described is None else await self._departed_from(described)
            is_ours = bulk_id == request["bulk_id"]
            if described is not None and described.run.running and not is_ours:
                # Another bulk workflow has given it to that run, if the same saga was started in both.
                is_same = bulk_id is not None and described.run.workflow_type == request["saga"]
                held = f"{holder_in_words(described.run)} has its id: end that run, or wait for its end"
                return None if is_same else held
            reuse = _reuse(described, is_ours=is_ours, has_begun=has_begun)
            if reuse is not None:
                with contextlib.suppress(WorkflowAlreadyStartedError):
                    await start(reuse)
        return None

    async def _departed_from(self, described: RunDescription) -> str | None:
        """The id of the bulk workflow that has started the run, or the first one of its chain; None if none has."""
        run = described.run
        started = await start_of_run(self._temporal, run.id, run.raw.first_run_id or run.run_id)
        if started is None:
            claimed = (await run.memo()).get(BULK_MEMO)
            return claimed if isinstance(claimed, str) else None
        return await departed_from(run, started, self._keys)


def _reuse(described: RunDescription | None, *, is_ours: bool, has_begun: bool) -> WorkflowIDReusePolicy | None:
    """The policy for a start under an id that has runs, none of which is open; None if one of them is the saga.

    A closed run which this bulk workflow has not started may be of an earlier generation, or from before the project
    had a ledger: what the bulk workflow has begun must go on. Runs that never became a saga count as none.
    """
    if is_ours:
        return None
    if described is None or described.never_accepted:
        return WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
    return WorkflowIDReusePolicy.ALLOW_DUPLICATE if has_begun else None
