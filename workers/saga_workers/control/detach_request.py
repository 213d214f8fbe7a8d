"""Gets one saga out of its bulk workflow, so that it can be acted on like any other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowUpdateFailedError

from saga_activities.ledger.claims import Claim
from saga_workers.control.bulk_updates import UPDATE_TIMEOUT, update_bulk_workflow
from saga_workers.ledger.run_ledger import RunLedger
from saga_workers.temporal.temporal_runs import (
    MAY_STILL_HAPPEN,
    START_WORKER_HELP,
    NoAnswer,
    count_pollers,
    describe_run,
    no_poller_message,
)
from sagas.bulk.wire_format import DETACH_UPDATE
from sagas.errors import RefusedError
from sagas.text.shell import saga_command


async def leave_bulk_workflow(
    temporal: Temporal, ledger: RunLedger | None, saga_id: str, *, cancel: Mapping[str, Any] | None = None
) -> bool:
    """Let a saga leave the bulk workflow that runs it, if one does; False if none does.

    ``cancel``: a request as the saga's own update `cancel` takes it, which is processed before the saga leaves.

    Afterwards the saga has a workflow of its own, or it has ended and is in the ledger. Raises RefusedError if its bulk
    workflow was closed by Temporal, NoAnswer if no worker answers, LedgerUnavailable.
    """
    claim = None if ledger is None else await ledger.bulk_claim(saga_id)
    if ledger is None or claim is None or claim.bulk_id is None:
        return False
    described = await describe_run(temporal, claim.bulk_id)
    if described is None or not described.run.running:
        if await ledger.bulk_claim(saga_id) != claim:
            return True  # it has left or ended, and then its bulk workflow was over
        raise RefusedError(
            f"{saga_id} was terminated with its bulk workflow {claim.bulk_id}",
            help=f"{saga_command('reconcile', '--repair')}    continues it, backward or forward",
        )
    queue = described.run.task_queue
    if not await count_pollers(temporal, queue):
        message = f"{no_poller_message(queue)}, so {saga_id} cannot leave its bulk workflow"
        raise NoAnswer(message, help=START_WORKER_HELP)
    await _request(temporal, claim, cancel)
    return True


async def _request(temporal: Temporal, claim: Claim, cancel: Mapping[str, Any] | None) -> None:
    assert claim.bulk_id is not None
    arguments = [claim.saga_id] if cancel is None else [claim.saga_id, cancel]
    try:
        await update_bulk_workflow(temporal, claim.bulk_id, DETACH_UPDATE, arguments)
    except TimeoutError:
        raise NoAnswer(
            f"{claim.saga_id} has not left its bulk workflow {claim.bulk_id} within {UPDATE_TIMEOUT:g} s; the request "
            f"is not recorded, but {MAY_STILL_HAPPEN}",
            help=f"check `{saga_command('show', claim.saga_id)}` before you repeat it",
        ) from None
    except WorkflowUpdateFailedError as error:
        raise NoAnswer(f"{claim.saga_id} cannot leave its bulk workflow: {error.cause}") from error
