"""The start of a run: from a continued run, from the header that `sagas.Client` sends, or from `saga.load`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import FailureError

from sagas.bulk.names import TAKE_ACTIVITY
from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Definition
from sagas.definition.saga_ids import saga_id_problem
from sagas.definition.snapshot import from_snapshot
from sagas.input_limits import MAX_CANCEL_WORDS
from sagas.machine.machine import Machine
from sagas.protocol.messages import CancelRequested, MachineEvent, Started, TimerFired, UndoRequested
from sagas.protocol.origin import root_start_of, same_owner
from sagas.protocol.payloads import (
    BULK_PREFIX,
    CANCELLED_MEMO,
    DEFINITION_HEADER,
    DETACHED_HEADER,
    LOAD_ACTIVITY,
    OUTCOME_MEMO,
    OWNER_HEADER,
    PAUSE_MEMO,
    REFUSED_TYPE,
    REPEATS_MEMO,
    ROOT_START_MEMO,
    SIGNATURE_HEADER,
    UNDO_SCOPE_MEMO,
    UNDO_SUFFIX,
    VERIFY_ACTIVITY,
    pack_state,
    unpack_state,
)
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES, MAX_STATE_CHARACTERS, size_problem
from sagas.text.exact_json import decode_json
from sagas.text.json_values import parse_json
from sagas.workflow import repeated_start
from sagas.workflow.client_fields import (
    LAST_SECOND,
    number,
    read_client_value,
    text,
)
from sagas.workflow.engine_activity import perform_until_answered
from sagas.workflow.failures import activity_message, refused_error
from sagas.workflow.json_payloads import bounded_value, raw_json
from sagas.workflow.run_trust import (
    UNSIGNED_REPETITION,
    ProjectTrust,
    RunTrust,
    is_signed_message,
    is_untrusted,
    require_key,
    signed_message,
)
from sagas.workflow.search_attributes import OWN_ATTRIBUTES
from sagas.workflow.sensitive_input import with_marks_of_parent
from sagas.workflow.undo_order import UndoOrder, read_undo_order
from sagas.workflow.unread_inputs import is_left_unread

CONTINUATION_FORMAT = "sagas/1"
"""Marks the input of a continued run, and names its format."""

_CHECK_TIMEOUT = timedelta(seconds=60)
"""Timeout of the check of an input, which may have to wait for other checks."""


@dataclass(frozen=True, slots=True)
class RunStart:
    """The machine of a run, its first event, the search attributes it may set, and state of the run it continues.

    ``takes up``: the earlier run was terminated, and this one continues from its last state. ``detached``: it continues
    a saga of a bulk workflow. ``repeats``: it begins a saga again whose run was deleted; ``cancelled``: only to undo
    it, for this reason.
    """

    kind: Literal["begins", "undoes", "takes up", "continues", "detached"]
    machine: Machine
    event: MachineEvent
    attributes: frozenset[str]
    native_cancel: bool = False
    state_recorded: bool = False
    paused: Mapping[str, Any] | None = None
    callbacks: Mapping[str, Any] = field(default_factory=dict[str, Any])
    repeats: bool = False
    cancelled: str = ""


async def start_run(args: Sequence[RawValue], trust: RunTrust | None) -> RunStart:
    """Create or restore the machine of the current run, started with ``args``.

    Without ``trust`` no header is accepted, except in a replay. Raises SagaApplicationError when its id belongs to
    another run, or when the definition or the run to undo cannot be loaded or are not this project's, and
    UnreadableValue for an input that cannot be read.
    """
    info = workflow.info()
    is_unread = _is_started_by_name(info) and is_left_unread(args)
    value = None if is_unread else bounded_value(args)
    if _was_continued(info) and isinstance(value, dict) and value.get("_saga") == CONTINUATION_FORMAT:
        return _continue_run(value, trust)
    refuse_foreign_id()
    if info.workflow_id.endswith(UNDO_SUFFIX):
        order = read_undo_order(value, trust)
        undo_of = info.workflow_id.removesuffix(UNDO_SUFFIX)
        return _undo_run(await _load(value, undo_of, run_id=order.run_id), order)
    if (signed := info.headers.get(DETACHED_HEADER)) is not None:
        return await _detached_run(value, signed, trust)
    generation, resumed = repeated_start.generation_in_header(), repeated_start.resumption_in_header()
    earlier = repeated_start.earlier_in_headers()
    sent = info.headers.get(DEFINITION_HEADER)
    if sent is not None:
        verified = await _verify_start(info.workflow_type, {info.workflow_id: value}, sent, earlier, trust)
        value = verified.completed.get(info.workflow_id, value)
        header = read_header(sent.data)
    else:
        _refuse_unsigned(earlier, trust)
        loaded = await _load(value, None, is_unread=is_unread)
        header, value = to_run_header(loaded), loaded["input"]
    definition = with_marks_of_parent(header.definition)
    parent = _parent_saga()
    repeats = resumed.who is not None or (parent is not None and REPEATS_MEMO in info.raw_memo)
    machine = Machine(
        definition,
        value,
        info.workflow_id,
        generation=generation,
        generations=resumed.generations,
        variables=header.variables,
        plan=header.plan if definition is header.definition else None,
        parent=parent,
        undo_scope="" if parent is None else _text_in_memo(UNDO_SCOPE_MEMO, "the scope of an undo"),
        root_start=resumed.root_start if parent is None else _root_start_in_memo(),
        repeats=repeats,
        repeats_since=None if parent is None else _since_in_memo(),
        told_committed=resumed.committed,
        told_undone=resumed.undone,
        undecided=resumed.undecided,
        redelivery=repeated_start.redelivery_in_header(),
    )
    if resumed.who is not None:
        machine.note_pause("resume", workflow.time(), resumed.who, resumed.reason)
    began_at = _recorded_start() if resumed.began_at is None else resumed.began_at
    started = Started(workflow.time(), began_at)
    cancelled = resumed.cancelled or (_text_in_memo(CANCELLED_MEMO, "a reason")[:MAX_CANCEL_WORDS] if repeats else "")
    return RunStart("begins", machine, started, header.attributes, repeats=repeats, cancelled=cancelled)


def _is_started_by_name(info: workflow.Info) -> bool:
    """True if the definition and the check of the input are those of a worker's files."""
    has_header = not info.headers.keys().isdisjoint((DEFINITION_HEADER, DETACHED_HEADER))
    return not (has_header or _was_continued(info) or info.workflow_id.endswith(UNDO_SUFFIX))


