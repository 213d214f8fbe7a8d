"""Reads of the ledger about many sagas at once: which ids exist already, and how those of a batch have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.ledger.tables import claim_table, run_table

BATCH_LABEL = "batch"
"""The label that all sagas of one batch have; its value is the batch's id."""

_RUN = run_table.c
_CLAIM = claim_table.c
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class KnownSaga:
    """An id that exists. ``bulk_id``: the bulk workflow that runs it now; None if it has ended or runs on its own.

    ``alone``: it is claimed for a workflow of its own, and only Temporal knows whether that was started.
    """

    saga: str
    state: str
    input_digest: str | None
    bulk_id: str | None = None
    alone: bool = False


async def read_known(engine: AsyncEngine, ids: Sequence[str]) -> dict[str, KnownSaga]:
    """The newest rows of these ids, or their claims, which are newer."""
    known: dict[str, KnownSaga] = {}
    columns = (_RUN.saga_id, _RUN.saga, _RUN.state, _RUN.input_digest)
    async with engine.connect() as connection:
        for at in range(0, len(ids), _AT_ONCE):
            part = ids[at : at + _AT_ONCE]
            # Claims first: a saga that ends in between loses its claim when its row is written.
            held = await connection.execute(sa.select(claim_table).where(_CLAIM.saga_id.in_(part)))
            claims = {
                row.saga_id: KnownSaga(row.saga, "RUNNING", row.input_digest, row.bulk_id, row.bulk_id is None)
                for row in held
            }
            rows = sa.select(*columns).where(_RUN.saga_id.in_(part)).order_by(_RUN.started_at)
            for row in await connection.execute(rows):
                known[row.saga_id] = KnownSaga(row.saga, row.state, row.input_digest)
            known |= claims
    return known


async def count_states(engine: AsyncEngine, batch: str) -> dict[str, int]:
    """How many sagas of a batch are in each state, as their newest rows say."""
    newest = sa.select(_RUN.saga_id, sa.func.max(_RUN.started_at).label("started_at")).where(_in_batch(batch))
    last = newest.group_by(_RUN.saga_id).subquery()
    same = sa.and_(_RUN.saga_id == last.c.saga_id, _RUN.started_at == last.c.started_at)
    query = sa.select(_RUN.state, sa.func.count()).join_from(run_table, last, same).group_by(_RUN.state)
    async with engine.connect() as connection:
        return {row[0]: row[1] for row in await connection.execute(query)}


async def running_in_bulk(engine: AsyncEngine, batch: str) -> list[str]:
    """The ids of the sagas of a batch that bulk workflows run now."""
    has_label = _CLAIM.labels[BATCH_LABEL].as_string() == batch
    query = sa.select(_CLAIM.saga_id).where(_CLAIM.bulk_id.is_not(None), has_label).order_by(_CLAIM.saga_id)
    async with engine.connect() as connection:
        return list((await connection.execute(query)).scalars())


def _in_batch(batch: str) -> sa.ColumnElement[bool]:
    return _RUN.labels[BATCH_LABEL].as_string() == batch
