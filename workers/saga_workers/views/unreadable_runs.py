"""The views of runs that an internal error keeps from being read: any client can start a run, and none of them may hide
the others of a list.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import replace

from temporalio.service import RPCError

from saga_workers.temporal.temporal_runs import RunInfo
from saga_workers.views.saga_view import bare_view
from sagas.errors import SagaError
from sagas.protocol.saga_view import SagaView
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

log = logging.getLogger("saga")

_MOST_SHOWN = 200


async def readable_view(run: RunInfo, view: Awaitable[SagaView]) -> SagaView:
    """The ``view`` of a run in a list; after an internal error one that says so. Other errors concern all runs.

    Raises SagaError, RPCError, TimeoutError.
    """
    try:
        return await view
    except (SagaError, RPCError, TimeoutError):
        raise
    except Exception as error:  # noqa: BLE001, see above
        return replace(await bare_view(run), incomplete=unreadable_text(run, error))


def unreadable_text(run: RunInfo, error: Exception) -> str:
    """The internal error, for people; its traceback is in the log at the level DEBUG."""
    log.debug("the run %s of %s cannot be read", run.run_id, printable_line(run.id), exc_info=error)
    what = shorten(printable_line(f"{type(error).__name__}: {error}"), _MOST_SHOWN)
    return f"it cannot be read here, because of a bug in saga ({what})"