def _recorded_start() -> float:
    """When Temporal has recorded the start of the current run: the same time in each run that a reset makes of it."""
    return workflow.info().workflow_start_time.timestamp()


def drop_forged_outcome() -> None:
    """Delete what the start of this run, which any client may have made, says about the state and the end of a saga.

    Of a run of any type: a reader of a closed run finds what the run itself has left, or nothing.
    """
    info = workflow.info()
    if forged_memo := {name: None for name in (OUTCOME_MEMO, PAUSE_MEMO) if name in info.raw_memo}:
        workflow.upsert_memo(forged_memo)
    if _was_continued(info):
        return
    attributes = info.typed_search_attributes
    forged = [key for pair in attributes if (key := pair.key).name in OWN_ATTRIBUTES]
    if forged:
        workflow.upsert_search_attributes([key.value_unset() for key in forged])


def refuse_foreign_id(*, needs_owner: bool = False) -> None:
    """Raise SagaApplicationError if the run has an id that only the engine gives, and the engine has not started it.

    Nested sagas and notifications have a parent, which Temporal itself records; runs that our clients start for a saga
    have a header.
    """
    info = workflow.info()
    owner = info.parent.workflow_id if info.parent is not None else _owner_in_header()
    problem = saga_id_problem(info.workflow_id, owner=owner)
    if problem is None and needs_owner and owner is None:
        problem = f"{info.workflow_type} is started by a saga only; start the saga"
    if problem is not None:
        raise refused_error(problem)


