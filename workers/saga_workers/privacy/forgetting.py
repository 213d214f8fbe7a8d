"""`saga forget`: replaces the `x-sensitive` values of a finished saga everywhere they can be replaced.

The order makes it whole when it is killed and repeated: the values are read from the run or from the ledger, whose
state is deleted after all else was replaced, and the runs last.

It excludes an undo, and any other run of the saga: it looks for an open one after its own record, and a run, which is
open from its start, looks for the record before its first effect. So at least one of the two refuses itself.
A start of the next generation is excluded in the same way, by the claim of its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from saga_workers.location.locator import Locator
from saga_workers.privacy.database_rows import forget_in_database
from saga_workers.privacy.histories import delete_histories, histories_place, kept_histories, saga_runs
from saga_workers.privacy.places import ForgottenPlace
from saga_workers.privacy.replacement import Replacement
from saga_workers.privacy.sensitive_words import sensitive_values_of
from saga_workers.privacy.shared_histories import SharedRuns, departed_from, shared_histories, shared_runs
from saga_workers.temporal.begun_runs import has_begun
from saga_workers.temporal.temporal_runs import RunInfo, describe_run
from saga_workers.views.saga_view import read_view
from sagas.definition.sensitivity import SensitiveMask
from sagas.definition.times import read_timestamp
from sagas.errors import RefusedError, UsageError
from sagas.project import Project
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import FINAL_STATES, SagaView
from sagas.settings import Settings
from sagas.text.shell import saga_command
from sagas.text.shortening import counted


@dataclass(frozen=True, slots=True)
class Subject:
    """A saga whose values are forgotten, with the sagas nested in it.

    ``sensitive``: the values; None if nobody knows them any more, so that all values are replaced. ``done``: an earlier
    call has replaced what could be replaced then.
    """

    view: SagaView
    saga_ids: tuple[str, ...]
    runs: tuple[RunInfo, ...]
    sensitive: frozenset[str] | None
    done: bool = False


async def find_subject(locator: Locator, settings: Settings, saga_id: str, *, delete_run: bool) -> Subject:
    """The saga and its values.

    Raises RefusedError if it has not ended, or if its story would be lost with its run; UsageError if there is no such
    saga, or it has no such values; SagaError if they cannot be read here.
    """
    view = await read_view(locator, saga_id)
    begun = await _has_begun(locator, view)
    _require_end(view, begun=begun)
    if delete_run and begun and await locator.ledger.find(view.id) is None:
        raise RefusedError(
            f"the ledger has no row of {view.id}, so its story would be lost with its run",
            help="leave out --delete-run",
        )
    children, unlisted = await _children(locator, view)
    runs = await saga_runs(locator.temporal, view.id, unlisted)
    if open_runs := [run.id for run in runs if run.running]:
        raise RefusedError(f"{open_runs[0]} still runs: repeat the command when it has ended")
    nested = {run.id for run in runs if run.id.startswith(f"{view.id}/") and "~" not in run.id}
    saga_ids = (view.id, *sorted(nested | children))
    values: set[str] = set()
    project = Project(settings)
    for each in saga_ids:
        given = await sensitive_values_of(locator, project, each)
        if given is None and each == view.id:
            done = await locator.ledger.was_forgotten(view.id, read_timestamp(view.started_at))
            return Subject(view, saga_ids, tuple(runs), None, done)
        values |= given or frozenset()
    if not values:
        raise UsageError(
            f"{view.id} has no value that its definition marks with x-sensitive",
            help=saga_command("show", view.id, reveal=True, reason="…"),
        )
    return Subject(view, saga_ids, tuple(runs), frozenset(values))


async def _has_begun(locator: Locator, view: SagaView) -> bool:
    """False for a saga whose run was closed before its first workflow task: it has neither effects nor a story."""
    if view.state != "TERMINATED" or view.steps:
        return True
    run = await describe_run(locator.temporal, view.id)
    return run is None or await has_begun(locator.temporal, run.run)


def _require_end(view: SagaView, *, begun: bool) -> None:
    if view.parent is not None:
        raise RefusedError(
            f"{view.id} is nested in {view.parent}, which may still need its values",
            help=saga_command("forget", view.parent, reason="…"),
        )
    if view.state == "TERMINATED" and begun:
        raise RefusedError(
            f"{view.id} was terminated in Temporal, so its effects may be open, and an undo needs its values",
            help=f"{saga_command('resume', view.id)}    undoes them, or finishes the saga",
        )
    if view.state in FINAL_STATES and view.is_of_unsigned_run:
        raise RefusedError(
            f"the values of {view.id} are not forgotten here: {view.incomplete}",
            help=f"{saga_command('show', view.id)}    or run the command where the key is",
        )
    if begun and (view.state not in FINAL_STATES or view.incomplete):
        doubt = f": {view.incomplete}" if view.incomplete else ""
        raise RefusedError(
            f"{view.id} is {view.state}{doubt}; only the values of a saga that has ended are forgotten",
            help=saga_command("show", view.id),
        )


async def _children(locator: Locator, view: SagaView) -> tuple[set[str], set[str]]:
    """The ids of the sagas nested in one, at any depth; and those of all workflows that it and they may have had."""
    ids: set[str] = set()
    workflows = {view.id, view.id + UNDO_SUFFIX, *(notification.run for notification in view.notifications)}
    for child in view.children:
        ids.add(child.id)
        with suppress(UsageError):  # nobody knows it any more
            below, of_them = await _children(locator, await read_view(locator, child.id))
            ids |= below
            workflows |= of_them
    return ids, workflows


async def forget(
    locator: Locator, settings: Settings, subject: Subject, *, who: str, reason: str, delete_run: bool
) -> list[ForgottenPlace]:
    """Replace the values; the places with what became of them.

    Raises SagaError: then it is to be repeated; RefusedError if a run of the saga has begun, which needs the values:
    then nothing was replaced.
    """
    ledger = locator.ledger
    ended_at = read_timestamp(subject.view.ended_at)
    reason = SensitiveMask(subject.sensitive or frozenset()).text(reason)
    records = await ledger.begin_forgetting(subject.saga_ids, who=who, reason=reason, not_before=ended_at)
    try:
        await _require_no_run(locator, subject.saga_ids)
        await _require_no_start(locator, subject)
        subject = await find_subject(locator, settings, subject.view.id, delete_run=delete_run)
    except BaseException:  # also when it is interrupted
        await ledger.withdraw_forgetting(records)
        raise
    shared = await _shared_runs(locator, subject)
    replacement = Replacement(subject.sensitive)
    places: list[ForgottenPlace] = []
    for connection in settings.sql_connections():
        places += await forget_in_database(connection, subject.saga_ids, replacement, replaced_before=subject.done)
    some_wait = any(place.status == "stays" for place in places)
    rows = await ledger.forget(subject.saga_ids, subject.sensitive or frozenset())
    deleted = f"in {counted(rows, 'row')}: the state for an undo, values in the story, the hash of the input"
    places.append(
        ForgottenPlace("the ledger", "deleted", deleted)
        if rows
        else ForgottenPlace("the ledger", "nothing", "it has no state, value or hash of the input")
    )
    if delete_run and some_wait and subject.runs and subject.sensitive is not None:
        places.append(kept_histories(subject.runs))
    elif delete_run:
        places.append(await delete_histories(locator.temporal, subject.runs))
    else:
        places.append(await histories_place(locator.temporal, subject.runs, subject.sensitive))
    places += await shared_histories(locator.temporal, shared, subject.sensitive)
    await ledger.complete_forgetting(subject.saga_ids)
    return places


async def _shared_runs(locator: Locator, subject: Subject) -> SharedRuns:
    view = subject.view
    unlisted = await locator.ledger.bulk_workflows_of(view.id) | await departed_from(subject.runs)
    return await shared_runs(locator.temporal, view.id, view.saga, unlisted=unlisted)


async def _require_no_start(locator: Locator, subject: Subject) -> None:
    """Raise RefusedError if the id was claimed after the end of the saga: for a start that Temporal may not have yet.

    A start looks for the record of the forget after its claim.
    """
    ended_at = read_timestamp(subject.view.ended_at)
    for saga_id, claim in (await locator.ledger.claims(subject.saga_ids)).items():
        if ended_at is None or claim.claimed_at > ended_at:
            raise RefusedError(
                f"{saga_id} is being started again, and would lose the values of that start: repeat the command when"
                " it has ended",
                help=saga_command("show", saga_id),
            )


async def _require_no_run(locator: Locator, saga_ids: Sequence[str]) -> None:
    """Raise RefusedError if a run of these sagas, or of their undo, is open. Temporal's list of runs lags behind."""
    for saga_id in saga_ids:
        for workflow_id in (saga_id, saga_id + UNDO_SUFFIX):
            described = await describe_run(locator.temporal, workflow_id)
            if described is not None and described.run.running:
                raise RefusedError(
                    f"{workflow_id} has just begun, and needs the values of {saga_id}: repeat the command when it has"
                    " ended",
                    help=saga_command("show", saga_id),
                )
