"""Writes the rows of ended sagas that the ledger does not have, inside every `saga worker`.

A worker that was killed has lost the rows that still waited.
"""

from __future__ import annotations

import asyncio
import logging

from temporalio.service import RPCError

from saga_activities.guard.entry_key import fits_guard_key
from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.locator import Locator
from saga_workers.reconcile.ledger_check import differing_states, write_row
from saga_workers.runtime.logs import fields
from saga_workers.temporal.server_time import ServerTime
from saga_workers.temporal.visibility_filter import time_literal
from saga_workers.temporal.visible_states import visible_state
from saga_workers.views.saga_list import SagaFilter, list_saga_runs
from sagas.errors import SagaError
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.settings.masking import mask
from sagas.text.shortening import counted

log = logging.getLogger("saga.ledger")

MIN_AGE = 60.0
"""Seconds since the end of a saga; until then its own worker is likely to write the row."""

MAX_SAGAS = 10_000
"""The newest ended sagas that a round looks at."""

MAX_ROWS = 1_000
"""Rows that a round writes at most: each takes several requests."""

_ENDED = ("COMPLETED", "COMPENSATED", "RESIDUE")

_INTERVAL = 3600.0
_INTERVAL_AFTER_ERROR = 60.0


async def write_missing_rows_forever(locator: Locator, task_queue: str, retention: float, clock: ServerTime) -> None:
    """One round soon, for the worker that was killed before this one, and one every hour, for the others.

    ``retention``: seconds after which rows are deleted. Several workers may do this at once.
    """
    since = 0.0
    while True:
        await asyncio.sleep(MIN_AGE)
        until = await clock.likely() - MIN_AGE
        try:
            await write_missing_rows(locator, task_queue, since=max(since, until - retention), until=until)
        except (SagaError, RPCError, TimeoutError) as error:
            log.warning("not looked for rows that are missing in the ledger: %s", mask(str(error)))
            await asyncio.sleep(_INTERVAL_AFTER_ERROR)
        else:
            since = until - _INTERVAL  # the visibility store may lag, and a database may have refused a row for a while
            await asyncio.sleep(_INTERVAL)


async def write_missing_rows(locator: Locator, task_queue: str, *, since: float, until: float) -> int:
    """Write the rows of the sagas of this task queue that ended by themselves between these times, in seconds since the
    epoch, and that the ledger does not have in this state; their number.

    Raises LedgerUnavailable, RPCError, and SagaError if Temporal refuses the list.
    """
    states: dict[str, str] = {}
    period = f"CloseTime >= {time_literal(since)} AND CloseTime < {time_literal(until)}"
    async for run in list_saga_runs(locator.temporal, SagaFilter(where=period, task_queue=task_queue)):
        saga_id = run.id.removesuffix(UNDO_SUFFIX)
        if fits_guard_key(saga_id):
            states.setdefault(saga_id, visible_state(run))  # the list has the run that was closed last before others
        if len(states) == MAX_SAGAS:
            break
    ended = {saga_id: state for saga_id, state in states.items() if state in _ENDED}
    written = 0
    for saga_id in list(await differing_states(locator.ledger, ended))[:MAX_ROWS]:
        try:
            message = await write_row(locator, saga_id)
        except LedgerUnavailable:
            raise
        except SagaError as error:
            log.debug("not written to the ledger: %s", mask(error.message), extra=fields(saga_id=saga_id))
        except (RPCError, TimeoutError):
            raise
        except Exception:  # any client may have closed the run, and it must hide no other
            log.exception(
                "not written to the ledger, for an internal error (a bug in saga)", extra=fields(saga_id=saga_id)
            )
        else:
            written += 1
            log.info("missing in the ledger: %s", message, extra=fields(saga_id=saga_id))
    if written:
        shown = counted(written, "row was", "rows were")
        log.warning("%s missing in the ledger, as after the kill of a worker; written now", shown)
    return written