def _owner_in_header() -> str | None:
    header = workflow.info().headers.get(OWNER_HEADER)
    return (
        None
        if header is None
        else read_client_value(f"the header {OWNER_HEADER} is not the id of a saga", header, text)
    )


def _was_continued(info: workflow.Info) -> bool:
    """True if a worker continued the previous run as new.

    A client can also make Temporal start a run after another one, with an input of its choice: by a retry policy or a
    cron schedule.
    """
    return info.continued_run_id is not None and info.attempt == 1 and info.cron_schedule is None


def _text_in_memo(name: str, what: str) -> str:
    """The text that the parent has set; empty without one. Raises SagaApplicationError for another value."""
    memo = workflow.info().raw_memo.get(name)
    return "" if memo is None else read_client_value(f"the memo {name} is not {what}", memo, text)


def _since_in_memo() -> float | None:
    """Since when an earlier run of the nested saga may have begun; None if its parent does not say that.

    Raises SagaApplicationError for another value.
    """
    memo = workflow.info().raw_memo.get(REPEATS_MEMO)
    if memo is None:
        return None
    return read_client_value(f"the memo {REPEATS_MEMO} is not a time", memo, _time_or_true)


def _time_or_true(value: Any) -> float | None:
    return None if value is True else number(value, 0, LAST_SECOND)


def _parent_saga() -> str | None:
    """The id of the saga in which this one is nested. None for the child of another workflow: it does not undo it, and
    does not say of which root saga it is, as each saga does.
    """
    info = workflow.info()
    return info.parent.workflow_id if info.parent is not None and ROOT_START_MEMO in info.raw_memo else None


def _root_start_in_memo() -> str:
    return _text_in_memo(ROOT_START_MEMO, "the start of the root saga")


def _refuse_unsigned(earlier: Mapping[str, Any], trust: RunTrust | None) -> None:
    """Raise SagaApplicationError for a start by name that says anything of earlier runs: it has no signature.

    Another generation makes the effects of a saga that has ended once more.
    """

    def is_signed(trust: ProjectTrust) -> bool:
        return trust.is_signed_start(workflow.info().workflow_id, {}, b"", None, _recorded_start(), earlier)

    if earlier and is_untrusted(trust, is_signed, proof=is_signed):
        raise refused_error(UNSIGNED_REPETITION)


@dataclass(frozen=True, slots=True)
class VerifiedStart:
    """The verdict on the inputs of a start, by the ids of their sagas.

    ``refused``: why some are refused. ``completed``: the normalised form of those that were sent in another one.
    """

    refused: Mapping[str, str] = field(default_factory=dict)
    completed: Mapping[str, Any] = field(default_factory=dict)


async def verify_bulk_start(
    saga: str, starts: Mapping[str, Any], trust: RunTrust | None, *, again: bool
) -> tuple[RunHeader, VerifiedStart]:
    """The header of a bulk workflow, if its definition may run, and the verdict on its inputs. ``again``: it starts
    sagas that have ended without completing as a new generation.

    Raises SagaApplicationError when there is none, when the worker refuses, or when the id is not that of a bulk
    workflow.
    """
    info = workflow.info()
    header = info.headers.get(DEFINITION_HEADER)
    if header is None or not info.workflow_id.startswith(BULK_PREFIX):
        raise refused_error(f"{info.workflow_type} is started by `saga start --from --bulk` and its like only")
    verified = await _verify_start(saga, starts, header, {"again": True} if again else {}, trust)
    return read_header(header.data), verified


