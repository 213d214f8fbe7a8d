"""Gets one saga out of its bulk workflow, so that it can be acted on like any other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowUpdateFailedError

from saga_activities.ledger.records import Claim
from saga_workers.bulk.bulk_updates import UPDATE_TIMEOUT, update_bulk_workflow
from saga_workers.location.location import BulkMember, Location
from saga_workers.location.locator import Locator
from saga_workers.temporal.temporal_runs import (
    MAY_STILL_HAPPEN,
    START_WORKER_HELP,
    NoAnswer,
    absence_message,
    count_pollers,
)
from sagas.bulk.names import DETACH_UPDATE
from sagas.errors import RefusedError
from sagas.text.shell import saga_command


async def leave_bulk_workflow(
    locator: Locator, member: BulkMember, *, cancel: Mapping[str, Any] | None = None
) -> Location:
    """Let a saga leave the bulk workflow that runs it; returns where it is afterwards.

    ``cancel``: a request as the saga's own update `cancel` takes it, which is processed before the saga leaves.

    Then it has a workflow of its own, or it has ended and is in the ledger. Raises RefusedError if its bulk workflow
    was closed by Temporal, NoAnswer if no worker answers, LedgerUnavailable.
    """
    saga_id = member.claim.saga_id
    if member.bulk is None or not member.open:
        raise RefusedError(
            f"{saga_id} was terminated with its bulk workflow {member.bulk_id}",
            help=f"{saga_command('resume', saga_id)}    continues it, backward or forward",
        )
    queue = member.bulk.run.task_queue
    if not await count_pollers(locator.temporal, queue):
        message = f"{absence_message(queue)}, so {saga_id} cannot leave its bulk workflow"
        raise NoAnswer(message, help=START_WORKER_HELP)
    await _request(locator.temporal, member.claim, cancel)
    return await locator.locate(saga_id)


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
