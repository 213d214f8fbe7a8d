"""Nested sagas whose run was closed from outside or deleted, while their parent has their step as done, as an operator
may decide: their effects stay until the parent is undone.
"""

from __future__ import annotations

from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.locator import Locator
from saga_workers.temporal.root_starts import nested_root_start, root_start_of_run
from saga_workers.temporal.temporal_runs import RunInfo
from saga_workers.views.saga_view import read_view
from sagas.errors import RefusedError, UsageError
from sagas.protocol.origin import same_owner
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import SagaView
from sagas.text.shell import saga_command

_DONE = ("DONE", "CONFIRMING", "CONFIRMED")


async def counting_parent(locator: Locator, run: RunInfo) -> str | None:
    """The id of the saga that has started the saga of this run, and has its step as done; None if there is none.

    Raises RPCError.
    """
    location = await locator.within_temporal().locate(run.id)
    first = run if location.run is None else location.run.run
    if first.parent_id is None:
        return None
    parent = first.parent_id.removesuffix(UNDO_SUFFIX)
    return parent if await counts_as_done(locator, parent, location.saga_id, await nested_root_start(first)) else None


async def counts_as_done(locator: Locator, parent: str, child: str, root_start: str) -> bool:
    """True if this parent has the step of the nested saga ``child`` as done. Raises RPCError.

    ``root_start``: that of the child, by which a saga is told from an earlier one with the same id.
    """
    try:
        location = await locator.locate(parent)
        if location.run is not None:
            start = await root_start_of_run(locator.temporal, location.run, locator.keys)
        else:
            start = "" if location.row is None else location.row.start_of_root
        return same_owner(start, root_start) and _has_as_done(await read_view(locator, parent), child)
    except (UsageError, LedgerUnavailable):
        return False  # nobody knows the parent, or can tell


def _has_as_done(view: SagaView, child: str) -> bool:
    steps = {nested.step for nested in view.children if nested.id == child}
    return any(step.id in steps and step.state in _DONE for step in view.steps)


def counted_error(parent: str, child: str) -> RefusedError:
    """The error for a nested saga that is not to be continued."""
    return RefusedError(
        f"{child} is nested in {parent}, which has it as done, so its effects stay",
        help=f"{saga_command('undo', parent, reason='…')}    undoes both, once {parent} has completed",
    )