async def _verify_start(
    saga: str, starts: Mapping[str, Any], header: Payload, earlier: Mapping[str, Any], trust: RunTrust | None
) -> VerifiedStart:
    """Check that the definition may run, with at least one of the inputs.

    What the first workflow task does not trust, an activity decides, which can read the project's files.

    Raises SagaApplicationError if the worker refuses all of it.
    """
    info = workflow.info()
    signed = info.headers.get(SIGNATURE_HEADER)
    signature = None if signed is None else json_or_none(signed.data)
    at = _recorded_start()
    start = (info.workflow_id, starts, header.data, signature, at, earlier)
    if is_untrusted(
        trust,
        lambda trust: trust.trusts_start(saga, *start),
        proof=lambda trust: trust.is_signed_start(*start),
    ):
        request = {
            "saga": saga,
            "workflow_id": info.workflow_id,
            "starts": starts,
            "header": header.data.decode("utf-8", "replace"),
            "signature": signature,
            "at": at,
            **({"earlier": earlier} if earlier else {}),
        }
        if len(raw_json(request).payload.data) > MAX_PAYLOAD_BYTES:
            raise refused_error(
                f"the start of {saga} is too large to be checked; only a client of the project starts it"
            )
        answer = await _execute(VERIFY_ACTIVITY, request, f"verify the definition of {saga}")
        return VerifiedStart(answer.get("refused", {}), answer.get("completed", {}))
    return VerifiedStart()


def json_or_none(data: bytes) -> Any:
    """A JSON value from any client; None if it is malformed or out of bounds."""
    try:
        return parse_json(data)
    except ValueError:
        return None


def continuation_input(
    machine: Machine,
    attributes: frozenset[str],
    *,
    native_cancel: bool,
    recorded: bool,
    paused: Mapping[str, Any] | None,
    callbacks: Mapping[str, Any],
) -> Any:
    """The input for continue-as-new; None when the state is too large."""
    state = pack_state(machine.snapshot())
    waiting = pack_state(callbacks) if callbacks else ""
    if (size := len(state) + len(waiting)) >= MAX_STATE_CHARACTERS:
        workflow.logger.warning("state of %d bytes exceeds the limit of continue-as-new, the run continues", size)
        return None
    info = workflow.info()
    return signed_message(
        "continuation",
        [info.workflow_type, info.workflow_id, info.run_id],
        {
            "_saga": CONTINUATION_FORMAT,
            "machine": state,
            "attributes": sorted(attributes),
            "native_cancel": native_cancel,
            "recorded": recorded,
            **({} if paused is None else {"paused": paused}),
            **({"callbacks": waiting} if waiting else {}),
        },
    )


def _continue_run(handed: Mapping[str, Any], trust: RunTrust | None) -> RunStart:
    """Go on with the state of the run before.

    Raises SagaApplicationError if no worker of this project has handed it to this run: anybody may poll the task queue,
    and continue a run of any workflow as a saga. Raises KeyMissing, however long, if another worker may have the key:
    a saga that has effects is not refused.
    """
    info = workflow.info()
    this = [info.workflow_type, info.workflow_id, info.continued_run_id or ""]
    require_key(trust, "state", handed.get("signature"), "the state of the run before", gives_up=False)
    if not is_signed_message("continuation", this, handed):
        raise refused_error("this is not a state that a run of this project has handed on")
    return RunStart(
        "continues",
        Machine.restore(unpack_state(handed["machine"])),
        TimerFired(id="continued", at=workflow.time()),
        frozenset(handed["attributes"]),
        handed["native_cancel"],
        handed["recorded"],
        handed.get("paused"),
        unpack_state(handed["callbacks"]) if "callbacks" in handed else {},
    )


