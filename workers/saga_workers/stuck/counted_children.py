"""Nested sagas whose run was closed from outside or deleted, while their parent has their step as done, as an operator
may decide: their effects stay until the parent is undone.
"""

from __future__ import annotations

from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.location import Location
from saga_workers.location.locator import Locator
from saga_workers.temporal.machine_query import read_definition
from saga_workers.temporal.root_starts import nested_root_start, root_start_of_run
from saga_workers.temporal.temporal_runs import RunInfo
from saga_workers.views.saga_view import read_view
from sagas.errors import RefusedError, UsageError
from sagas.protocol.origin import same_owner
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.text.shell import saga_command

_DONE = ("DONE", "CONFIRMING", "CONFIRMED")


async def has_counting_parent(locator: Locator, run: RunInfo) -> bool:
    """True if the saga that has started the saga of this run has its step as done, as far as that is known. Raises
    RPCError.
    """
    nested = await _parent_of(locator, run)
    return nested is not None and await counts_as_done(locator, *nested)


async def counts_as_done(locator: Locator, parent: str, child: str, root_start: str) -> bool:
    """True if this parent has the step of the nested saga ``child`` as done, as far as that is known. Raises RPCError.

    ``root_start``: that of the child, by which a saga is told from an earlier one with the same id.
    """
    try:
        return await _counts_as_done(locator, parent, child, root_start)
    except (LedgerUnavailable, RefusedError):
        return False


async def parent_that_decides(locator: Locator, run: RunInfo) -> tuple[str, RefusedError] | None:
    """The id of the parent which has to decide about the nested saga of this run first, and the error with which
    `saga resume` refuses until then; None if there is none, as far as that is known. Raises RPCError.
    """
    nested = await _parent_of(locator, run)
    if nested is None:
        return None
    try:
        await _counts_as_done(locator, *nested)
    except LedgerUnavailable:
        return None
    except RefusedError as refusal:
        return nested[0], refusal
    return None


async def require_uncounted(locator: Locator, run: RunInfo) -> None:
    """Raise RefusedError for a nested saga that its parent has as done, and while its parent does not tell; also
    LedgerUnavailable, RPCError.
    """
    nested = await _parent_of(locator, run)
    if nested is None or not await _counts_as_done(locator, *nested):
        return
    parent, child, _ = nested
    raise RefusedError(
        f"{child} is nested in {parent}, which has it as done, so its effects stay",
        help=f"{saga_command('undo', parent, reason='…')}    undoes both, once {parent} has completed",
    )


async def _parent_of(locator: Locator, run: RunInfo) -> tuple[str, str, str] | None:
    """The ids of parent and nested saga, and the start of the root saga; None for a saga that is not nested."""
    location = await locator.within_temporal().locate(run.id)
    first = run if location.run is None else location.run.run
    if first.parent_id is None:
        return None
    return first.parent_id.removesuffix(UNDO_SUFFIX), location.saga_id, await nested_root_start(first)


async def _counts_as_done(locator: Locator, parent: str, child: str, root_start: str) -> bool:
    """Raises RefusedError if the parent does not tell, LedgerUnavailable, RPCError."""
    location = await locator.locate(parent)
    if location.run is not None:
        start = await root_start_of_run(locator.temporal, location.run, locator.keys)
    else:
        start = "" if location.row is None else location.row.start_of_root
    if not same_owner(start, root_start):
        return False
    try:
        view = await read_view(locator, parent)
    except UsageError:
        return False  # nobody knows the parent
    steps = {nested.step for nested in view.children if nested.id == child}
    rows = [step for step in view.steps if step.id in steps]
    if not view.steps or (view.steps_omitted and not rows):
        raise RefusedError(
            f"{child} is nested in {parent}, which does not tell whether it has it as done",
            help=saga_command("show", parent),
        )
    if view.phase == "committed" and any(step.state == "PARKED" for step in rows):
        await _require_unneeded(locator, location, parent, child, steps)
    return any(step.state in _DONE for step in rows)


async def _require_unneeded(locator: Locator, location: Location, parent: str, child: str, steps: set[str]) -> None:
    """Raise RefusedError for a nested saga that the pivot of its parent needs, and that is parked although the pivot is
    done: the run of the parent repeats one which had the nested saga as done, or as left out.
    """
    from sagas.definition.analysis.step_graph import ExecutionPlan

    run = location.run
    definition = None if run is None else await read_definition(locator.temporal, run.run, locator.settings)
    plan = None if definition is None else ExecutionPlan(definition)
    if plan is None or plan.pivot is None or not any(plan.pivot.id in plan.descendants(step) for step in steps):
        return
    [step] = steps
    done = saga_command("resolve", parent, step, "done", reason="…")
    raise RefusedError(
        f"{child} is nested in {parent}, which is past its point of no return, and an earlier run of which had it as "
        "done, or had left it out: decide about it there",
        help=f"{done}    if its effects stay; `skip` if they are to be undone",
    )
