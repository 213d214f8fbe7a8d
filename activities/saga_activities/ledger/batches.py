"""Reads of the ledger about many sagas at once: which ids exist already, and how those of a batch have ended."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.ledger.claims import claims_of, runs_of
from saga_activities.ledger.records import BATCH_LABEL, KnownSaga
from saga_activities.ledger.rows import has_label
from saga_activities.ledger.tables import claim_table, run_table
from sagas.portions import in_portions

_RUN = run_table.c
_CLAIM = claim_table.c
_AT_ONCE = 500


async def read_known(engine: AsyncEngine, ids: Sequence[str]) -> dict[str, KnownSaga]:
    """The newest rows of these ids, or their claims, which are newer."""
    sagas: dict[str, KnownSaga] = {}
    async with engine.connect() as connection:
        for part in in_portions(ids, _AT_ONCE):
            # Claims first: a saga that ends in between loses its claim when its row is written.
            held = await claims_of(connection, part)
            for id, run in (await runs_of(connection, part)).items():
                sagas[id] = KnownSaga(run.saga, run.state, run.input_digest)
            for claim in held:
                alone = claim.bulk_id is None
                sagas[claim.saga_id] = KnownSaga(claim.saga, "RUNNING", claim.input_digest, claim.bulk_id, alone)
    return sagas


async def count_states(engine: AsyncEngine, batch: str) -> dict[str, int]:
    """The number of sagas of a batch in each state, as their newest rows say."""
    newest = sa.select(_RUN.saga_id, sa.func.max(_RUN.started_at).label("started_at")).where(
        has_label(_RUN.labels, BATCH_LABEL, batch)
    )
    last = newest.group_by(_RUN.saga_id).subquery()
    same = sa.and_(_RUN.saga_id == last.c.saga_id, _RUN.started_at == last.c.started_at)
    query = sa.select(_RUN.state, sa.func.count()).join_from(run_table, last, same).group_by(_RUN.state)
    async with engine.connect() as connection:
        return {row[0]: row[1] for row in await connection.execute(query)}


async def running_in_bulk(engine: AsyncEngine, batch: str) -> list[str]:
    """The ids of the sagas of a batch that bulk workflows run now."""
    of_batch = has_label(_CLAIM.labels, BATCH_LABEL, batch)
    query = sa.select(_CLAIM.saga_id).where(_CLAIM.bulk_id.is_not(None), of_batch).order_by(_CLAIM.saga_id)
    async with engine.connect() as connection:
        return list((await connection.execute(query)).scalars())
