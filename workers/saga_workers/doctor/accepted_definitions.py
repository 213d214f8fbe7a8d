"""The definitions that workers run by `[worker] accept`, and earlier ones that the settings name without need."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from temporalio.client import Client

from saga_activities.ledger.tables import run_table
from saga_activities.table_names import table_names
from saga_workers.doctor.doctor_result import DoctorResult
from saga_workers.runtime.databases import command_database
from saga_workers.temporal.temporal_runs import list_runs
from saga_workers.temporal.visible_states import closed_view
from sagas.definition.digest import digest_of
from sagas.project import Project
from sagas.protocol.payloads import OUTCOME_MEMO
from sagas.settings import Settings

_CHECK = "accepted definitions"

_TIMEOUT = 15.0

_RUNS = 1_000
"""Closed runs in Temporal that are looked at, the newest ones."""

_UNUSED = timedelta(days=30)
"""A definition that nobody has started for so long is not needed any more: its clients were replaced."""

LastStart = tuple[str, datetime]
"""The name of a saga, and when it was started last."""


async def check_accepted_definitions(
    project: Project, client: Client | None, *, ledger_answers: bool
) -> list[DoctorResult]:
    """The results for `accept` and for each digest of `earlier_definitions`. Raises SagaError.

    None for `accept = "any"`, which the check of the keys reports.
    """
    settings = project.settings
    digests = settings.worker.earlier_definitions
    if settings.worker.accept == "any":
        return []
    if settings.worker.accept == "signed":
        what = "those of the project, and others whose start its key has signed"
        return [DoctorResult(_CHECK, True, f"{what} (worker.accept: signed)")]
    earlier = f", and {len(digests)} earlier ones of signed starts" if digests else ""
    what = f"those of the project as its files are now{earlier}"
    results = [DoctorResult(_CHECK, True, f"{what} (worker.accept: project)")]
    if not digests:
        return results
    last = await _starts_in_ledger(settings, digests) if ledger_answers else {}
    if client is not None and (unknown := set(digests) - last.keys()):
        last |= await _starts_in_temporal(client, unknown)
    return [*results, *_findings(project, last, is_whole=client is not None)]


def _findings(project: Project, last: dict[str, LastStart], *, is_whole: bool) -> Iterator[DoctorResult]:
    """``is_whole``: Temporal was asked, so a digest that nobody knows has not been used."""
    present = {digest_of(definition): saga for saga, definition in project.definitions.items()}
    remove = "remove it from worker.earlier_definitions"
    for digest in project.settings.worker.earlier_definitions:
        if (saga := present.get(digest)) is not None:
            yield DoctorResult(_CHECK, None, f"{digest} is the present definition of {saga}, no earlier one", remove)
        elif digest not in last:
            if is_whole:
                why = f"no saga is known that has ended with the definition {digest}"
                compare = "compare it with `digest` of `saga show ID -o json`"
                yield DoctorResult(_CHECK, None, why, f"{compare}, or {remove}")
        elif datetime.now(UTC) - last[digest][1] > _UNUSED:
            saga, at = last[digest]
            why = f"{digest} is a definition of {saga} that was started last on {at:%Y-%m-%d}"
            yield DoctorResult(_CHECK, None, why, f"if no client sends it any more, {remove}")


async def _starts_in_ledger(settings: Settings, digests: Collection[str]) -> dict[str, LastStart]:
    if settings.ledger.connection is None:
        return {}
    connection, row = settings.sql_connection(settings.ledger.connection), run_table.c
    what = f"the ledger in {connection.name} cannot be read"
    async with command_database(connection, what, _TIMEOUT) as engine, engine.connect() as database:
        if run_table.name not in await table_names(database):
            return {}
        query = sa.select(row.digest, sa.func.max(row.saga), sa.func.max(row.started_at, type_=row.started_at.type))
        query = query.where(row.digest.in_(digests)).group_by(row.digest)
        return {digest: (saga, at) for digest, saga, at in await database.execute(query)}


async def _starts_in_temporal(client: Client, digests: Collection[str]) -> dict[str, LastStart]:
    """The last starts among the newest closed runs, as these say: any client may have closed one."""
    last: dict[str, LastStart] = {}
    count = 0
    async for run in list_runs(client, "CloseTime IS NOT NULL"):
        if OUTCOME_MEMO in run.raw.memo.fields and await run.missing_memo_key(OUTCOME_MEMO) is None:
            view = await closed_view(run)
            digest = "" if view is None else view.digest or ""
            if digest in digests and (digest not in last or last[digest][1] < run.start_time):
                last[digest] = (run.workflow_type, run.start_time)
        count += 1
        if count >= _RUNS:
            break
    return last
