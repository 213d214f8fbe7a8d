"""The start of a run: from a continued run, from the header that `sagas.Client` sends, or from `saga.load`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from sagas.definition.model import Definition
from sagas.definition.snapshot import from_snapshot
from sagas.definition.step_graph import ExecutionPlan
from sagas.machine.machine import Machine
from sagas.protocol.messages import CancelRequested, MachineEvent, Started, TimerFired, UndoRequested
from sagas.protocol.payloads import (
    DEFINITION_HEADER,
    GENERATION_HEADER,
    LOAD_ACTIVITY,
    OWNER_HEADER,
    UNDO_SUFFIX,
    pack_state,
    unpack_state,
)
from sagas.protocol.saga_ids import saga_id_problem
from sagas.workflow.failures import activity_message, refused_error
from sagas.workflow.limits import STATE_LIMIT, limit_summary

CONTINUATION_FORMAT = "sagas/1"
"""Marks the input of a continued run, and names its format."""

CHECKS_IDS = "checks-ids"
"""The Temporal patch id of :func:`refuse_foreign_id`; only a run that is refused has its marker."""


@dataclass(frozen=True, slots=True)
class RunStart:
    """The machine of a run, its first event, the search attributes it may set, and state of the run it continues.

    ``takes up``: the earlier run was terminated, and this one continues from its last state.
    """

    kind: Literal["begins", "undoes", "takes up", "continues"]
    machine: Machine
    event: MachineEvent
    attributes: frozenset[str]
    native_cancel: bool = False
    state_recorded: bool = False


async def start_run(value: Any) -> RunStart:
    """Create or restore the machine of the current run, started with ``value``.

    Raises SagaApplicationError when its id belongs to another run, or the definition or the run to undo cannot be
    loaded.
    """
    info = workflow.info()
    if info.continued_run_id is not None and isinstance(value, dict) and value.get("_saga") == CONTINUATION_FORMAT:
        return _continue_run(value)
    refuse_foreign_id()
    if info.workflow_id.endswith(UNDO_SUFFIX):
        return _undo_run(await _load(value, info.workflow_id.removesuffix(UNDO_SUFFIX)))
    definition = info.headers.get(DEFINITION_HEADER)
    if definition is not None:
        known = read_header(definition.data)
    else:
        loaded = await _load(value, None)
        known, value = to_run_header(loaded), loaded["input"]
    generation = info.headers.get(GENERATION_HEADER)
    machine = Machine(
        known.definition,
        value,
        info.workflow_id,
        generation=1 if generation is None else int(workflow.payload_converter().from_payload(generation)),
        variables=known.variables,
        plan=known.plan,
        parent=info.parent.workflow_id if info.parent else None,
    )
    return RunStart("begins", machine, Started(at=workflow.time()), known.attributes)


def refuse_foreign_id(*, needs_owner: bool = False) -> None:
    """Raise SagaApplicationError if the run has an id that only the engine gives, and the engine has not started it.

    Nested sagas and notifications have a parent, which Temporal itself records; runs that our clients start for a saga
    have a header. A run that an older worker has accepted goes on.
    """
    info = workflow.info()
    owner = info.parent.workflow_id if info.parent is not None else _owner_in_header()
    problem = saga_id_problem(info.workflow_id, owner=owner)
    if problem is None and needs_owner and owner is None:
        problem = f"{info.workflow_type} is started by a saga only; start the saga"
    if problem is not None and workflow.patched(CHECKS_IDS):
        raise refused_error(problem)


def _owner_in_header() -> str | None:
    header = workflow.info().headers.get(OWNER_HEADER)
    try:
        return None if header is None else str(workflow.payload_converter().from_payload(header))
    except (KeyError, RuntimeError, TypeError, ValueError):
        return None  # any client may send any header


def continuation_input(machine: Machine, attributes: frozenset[str], *, native_cancel: bool, recorded: bool) -> Any:
    """The input for continue-as-new; None when the state is too large."""
    state = pack_state(machine.snapshot())
    if len(state) >= STATE_LIMIT:
        workflow.logger.warning("state of %d bytes exceeds the limit of continue-as-new, the run continues", len(state))
        return None
    return {
        "_saga": CONTINUATION_FORMAT,
        "machine": state,
        "attributes": sorted(attributes),
        "native_cancel": native_cancel,
        "recorded": recorded,
    }


def _continue_run(handed: Mapping[str, Any]) -> RunStart:
    return RunStart(
        "continues",
        Machine.restore(unpack_state(handed["machine"])),
        TimerFired(id="continued", at=workflow.time()),
        frozenset(handed["attributes"]),
        handed["native_cancel"],
        handed["recorded"],
    )


def _undo_run(loaded: Mapping[str, Any]) -> RunStart:
    who, reason = loaded.get("who") or "unknown", loaded.get("reason") or "undone"
    machine, attributes = Machine.restore(loaded["machine"]), frozenset(loaded.get("attributes", ()))
    if machine.finished:
        return RunStart("undoes", machine, UndoRequested(at=workflow.time(), reason=reason, who=who), attributes)
    event = CancelRequested(at=workflow.time(), kind="terminated", who=who, message=reason)
    return RunStart("takes up", machine, event, attributes)


async def _load(value: Any, undo_of: str | None) -> dict[str, Any]:
    info = workflow.info()
    try:
        return await workflow.execute_activity(
            LOAD_ACTIVITY,
            {"saga": info.workflow_type, "input": value, "undo_of": undo_of},
            activity_id=LOAD_ACTIVITY,
            result_type=dict,
            summary=limit_summary(f"read the definition of {info.workflow_type}"),
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(maximum_attempts=1_000_000, maximum_interval=timedelta(seconds=10)),
        )
    except ActivityError as error:
        raise refused_error(activity_message(error)) from None


# --- run header, decoded once per worker: all runs of one definition carry the same bytes ----------------------------


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
    """Decode the result of ``saga.load``. Raises KeyError or TypeError if it is malformed."""
    definition = from_snapshot(loaded["definition"])
    attributes = frozenset(loaded.get("attributes", ()))
    return RunHeader(definition, ExecutionPlan(definition), loaded.get("vars") or {}, attributes)


@lru_cache(maxsize=256)
def read_header(data: bytes) -> RunHeader:
    """Decode the JSON header of `sagas.Client`. The cache also keeps the compiled expressions of the plan."""
    return to_run_header(json.loads(data))
