"""Takes the values of sagas out of the ledger: their states are deleted, and their stories masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.ledger.rows import document_text, documents_of_machines
from saga_activities.ledger.tables import claim_table, run_table
from sagas.definition.sensitivity import SensitiveMask
from sagas.machine.sensitive_views import without_sensitive_values
from sagas.protocol.saga_view import SagaView

_RUN = run_table.c


async def delete_values(engine: AsyncEngine, saga_ids: Sequence[str], sensitive: frozenset[str]) -> int:
    """Delete the states in the rows of these sagas, of all their generations, and mask the sensitive values of them all
    in their stories; the number of rows that had a state, such a value, or a hash of the input.

    The row of a saga of a bulk workflow is its state alone: it gets its story first. A nested saga may have been given
    a value that only the schema of its parent marks.
    """
    changed = 0
    mask = SensitiveMask(sensitive)
    async with engine.begin() as connection:  # whoever repeats this needs a state, to know the values
        of_these = _RUN.saga_id.in_(saga_ids)
        has_state, has_hash = (column.is_not(None) for column in (_RUN.machine, _RUN.input_digest))
        kept = (has_state.label("has_state"), has_hash.label("has_hash"))
        columns = (_RUN.saga_id, _RUN.started_at, _RUN.state, _RUN.labels, *kept)
        rows = (await connection.execute(sa.select(*columns).where(of_these))).all()
        keys = {(row.saga_id, row.started_at) for row in rows}
        stories = await documents_of_machines(connection, keys, must_read=True)
        for row in rows:
            story = stories[row.saga_id, row.started_at]
            new = _masked(story, row.saga_id, row.state, sensitive)
            labels = row.labels and {name: mask.value(value) for name, value in row.labels.items()}
            values = {"machine": None, "story": document_text(new), "labels": labels}
            values |= {"input_digest": None, "root_start": None}
            here = sa.and_(_RUN.saga_id == row.saga_id, _RUN.started_at == row.started_at)
            await connection.execute(sa.update(run_table).where(here).values(values))
            changed += row.has_state or row.has_hash or new != story or labels != row.labels
    return changed


async def bulk_workflows_of(engine: AsyncEngine, saga_id: str) -> set[str]:
    """The bulk workflows in which generations of a saga have ended, or that have claimed it."""
    async with engine.connect() as connection:
        return {
            bulk_id
            for columns in (run_table.c, claim_table.c)
            for bulk_id in await connection.scalars(sa.select(columns.bulk_id).where(columns.saga_id == saga_id))
            if bulk_id is not None
        }


def _masked(story: Mapping[str, Any], saga_id: str, state: str, sensitive: frozenset[str]) -> Mapping[str, Any]:
    """The story, or the same object if it has none of the values."""
    view = SagaView.from_json({**story, "id": saga_id, "state": state})
    mask = SensitiveMask(sensitive)
    labels = {name: mask.value(value) for name, value in view.labels.items()}
    masked = replace(without_sensitive_values(view, sensitive), input=mask.value(view.input), labels=labels)
    return story if masked == view else masked.to_json()
