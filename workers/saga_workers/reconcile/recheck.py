"""Looks at findings again: what was read while sagas moved is not a mismatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from saga_activities.guard.tables import outbox_table
from saga_activities.messaging.outbox import NEW, PUBLISHED
from saga_spark.reconcile.findings import RESUMED, Finding, repair_command
from saga_workers.location.locator import Locator
from saga_workers.reconcile.current_views import current_views
from saga_workers.reconcile.matched_rows import with_safe_commands
from saga_workers.reconcile.private_amounts import expects_amounts, without_private_amounts
from saga_workers.runtime.databases import open_command_engine
from saga_workers.stuck.counted_children import has_counting_parent
from sagas.portions import in_portions
from sagas.protocol.saga_view import SagaView
from sagas.settings import Settings
from sagas.settings.reconcile import EffectTable

MAX_RECHECKED = 2_000
"""Maximum number of sagas that are read again: a finding is dropped if its saga has changed meanwhile."""

_READ_AT_ONCE = 500
"""Events that are looked up in an outbox by one query."""


async def recheck(
    locator: Locator,
    settings: Settings,
    findings: Sequence[Finding],
    states: Mapping[str, str],
    effects: Sequence[EffectTable] = (),
) -> tuple[list[Finding], list[Finding]]:
    """Split the findings: those whose sagas are still in these states, with their repair commands, and the others."""
    dialects = {
        sql_connection.name: sa.make_url(sql_connection.url).get_backend_name()
        for sql_connection in settings.sql_connections()
    }
    declared = {table.name: table for table in effects}
    saga_ids = list(dict.fromkeys(finding.saga_id for finding in findings if finding.saga_id))
    now = await current_views(locator, saga_ids[:MAX_RECHECKED])
    counted = await _counted_as_done(locator, findings)
    results = now | await _recorded_views(locator, findings, now)
    kept: list[Finding] = []
    gone: list[Finding] = []
    for compared in findings:
        finding = without_private_amounts(compared, results.get(compared.saga_id or ""), declared)
        view = now.get(finding.saga_id or "")
        moved = view is not None and view.state != states.get(finding.saga_id or "", view.state)
        if finding.kind in RESUMED:
            moved = False  # it was decided last of all, and the id may belong to another run by now
        moved = moved or (finding.kind == "open_effects" and finding.saga_id in counted)
        can_undo = view is not None and view.can_undo
        command = finding.command or repair_command(finding, dialects, declared, can_undo=can_undo)
        (gone if moved else kept).append(replace(finding, command=command))
    return await with_safe_commands(settings, kept, dialects, declared), gone


async def _recorded_views(
    locator: Locator, findings: Sequence[Finding], views: Mapping[str, SagaView | None]
) -> dict[str, SagaView | None]:
    """The views that the ledger has of the sagas whose amounts are compared, where Temporal has none."""
    missing = {each.saga_id for each in findings if each.saga_id and expects_amounts(each)}
    rows = await locator.ledger.find_all(
        sorted(missing - {name for name, view in views.items() if view})[:MAX_RECHECKED]
    )
    return {saga_id: row.view for saga_id, row in rows.items()}


async def _counted_as_done(locator: Locator, findings: Sequence[Finding]) -> set[str]:
    """The nested sagas with open effects among these findings that their parents have as done: their effects stay."""
    counted: set[str] = set()
    for saga_id in {finding.saga_id for finding in findings if finding.kind == "open_effects" and finding.saga_id}:
        described = (await locator.within_temporal().locate(saga_id)).run
        if described is not None and await has_counting_parent(locator, described.run):
            counted.add(saga_id)
    return counted


async def published_since(settings: Settings, findings: Sequence[Finding]) -> list[Finding]:
    """The events in topics that the outbox did not have when it was read, and has as new or published by now: it is
    read before the topics.
    """
    asked: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.kind == "event_unclaimed" and finding.row and finding.place:
            asked.setdefault(finding.place.partition(".")[0], []).append(finding)
    gone: list[Finding] = []
    for name, some in asked.items():
        engine = open_command_engine(settings.sql_connection(name))
        try:
            published = await _published(engine, [(finding.row or {})["event_id"] for finding in some])
        finally:
            await engine.dispose()
        gone += [finding for finding in some if (finding.row or {})["event_id"] in published]
    return gone


async def _published(engine: Any, event_ids: Sequence[str]) -> set[str]:
    published: set[str] = set()
    events = outbox_table.c
    async with engine.connect() as connection:
        for portion in in_portions(event_ids, _READ_AT_ONCE):
            query = sa.select(events.event_id).where(
                events.event_id.in_(portion),
                events.status.in_((NEW, PUBLISHED)),
            )
            published |= set((await connection.execute(query)).scalars())
    return published
