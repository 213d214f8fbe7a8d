"""The histories of a saga's runs: Temporal replaces nothing in them, and deletes them only as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client as Temporal
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.privacy.places import ForgottenPlace
from saga_workers.temporal.run_history import readable_events
from saga_workers.temporal.temporal_runs import RunInfo, describe_run, list_runs
from saga_workers.temporal.visibility_filter import has_literal, quote
from sagas.definition.sensitivity import searched_texts
from sagas.text.exact_json import encode_json
from sagas.text.masked_texts import mask_texts
from sagas.text.shortening import counted


async def saga_runs(temporal: Temporal, saga_id: str, unlisted: Collection[str]) -> list[RunInfo]:
    """All runs of a saga, of the sagas nested in it, of its undo and of its notifications, also of earlier starts.

    ``unlisted``: ids of some that Temporal may not list yet, to ask for directly.
    """
    runs = [run async for run in _listed(temporal, saga_id)]
    runs = [run for run in runs if run.id == saga_id or run.id.startswith((f"{saga_id}/", f"{saga_id}~"))]
    listed = {run.run_id for run in runs}
    described = [await describe_run(temporal, id) for id in sorted(unlisted)]
    return runs + [each.run for each in described if each is not None and each.run.run_id not in listed]


def _listed(temporal: Temporal, saga_id: str) -> AsyncIterator[RunInfo]:
    if has_literal(saga_id):
        return list_runs(temporal, f"WorkflowId STARTS_WITH {quote(saga_id)}")
    return list_runs(temporal, "WorkflowId IS NOT NULL")


@dataclass(frozen=True, slots=True)
class Traces:
    """How histories have values. ``keys``: the ids of those that encrypt payloads; ``has_clear``: a payload may have a
    value in clear; ``quoted``: a message of a failure, or a reason, has one.
    """

    keys: frozenset[str]
    has_clear: bool
    quoted: bool

    @property
    def are_encrypted(self) -> bool:
        return bool(self.keys) and not self.quoted and not self.has_clear

    @property
    def exist(self) -> bool:
        return bool(self.keys) or self.quoted or self.has_clear

    @property
    def key_names(self) -> str:
        return ", ".join(sorted(self.keys))

    @property
    def clear(self) -> str:
        return "in clear" if self.has_clear else "in clear in messages of failures, or in reasons of a cancel or an end"


async def read_traces(temporal: Temporal, runs: Sequence[RunInfo], sensitive: frozenset[str] | None) -> Traces:
    """Search the histories of runs. ``sensitive``: the values; None if nobody knows them any more: then each payload
    that is not encrypted counts, if none is.
    """
    keys: set[str] = set()
    has_clear, forms = False, _forms(sensitive or frozenset())
    quoted, quotes = False, searched_texts(sensitive or frozenset())
    for run in runs:
        async for event in readable_events(temporal, run):
            quoted = quoted or any(mask_texts(text, quotes) != text for text in _clear_texts(event))
            for payload in _payloads(event):
                if key := payload.metadata.get("encryption-key-id"):
                    keys.add(key.decode(errors="replace"))
                else:
                    has_clear = has_clear or any(form in payload.data for form in forms)
    return Traces(frozenset(keys), has_clear or (sensitive is None and not keys), quoted)


UNSEARCHED = "; messages of failures are in clear, and not searched, as nobody knows the values any more"


async def histories_place(
    temporal: Temporal, runs: Sequence[RunInfo], sensitive: frozenset[str] | None
) -> ForgottenPlace:
    """The place of these runs: what their histories have of the values, and what would make that unreadable."""
    where = f"{counted(len(runs), 'run')} in Temporal"
    if not runs:
        return ForgottenPlace("histories and memos", "nothing", "the saga has no run of its own in Temporal")
    traces = await read_traces(temporal, runs, sensitive)
    if traces.are_encrypted:
        key = f"the key {traces.key_names} of [codec]"
        why = f"{where}, encrypted: unreadable as soon as {key} exists no more, or --delete-run"
        return ForgottenPlace("histories and memos", "stays", why + (UNSEARCHED if sensitive is None else ""))
    if not traces.has_clear and not traces.quoted:
        return ForgottenPlace("histories and memos", "nothing", f"no such value in {where}")
    why = f"{where}, {traces.clear}: Temporal replaces nothing in a history; --delete-run deletes them"
    return ForgottenPlace("histories and memos", "stays", why)


def _payloads(message: Message) -> Iterator[Payload]:
    """The payloads in a message, without those of headers and search attributes, which have no value."""
    if isinstance(message, Payload):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None or field.name in ("header", "search_attributes"):
            continue
        values: Any = [value] if isinstance(value, Message) else value.values() if hasattr(value, "values") else value
        for each in values:
            if isinstance(each, Message):
                yield from _payloads(each)


_CLEAR_FIELDS = frozenset({"message", "stack_trace", "cause", "reason"})
"""The fields of failures, and of events that somebody has caused, whose texts no codec encrypts."""


def _clear_texts(message: Message) -> Iterator[str]:
    """The texts in a message that somebody has written, or that a failure quotes."""
    for field, value in message.ListFields():
        if field.name in _CLEAR_FIELDS and isinstance(value, str):
            yield value
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in [value] if isinstance(value, Message) else value:
                yield from _clear_texts(each)


def _forms(sensitive: frozenset[str]) -> list[bytes]:
    """The values that are long enough to be looked for, as they are and as JSON writes them."""
    texts = searched_texts(sensitive)
    return [form for text in texts for form in {text.encode("utf-8", "surrogatepass"), encode_json(text)[1:-1]}]


def kept_histories(runs: Sequence[RunInfo]) -> ForgottenPlace:
    """The place of runs that are not deleted yet, because only they tell which values another place still has."""
    why = (
        f"{counted(len(runs), 'run')} in Temporal, not deleted yet: only there it can be read which values stay in the"
        " places above; repeat the command with --delete-run"
    )
    return ForgottenPlace("histories and memos", "stays", why)


async def delete_histories(temporal: Temporal, runs: Sequence[RunInfo]) -> ForgottenPlace:
    """Ask Temporal to delete these closed runs, which it does a little later."""
    for run in runs:
        execution = WorkflowExecution(workflow_id=run.id, run_id=run.run_id)
        request = DeleteWorkflowExecutionRequest(namespace=temporal.namespace, workflow_execution=execution)
        try:
            await temporal.workflow_service.delete_workflow_execution(request)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
    status = "deleted" if runs else "nothing"
    return ForgottenPlace("histories and memos", status, f"{counted(len(runs), 'run')} in Temporal")
