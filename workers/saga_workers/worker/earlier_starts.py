"""Verifies that a saga has begun before its newest run, as a field in the memo of the run claims.

Any client may start a run with any memo. The engine writes the field where a workflow continues itself as a new run,
which Temporal records, and where a saga leaves its bulk workflow, which is signed.
"""

from __future__ import annotations

from temporalio.api.enums.v1 import ContinueAsNewInitiator
from temporalio.client import Client as Temporal

from saga_workers.bulk.signed_departures import departed_from
from saga_workers.temporal.run_history import start_of_run
from saga_workers.temporal.run_times import PRECISION
from saga_workers.temporal.temporal_runs import RunInfo, describe_run
from sagas.protocol.payloads import RESUMED_HEADER
from sagas.settings.signing_keys import SigningKeys

_BY_WORKFLOW = ContinueAsNewInitiator.CONTINUE_AS_NEW_INITIATOR_WORKFLOW


async def has_begun_before(temporal: Temporal, run: RunInfo, claimed: float, keys: SigningKeys | None) -> bool:
    """True if the saga of the run has begun at the ``claimed`` time, or nobody can tell any more. ``keys``: those that
    have signed what sagas of the task queue begin with; None if that is not known.

    Raises RPCError.
    """
    started = await start_of_run(temporal, run.id, run.run_id)
    if started is None:
        return True
    if started.initiator != _BY_WORKFLOW or not started.continued_execution_run_id:
        return await departed_from(run, started, keys) is not None
    first = await start_of_run(temporal, run.id, started.first_execution_run_id)
    described = await describe_run(temporal, run.id, started.first_execution_run_id)
    if first is None or described is None:
        return True  # Temporal deletes the first runs of a long chain
    if RESUMED_HEADER in first.header.fields:
        return True
    is_within = described.run.start_time.timestamp() - PRECISION <= claimed
    return is_within or await departed_from(described.run, first, keys) is not None