async def _detached_run(value: Any, signed: Payload, trust: RunTrust | None) -> RunStart:
    """Go on with a saga of a bulk workflow.

    Raises SagaApplicationError if the worker of the first task refuses, or if another run has gone on with the saga:
    everybody who reads the start in a history can send it once more, after its end.
    """
    id, signature = workflow.info().workflow_id, json_or_none(signed.data)

    def is_signed(trust: ProjectTrust) -> bool:
        return trust.trusts_detached(id, value, signature)

    if is_untrusted(trust, is_signed, proof=is_signed):
        raise refused_error("this is not a saga that a bulk workflow of this project has started")
    machine = Machine.restore(unpack_state(value["machine"]))
    attributes = frozenset(value["attributes"])
    claim = {"saga_id": id, "claimed_at": value["claimed_at"], "run_id": workflow.info().first_execution_run_id}
    if claim["claimed_at"] is not None:  # without it, the claim is one of a single start, which may have been made
        answer = await _execute(TAKE_ACTIVITY, claim, "go on after the bulk workflow")
    else:
        answer = {"taken": True}
    if not answer.get("taken"):
        raise refused_error("this saga has left its bulk workflow before, and has gone on in another run")
    if machine.started_at is None:
        return RunStart("begins", machine, Started(workflow.time(), _recorded_start()), attributes)
    return RunStart("detached", machine, TimerFired(id="detached", at=workflow.time()), attributes)


def _undo_run(loaded: Mapping[str, Any], order: UndoOrder) -> RunStart:
    machine = Machine.restore(unpack_state(loaded["machine"]))
    if workflow.info().parent and not same_owner(root_start_of(machine.origin()), _root_start_in_memo()):
        raise refused_error("the nested saga is that of another saga with the id of its parent")
    if refusal := order.refusal(machine):
        raise refused_error(refusal)
    attributes = frozenset(loaded.get("attributes", ()))
    if machine.finished:
        return RunStart("undoes", machine, UndoRequested(workflow.time(), order.reason, order.who), attributes)
    event = CancelRequested(workflow.time(), "terminated", order.who, order.reason, order.closed)
    return RunStart("takes up", machine, event, attributes)


async def _load(
    value: Any, undo_of: str | None, *, is_unread: bool = False, run_id: str | None = None
) -> dict[str, Any]:
    saga = workflow.info().workflow_type
    given: dict[str, Any] = {"is_unread": True} if is_unread else {"input": value}
    if run_id is not None:
        given["run_id"] = run_id
    request = {"saga": saga, **given, "undo_of": undo_of}
    return await _execute(LOAD_ACTIVITY, request, f"read the definition of {saga}")


async def _execute(name: str, request: Mapping[str, Any], summary: str) -> dict[str, Any]:
    argument = raw_json(request)
    if (size := len(argument.payload.data)) > MAX_PAYLOAD_BYTES:  # Temporal would refuse the task again and again
        raise refused_error(size_problem("the input with the definition", size))
    try:
        return await perform_until_answered(
            name,
            argument,
            summary,
            activity_id=name,
            timeout=_CHECK_TIMEOUT,
            may_end=lambda type: type == REFUSED_TYPE,
        )
    except FailureError as error:
        raise refused_error(activity_message(error)) from None


@dataclass(frozen=True, slots=True)
class RunHeader:
    """A definition with its plan, the project's variables, and the search attributes registered in the namespace.

    Runs share it, so it must not be modified.
    """

    definition: Definition
    plan: ExecutionPlan
    variables: Mapping[str, Any]
    attributes: frozenset[str]


def to_run_header(loaded: Mapping[str, Any]) -> RunHeader:
    """Decode the result of ``saga.load``, or a header. Raises what :data:`MALFORMED` names if it is malformed."""
    definition = from_snapshot(loaded["definition"])
    attributes, variables = loaded.get("attributes", []), loaded.get("vars") or {}
    if not isinstance(attributes, list) or not isinstance(variables, dict):
        raise TypeError("attributes is a list of names, and vars an object")
    return RunHeader(definition, ExecutionPlan(definition), variables, frozenset(map(text, attributes)))


@lru_cache(maxsize=256)
def read_header(data: bytes) -> RunHeader:
    """Decode the JSON header of `sagas.Client`. The cache also keeps the compiled expressions of the plan."""
    return to_run_header(decode_json(data))
