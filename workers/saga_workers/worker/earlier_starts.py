"""Verifies that a saga has begun before its newest run, as a field in the memo of the run claims.

Any client may start a run with any memo. The engine writes the field where a workflow continues itself as a new run,
or goes on after a reset, which Temporal records, where a saga leaves its bulk workflow, and where `saga resume` starts
it again, which are signed.
"""

from __future__ import annotations

from temporalio.api.enums.v1 import ContinueAsNewInitiator
from temporalio.api.history.v1 import WorkflowExecutionStartedEventAttributes
from temporalio.client import Client as Temporal

from saga_workers.temporal.foreign_payloads import UNREADABLE_VALUE, read_single_payload
from saga_workers.temporal.run_history import events_of_run, start_of_run
from saga_workers.temporal.run_times import PRECISION
from saga_workers.temporal.signed_departures import departed_from
from saga_workers.temporal.temporal_runs import RunInfo, describe_run
from sagas.protocol.payloads import DEFINITION_HEADER, EARLIER_HEADERS, RESUMED_HEADER, SIGNATURE_HEADER
from sagas.protocol.signed_start import verifies_start
from sagas.settings.signing_keys import SigningKeys
from sagas.workflow.json_payloads import read_payload

_BY_WORKFLOW = ContinueAsNewInitiator.CONTINUE_AS_NEW_INITIATOR_WORKFLOW


async def has_begun_before(temporal: Temporal, run: RunInfo, claimed: float, keys: SigningKeys | None) -> bool:
    """True if the saga of the run has begun at the ``claimed`` time, or nobody can tell any more. ``keys``: those that
    have signed what sagas of the task queue begin with; None if that is not known.

    Raises RPCError.
    """
    started, at = await _start_and_time(temporal, run)
    if started is None:
        return True
    if started.original_execution_run_id != run.run_id and at - PRECISION <= claimed:
        return True  # a reset has made the run, and has copied its first event with its time
    if started.initiator != _BY_WORKFLOW or not started.continued_execution_run_id:
        return await _was_given_over(run, started, claimed, keys)
    first = await start_of_run(temporal, run.id, started.first_execution_run_id)
    described = await describe_run(temporal, run.id, started.first_execution_run_id)
    if first is None or described is None:
        return True  # Temporal deletes the first runs of a long chain
    if RESUMED_HEADER in first.header.fields:
        return True
    is_within = described.run.start_time.timestamp() - PRECISION <= claimed
    return is_within or await departed_from(described.run, first, keys) is not None


async def _start_and_time(
    temporal: Temporal, run: RunInfo
) -> tuple[WorkflowExecutionStartedEventAttributes | None, float]:
    """The start of a run, and its time by the first event of its history; None if the history is deleted."""
    async for event in events_of_run(temporal, run.id, run.run_id, page_size=1):
        return event.workflow_execution_started_event_attributes, event.event_time.ToNanoseconds() / 1e9
    return None, 0.0


async def _was_given_over(
    run: RunInfo, started: WorkflowExecutionStartedEventAttributes, claimed: float, keys: SigningKeys | None
) -> bool:
    """True if a bulk workflow has given the saga a run of its own, or `saga resume` has started it again, and it has
    begun at the ``claimed`` time or before.
    """
    if await departed_from(run, started, keys) is not None:
        return True
    began = await _resumed_start(run, started, keys)
    return began is not None and began - PRECISION <= claimed


async def _resumed_start(
    run: RunInfo, started: WorkflowExecutionStartedEventAttributes, keys: SigningKeys | None
) -> float | None:
    """When the saga has begun that `saga resume` has started again; None for another run. Without ``keys`` nothing is
    verified.
    """
    headers = started.header.fields
    if RESUMED_HEADER not in headers:
        return None
    try:
        input = await read_single_payload(started.input.payloads, run.converter)
        earlier = {name: read_payload(headers[name]) for name in EARLIER_HEADERS if name in headers}
        signature = read_payload(headers[SIGNATURE_HEADER]) if SIGNATURE_HEADER in headers else None
        began = float(earlier[RESUMED_HEADER]["started_at"])
        if keys is None or not keys.keys:
            return began
        start = (run.id, headers[DEFINITION_HEADER].data, {run.id: input}, earlier)
        is_signed = verifies_start(keys, signature, *start, at=None)  # the run itself has judged the time
    except (ArithmeticError, KeyError, TypeError, ValueError, *UNREADABLE_VALUE):
        return None
    return began if is_signed else None
