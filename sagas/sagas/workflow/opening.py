"""How a run begins: from a continued run, from the header our client sends, or from `saga.load`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from sagas.carried import carried, read_header
from sagas.machine.events import CancelRequested, Event, Started, TimerFired, UndoRequested
from sagas.machine.machine import Machine
from sagas.wire import DEFINITION_HEADER, GENERATION_HEADER, LOAD, UNDO_SUFFIX, pack_state, unpack_state
from sagas.workflow.failures import refused, sentence_of
from sagas.workflow.limits import STATE_LIMIT, one_line

MARK = "sagas/1"
"""In the input of a run that continues another one: the form of what it was handed."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The machine of a run, its first event, the search attributes it may set, and what an earlier run knew.

    ``takes up``: the earlier run was terminated, and goes on here where it stood.
    """

    kind: Literal["begins", "undoes", "takes up", "continues"]
    machine: Machine
    event: Event
    attributes: frozenset[str]
    native_cancel: bool = False
    recorded: bool = False


async def open_run(value: Any) -> Opened:
    """The machine for the run we are in, which was started with ``value``. Raises Sentence when there is none."""
    info = workflow.info()
    if info.continued_run_id is not None and isinstance(value, dict) and value.get("_saga") == MARK:
        return _resumed(value)
    if info.workflow_id.endswith(UNDO_SUFFIX):
        return _undoing(await _load(value, info.workflow_id.removesuffix(UNDO_SUFFIX)))
    definition = info.headers.get(DEFINITION_HEADER)
    if definition is not None:
        known = read_header(definition.data)
    else:
        loaded = await _load(value, None)
        known, value = carried(loaded), loaded["input"]
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
    return Opened("begins", machine, Started(at=workflow.time()), known.attributes)


def handed_on(machine: Machine, attributes: frozenset[str], *, native_cancel: bool, recorded: bool) -> Any:
    """The input of the run that continues this one; None when the state is too large to move."""
    state = pack_state(machine.snapshot())
    if len(state) >= STATE_LIMIT:
        workflow.logger.warning("the state has %d bytes and cannot move to a new run", len(state))
        return None
    return {
        "_saga": MARK,
        "machine": state,
        "attributes": sorted(attributes),
        "native_cancel": native_cancel,
        "recorded": recorded,
    }


def _resumed(handed: Mapping[str, Any]) -> Opened:
    return Opened(
        "continues",
        Machine.restore(unpack_state(handed["machine"])),
        TimerFired(id="continued", at=workflow.time()),
        frozenset(handed["attributes"]),
        handed["native_cancel"],
        handed["recorded"],
    )


def _undoing(loaded: Mapping[str, Any]) -> Opened:
    who, reason = loaded.get("who") or "unknown", loaded.get("reason") or "undone"
    machine, attributes = Machine.restore(loaded["machine"]), frozenset(loaded.get("attributes", ()))
    if machine.finished:
        return Opened("undoes", machine, UndoRequested(at=workflow.time(), reason=reason, who=who), attributes)
    event = CancelRequested(at=workflow.time(), kind="terminated", who=who, message=reason)
    return Opened("takes up", machine, event, attributes)


async def _load(value: Any, undo_of: str | None) -> dict[str, Any]:
    info = workflow.info()
    try:
        return await workflow.execute_activity(
            LOAD,
            {"saga": info.workflow_type, "input": value, "undo_of": undo_of},
            activity_id=LOAD,
            result_type=dict,
            summary=one_line(f"read the definition of {info.workflow_type}"),
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(maximum_attempts=1_000_000, maximum_interval=timedelta(seconds=10)),
        )
    except ActivityError as error:
        raise refused(sentence_of(error)) from None
