"""From a written notification to the model: what an author leaves out is the event itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.builtins import READ_METHODS
from sagas.builtins_messaging import EMITTERS
from sagas.definition.draft import OperationDraft
from sagas.definition.model import INTERVALS, Notification, Operation, Retry
from sagas.definition.operations import Environment
from sagas.definition.records import Parsed

TIMEOUT = 30.0
EVENT = "${{ event }}"
"""The whole event: id, type, timestamp and data."""

GONE = 410
"""The status with which a receiver says that it wants no more of this, whatever comes."""


def build_notifications(
    forms: list[Parsed], environment: Environment
) -> tuple[tuple[Notification, ...], tuple[OperationDraft, ...]]:
    """The notifications that can be read, and their operations with their places."""
    usable = [form for form in forms if form.get("uses")]
    drafts = tuple(OperationDraft("notify", _operation(form, environment), form) for form in usable)
    made = tuple(
        Notification(
            when=tuple(dict.fromkeys(draft.parsed.get("when") or ())),
            do=draft.operation,
            intervals=tuple(draft.parsed.get("intervals") or INTERVALS),
        )
        for draft in drafts
    )
    return made, drafts


def _operation(form: Parsed, environment: Environment) -> Operation:
    uses = form.get("uses", "")
    local = uses in environment.actions
    written = _filled(uses, form.get("with") or {}, environment, local=local)
    arguments = environment.arguments(uses, written)
    operation = environment.operation(
        form,
        arguments=arguments,
        forward=arguments,
        timeout=environment.default("timeout") or TIMEOUT,
        retry=None,
        heartbeat=None,
        task_queue=environment.default("task_queue"),
        idempotent=None,
    )
    return Operation(
        uses=uses,
        with_=arguments,
        timeout=operation.timeout,
        retry=Retry(max_attempts=1),  # its intervals say when it is tried again
        task_queue=operation.task_queue,
        connection=operation.connection,
        local=operation.local,
    )


def _filled(uses: str, written: Mapping[str, Any], environment: Environment, *, local: bool) -> dict[str, Any]:
    """The arguments with the event where the author names no content of their own."""
    arguments = dict(written)
    if uses == "http":
        arguments.setdefault("method", "POST")
        # Everything else is tried again: a receiver that is being repaired may answer anything.
        arguments.setdefault("rejected", [GONE])
        has_body = {"json", "form", "body"} & arguments.keys()
        if not has_body and str(arguments["method"]).upper() not in READ_METHODS:
            arguments["json"] = EVENT
    elif uses in EMITTERS and not {"value", "events"} & arguments.keys():
        arguments["value"] = EVENT
        arguments.setdefault("key", "${{ saga.id }}")
    elif local and any(one.name == "event" for one in environment.actions[uses].signature.parameters):
        arguments.setdefault("event", EVENT)
    return arguments
