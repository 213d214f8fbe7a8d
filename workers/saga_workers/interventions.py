"""Interventions of operators: cancel, pause, signal, resolve and undo a saga, wherever it runs."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowQueryFailedError, WorkflowQueryRejectedError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.bulk.detach_request import leave_bulk_workflow
from saga_workers.decision_preview import consequences
from saga_workers.location.location import Location
from saga_workers.location.locator import Locator
from saga_workers.privacy.operator_reasons import masked_reason
from saga_workers.temporal.foreign_payloads import UNREADABLE_PAYLOAD
from saga_workers.temporal.machine_query import query_machine, read_definition, verifying_keys
from saga_workers.temporal.message_keys import encrypting_key, require_key_at_worker
from saga_workers.temporal.saga_input import EncryptedInput, UnreadableRunInput, first_input
from saga_workers.temporal.temporal_runs import (
    MAY_STILL_HAPPEN,
    START_WORKER_HELP,
    NoAnswer,
    RunDescription,
    absence_message,
    count_pollers,
    describe_run,
)
from saga_workers.temporal.updates import send_update
from saga_workers.undo_start import EndedStart, start_undo
from saga_workers.views.accesses import with_accesses
from saga_workers.views.answering import NO_VIEW
from saga_workers.views.awaited_resets import unanswered_reset
from saga_workers.views.notifications import check_notification_decision, decide_notification, is_notification
from saga_workers.views.redeliveries import close_unserved, end_redelivery
from saga_workers.views.run_facts import web_ui_link
from saga_workers.views.saga_view import read_view
from sagas.definition.model import Definition
from sagas.errors import RefusedError, SagaError, SagaJustEnded, UsageError, did_you_mean
from sagas.input_limits import MAX_RESULT_VALUES
from sagas.protocol.foreign_view import read_foreign_view
from sagas.protocol.operator_names import recorded_name
from sagas.protocol.payloads import (
    BULK_WORKFLOW,
    RELEASE_ACTIVITY,
    unpack_state,
)
from sagas.protocol.saga_view import FINAL_STATES, SagaView
from sagas.protocol.signed_content import message_content
from sagas.settings.signing_keys import SigningKeys
from sagas.text.exact_json import encode_json
from sagas.text.json_values import has_more_values, json_problem
from sagas.text.shell import saga_command

UPDATE_TIMEOUT = 20.0
"""Seconds a worker has to answer an update or query; it answers within one workflow task."""

_LOOKS, _LOOK_INTERVAL = 50, 0.1
"""How often, and after how many seconds again, a run is asked whether it has begun."""

CANCEL_TIMEOUT = 15.0
"""Seconds a worker has to answer a cancel; after that it is recorded without an answer. A worker that has just
restarted answers after 10 s: for that time Temporal offers the task to the sticky queue of the previous one.
"""


@dataclass(frozen=True, slots=True)
class CancelResult:
    """The response to a cancel: ``accepted``, ``recorded``, ``already``, or ``requested`` if no worker has answered.

    ``note`` explains it to the operator.
    """

    answer: str
    note: str


def _just_ended_error(saga_id: str) -> SagaJustEnded:
    return SagaJustEnded(f"{saga_id} has just ended", help=saga_command("show", saga_id))


async def cancel(
    locator: Locator,
    saga_id: str,
    *,
    reason: str = "",
    who: str | None = None,
    without_answer: Callable[[str], None] = lambda text: None,
) -> CancelResult:
    """Request the rollback of a running saga.

    A worker answers at once what the cancel means for the saga. If none answers, it is sent as Temporal's own cancel
    request, which the run's history records; the saga takes whichever of the two it processes first. A second cancel
    changes nothing, also after the end to which the first has led. Raises RefusedError past the point of no return or
    if the saga has ended otherwise, UsageError if there is no such saga.

    A saga of a bulk workflow leaves that first, here and below. ``without_answer`` gets the words for what becomes of
    the cancel if no worker answers, before it is sent.
    """
    temporal = locator.temporal
    who = who or temporal.identity
    request = {"reason": reason, "who": who}
    location = await locator.locate_known(saga_id)
    await _require_key(locator, location)
    in_bulk = location.kind == "in bulk"
    if location.member is not None and location.open_run is None:
        # It takes its cancel along: it could end before another one arrives.
        location = await leave_bulk_workflow(locator, location.member, cancel=request)
    described = location.open_run
    try:
        if described is None:
            view = await read_view(locator, saga_id)
            if not in_bulk and _is_cancelled(view) and view.state in FINAL_STATES:
                return CancelResult("already", f"it was cancelled before, and is {view.state}")
            if view.redelivery is not None and (view.redelivery.is_due or view.redelivery.unserved):
                why = f"{recorded_name(who)}: {await masked_reason(locator, saga_id, reason)}".removesuffix(": ")
                if view.redelivery.unserved:
                    await close_unserved(temporal, view, why)
                    return CancelResult("accepted", "nobody waits any more for its event to be served")
                was_started = await end_redelivery(temporal, view, why, CANCEL_TIMEOUT)
                if was_started:
                    return await cancel(locator, saga_id, reason=reason, who=who)
                if was_started is None:
                    return CancelResult("requested", "recorded in Temporal: its event is not offered again")
                return CancelResult("accepted", "its event is not offered again")
            raise _ended_error(view, SagaJustEnded if in_bulk else RefusedError)
        if not await count_pollers(temporal, described.run.task_queue):
            return await _request_cancel(locator, described, saga_id, reason, who)
        without_answer(f"after {CANCEL_TIMEOUT:g} s it is recorded in Temporal, and the next worker takes it")
        try:
            answer = await _execute_update(temporal, described.run.id, "cancel", request, CANCEL_TIMEOUT)
        except NoAnswer:
            return await _request_cancel(locator, described, saga_id, reason, who)
    except SagaJustEnded:
        # This cancel may have ended the saga before its answer arrived.
        view = await read_view(locator, saga_id)
        if _is_cancelled(view):
            return CancelResult("accepted", f"it was cancelled and is {view.state}")
        raise
    match answer:
        case "accepted":
            return CancelResult(answer, "its completed steps are being undone")
        case "recorded":
            return CancelResult(answer, "the pivot decides: if it does not happen, everything is undone")
        case "already" if in_bulk and _is_cancelled(
            await read_view(locator, saga_id)
        ):  # it has taken this cancel along
            return CancelResult("accepted", "its completed steps are being undone")
        case "already":
            return CancelResult(answer, "it is already being undone")
        case "past the point of no return":
            raise RefusedError(f"{saga_id} is past the point of no return", help=saga_command("show", saga_id))
        case "point of no return unknown":
            raise RefusedError(
                f"nobody knows whether {saga_id} is past the point of no return, because an earlier run of it is lost",
                help=saga_command("show", saga_id),
            )
    raise RefusedError(f"{saga_id} cannot be cancelled: it is {answer}", help=saga_command("show", saga_id))


def _is_cancelled(view: SagaView) -> bool:
    """True if a cancel has led the saga backward, and nothing before it."""
    return view.reason is not None and view.reason.kind == "cancelled"


async def _request_cancel(
    locator: Locator, described: RunDescription, saga_id: str, reason: str, who: str | None
) -> CancelResult:
    if not described.raw.workflow_extended_info.cancel_requested:
        reason = await masked_reason(locator, saga_id, reason)
        text = reason if who is None else f"{recorded_name(who)}: {reason}".removesuffix(": ")
        try:
            await locator.temporal.get_workflow_handle(described.run.id).cancel(reason=text)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise _just_ended_error(described.run.id) from error
            raise
    if (why := await unanswered_reset(locator.temporal, described.run.id)) is not None:
        return CancelResult("requested", f"recorded in Temporal, but {why}")
    return CancelResult(
        "requested",
        "recorded in Temporal, but no worker has answered yet; the next worker undoes the saga unless it is past the"
        " point of no return",
    )


async def signal(
    locator: Locator, saga_id: str, name: str, data: Any = None, *, who: str | None = None, reject: str | None = None
) -> str | None:
    """Complete a `wait`, or reject it with the reason ``reject``. Early signals are kept; the first of a name counts.

    Returns a note if no worker has said that it takes the sent signal; else None. Raises RefusedError if the saga has
    ended or its worker lacks the key with which this process encrypts, UsageError if there is no such saga, it has no
    `wait` of that name, or cannot read ``data``.
    """
    temporal = locator.temporal
    message = signal_message(name, data, by=who or temporal.identity, reject=reject)
    described = await _open_run(locator, saga_id)
    has_key = await require_key_at_worker(temporal, described.run)
    definition = await read_definition(temporal, described.run, locator.settings) if has_key else None
    if definition is not None:
        check_signal(definition, name)
    try:
        await temporal.get_workflow_handle(described.run.id).signal(name, message)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise _just_ended_error(saga_id) from error
        raise
    if definition is not None:
        return None
    taken = "the next worker receives the signal"
    if not has_key:
        taken += f", and ignores it if it lacks the key {encrypting_key(temporal)} with which it is encrypted"
    return f"not checked whether {saga_id} waits for {name}, as no worker answers; {taken}"


def signal_message(name: str, data: Any, *, by: str, reject: str | None) -> dict[str, Any]:
    """A signal with its sender. Raises UsageError if the saga could not read it: it would ignore the signal."""
    message = {"_saga": {"by": by, "reject": reject}, "data": data}
    problem = json_problem(message)
    if problem is None and has_more_values(encode_json(data), MAX_RESULT_VALUES):
        problem = f"it has more than {MAX_RESULT_VALUES:,} values"
    if problem is not None:
        raise UsageError(f"the data of the signal {name} is not valid: {problem}")
    return message


def check_signal(definition: Definition, name: str) -> None:
    """Raise UsageError if no `wait` can take a signal of this name; a name given by an expression may be any."""
    waits = [step.do.with_ or {} for step in definition.steps if step.do.uses == "wait"]
    names = [str(arguments["signal"]) for arguments in waits if "signal" in arguments]
    if name in names or any("${{" in text for text in names):
        return
    waits = f"it waits for {', '.join(names)}" if names else "it has no `wait` step for a signal"
    raise UsageError(
        f"{definition.saga} has no `wait` for the signal {name}{did_you_mean(name, tuple(names))}", help=waits
    )


async def pause(locator: Locator, saga_id: str, *, reason: str = "", who: str | None = None) -> SagaView:
    """Stop a running saga from starting calls, in either direction, until :func:`resume`; returns the view afterwards.

    What is in flight goes on. Raises RefusedError if the saga has ended, UsageError if there is no such saga.
    """
    request = {"reason": reason, "who": who or locator.temporal.identity}
    return await _answered_update(locator, saga_id, "pause", request)


async def resume(locator: Locator, saga_id: str, *, reason: str = "", who: str | None = None) -> SagaView:
    """Let a paused saga go on; returns the view afterwards. Raises like :func:`pause`, and if it is not paused."""
    request = {"reason": reason, "who": who or locator.temporal.identity}
    return await _answered_update(locator, saga_id, "resume", request)


async def _answered_update(locator: Locator, saga_id: str, update: str, request: Mapping[str, Any]) -> SagaView:
    temporal = locator.temporal
    described = await _open_run(locator, saga_id)
    await _require_poller(temporal, described.run.task_queue, described.run.id)
    answer = await _execute_update(temporal, described.run.id, update, request, UPDATE_TIMEOUT)
    return _answered_view(answer, described.run.id)


async def resolve(
    locator: Locator,
    saga_id: str,
    decision: Mapping[str, Any],
    keys: SigningKeys | None = None,
    *,
    web_ui: str | None = None,
) -> SagaView:
    """Decide about a parked step or a notification; returns the view afterwards. ``keys`` sign new arguments and
    definitions.

    ``web_ui``, its address, is for the link in the view, which no worker knows.

    Raises RefusedError if the decision is not possible.
    """
    temporal = locator.temporal
    if is_notification(decision):
        given = {**decision, "reason": await masked_reason(locator, saga_id, decision.get("reason") or "")}
        queue = None if locator.settings is None else locator.settings.temporal.task_queue
        await decide_notification(temporal, await read_view(locator, saga_id), given, queue=queue)
        return await read_view(locator, saga_id, web_ui=web_ui)
    described = await _open_run(locator, saga_id)
    await _require_poller(temporal, described.run.task_queue, described.run.id)
    request, update_id = dict(decision), str(uuid.uuid4())
    if keys is not None:
        content = message_content([described.run.id, described.run.run_id, update_id], decision)
        request["signature"] = keys.sign("decision", content)
    answer = await _execute_update(temporal, described.run.id, "resolve", request, UPDATE_TIMEOUT, update_id)
    link = web_ui_link(web_ui, temporal.namespace, described.run.id, described.run.run_id)
    return replace(_answered_view(answer, described.run.id), web_ui=link)


def _answered_view(answer: Any, saga_id: str) -> SagaView:
    view = read_foreign_view(answer, saga_id)
    if view is None:
        raise RefusedError(f"{saga_id} is run by a worker that is not of this engine: {NO_VIEW}")
    return view


async def preview_decision(locator: Locator, saga_id: str, decision: Mapping[str, Any]) -> list[str]:
    """The immediate consequences of a decision, in words, computed on a copy of the saga's state machine.

    Raises RefusedError if the decision is not possible.
    """
    from sagas.machine.machine import Machine
    from sagas.protocol.messages import DecisionMade

    temporal = locator.temporal
    if is_notification(decision):
        check_notification_decision(await read_view(locator, saga_id), decision)
        return ["it is sent again" if decision["decision"] == "retry" else "it is closed undelivered"]
    workflow = await _asked_workflow(locator, saga_id)
    await _require_poller(temporal, workflow.run.task_queue, saga_id)
    try:
        packed = await _begun_machine(locator, workflow, saga_id)
    except (RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError) as error:
        raise NoAnswer(
            f"the effect of the decision on {saga_id} cannot be computed: {error}",
            help="saga list --stuck    shows whether its worker fails",
        ) from error
    if packed is None:
        raise RefusedError(f"{saga_id} has not started yet, so there is nothing to decide")
    if decision.get("step") == RELEASE_ACTIVITY and decision.get("decision") == "skip":
        return ["if the saga is releasing its locks, it ends without that"]
    machine = Machine.restore(unpack_state(packed))
    fields = {name: decision.get(name) for name in ("step", "decision", "reason", "who", "definition", "result")}
    event = DecisionMade(
        **fields,  # pyright: ignore[reportArgumentType]
        at=time.time(),
        arguments=decision.get("with"),
        evidence=decision.get("evidence"),
    )
    refusal = machine.check_decision(event)
    if refusal is not None:
        raise RefusedError(f"{saga_id}: {refusal}")
    return consequences(machine, event)


async def _asked_workflow(locator: Locator, saga_id: str) -> RunDescription:
    """The open run of a saga, or the bulk workflow that runs it: a question does not make it leave. Raises like
    :func:`_open_run`.
    """
    location = await locator.locate_known(saga_id)
    if location.open_run is None and location.member is not None and location.member.open:
        assert location.workflow is not None
        return location.workflow
    return await _open_run(locator, saga_id)


async def _begun_machine(locator: Locator, workflow: RunDescription, saga_id: str) -> str | None:
    """The state of the machine of a saga; None if its run does not begin soon, as one that `saga resume` has started.

    ``workflow``: its run, or that of its undo or of its bulk workflow.
    """
    keys, run = verifying_keys(locator.settings), (workflow.run.id, workflow.run.run_id)
    member = saga_id if workflow.run.workflow_type == BULK_WORKFLOW else None
    for _ in range(_LOOKS):
        packed = await query_machine(
            locator.temporal, run, keys, member=member, timeout=timedelta(seconds=UPDATE_TIMEOUT)
        )
        if packed is not None and unpack_state(packed)["started_at"] is not None:
            return packed
        await asyncio.sleep(_LOOK_INTERVAL)
    return None


async def undo(locator: Locator, saga_id: str, *, reason: str, who: str, task_queue: str) -> str:
    """Start the undo of a completed saga; returns its workflow id. Raises RefusedError if it cannot be undone.

    A saga that only the ledger knows is undone on ``task_queue``.
    """
    view = await require_undoable(locator, saga_id)
    location = await locator.locate(view.id)
    if location.member is not None:
        location = await leave_bulk_workflow(locator, location.member)  # its end is in the ledger then
    queue = task_queue if location.run is None else location.run.run.task_queue
    await _require_poller(locator.temporal, queue, view.id)
    undoes = EndedStart(view.generation or 1, view.started_at or "")
    return await start_undo(locator, view.id, view.saga, queue, reason=reason, who=who, undoes=undoes)


async def require_undoable(locator: Locator, saga_id: str) -> SagaView:
    """The view of a completed saga that can be undone. Raises RefusedError if it cannot, UsageError if unknown."""
    view = await with_accesses(locator, await read_view(locator, saga_id))
    is_undoing = view.state == "COMPENSATING" or (view.phase == "backward" and not view.ended_at)
    if is_undoing and view.repeated_from is None:
        raise RefusedError(f"{saga_id} is already being undone", help=saga_command("watch", saga_id))
    if view.state != "COMPLETED":
        before_commit = view.state not in FINAL_STATES and view.can_be_cancelled
        doubt = f" as far as Temporal knows, and {view.incomplete}" if view.incomplete else ""
        raise RefusedError(
            f"{saga_id} is {view.state}{doubt}; only a COMPLETED saga can be undone",
            help=saga_command("cancel" if before_commit else "show", saga_id),
        )
    if not view.can_undo:
        raise RefusedError(
            f"{saga_id} cannot be undone: {view.undo_refusal or 'the state from which an undo starts is not kept'}",
            help=saga_command("show", saga_id),
        )
    return view


async def _open_run(locator: Locator, saga_id: str) -> RunDescription:
    """The open run, the saga's or its undo's.

    Raises UsageError if unknown, RefusedError if it has ended, or is encrypted with a key that is not here.
    """
    location = await locator.locate_known(saga_id)
    await _require_key(locator, location)
    if location.member is not None and location.open_run is None:
        location = await leave_bulk_workflow(locator, location.member)
    if location.open_run is None:
        raise _ended_error(await read_view(locator, saga_id))
    return location.open_run


async def _require_key(locator: Locator, location: Location) -> None:
    """Raise RefusedError if the open run is encrypted with a key that is not here: no message to it may be sent.

    Its worker could not read it, and each workflow task of the run would fail.
    """
    bulk = None if location.member is None else location.member.bulk
    described = location.open_run or bulk
    if described is None:
        return
    try:
        await first_input(locator.temporal, described, locator.keys)
    except EncryptedInput as error:
        raise RefusedError(
            f"{location.saga_id} cannot be operated here: {error.message}", help="run the command where the key is"
        ) from error
    except (UnreadableRunInput, RPCError):
        return


def _ended_error(view: SagaView, kind: type[RefusedError] = RefusedError) -> RefusedError:
    """The error about a saga without an open run."""
    if view.source == "ledger" and view.state not in FINAL_STATES:
        return kind(
            f"Temporal has no run of {view.id} any more, which was {view.state}; start it again",
            help=saga_command("resume", view.id),
        )
    return kind(f"{view.id} has already ended {view.state}", help=saga_command("show", view.id))


async def _require_poller(temporal: Temporal, queue: str, saga_id: str) -> None:
    if not await count_pollers(temporal, queue):
        raise NoAnswer(f"{absence_message(queue)}, so {saga_id} cannot answer; start a worker", help=START_WORKER_HELP)


async def _execute_update(
    temporal: Temporal, saga_id: str, name: str, argument: Any, timeout: float, update_id: str | None = None
) -> Any:
    try:
        return await send_update(temporal, saga_id, name, [argument], timeout=timeout, update_id=update_id)
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        if isinstance(cause, ApplicationError):
            message = cause.message
            raise RefusedError(message if saga_id in message else f"{saga_id}: {message}") from None
        help = saga_command("show", saga_id)
        raise SagaError(f"{saga_id} refused the request `{name}`: {cause}", help=help) from error
    except UNREADABLE_PAYLOAD as error:
        raise SagaError(f"the answer of {saga_id} to the request `{name}` cannot be read: {error}") from error
    except TimeoutError:
        raise NoAnswer(
            f"no worker has answered the {name} of {saga_id} within {timeout:g} s; it is not recorded, but "
            f"{MAY_STILL_HAPPEN}",
            help=f"saga list --stuck    shows why; check `{saga_command('show', saga_id)}` before you repeat it",
        ) from None
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            described = await describe_run(temporal, saga_id)
            if described is not None and described.run.running:  # the server has lost the request, e.g. on a restart
                raise NoAnswer(f"Temporal has lost the {name} of {saga_id}; send it again") from error
            raise _just_ended_error(saga_id) from error
        if error.status is RPCStatusCode.FAILED_PRECONDITION:
            raise SagaError(
                f"Temporal passes no {name} on to {saga_id}, because its workflow task fails again and again",
                help=f"{saga_command('show', saga_id)}    shows why",
            ) from error
        raise
