"""Writes to, reads from and purges of a ledger of many sagas, of which a fiftieth is parked."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from benchmarks.growth.database import CONNECTION, Costs, GrowthDatabase
from saga_activities.ledger.period import count_outcomes
from saga_activities.ledger.records import RunFilter, RunRecord
from saga_activities.ledger.retention import maintain
from saga_activities.ledger.rows import list_runs, make_record, read_run
from saga_activities.ledger.schema import create_ledger
from saga_workers.ledger.run_ledger import RunLedger
from sagas.protocol.saga_view import SagaView

SIZES, QUICK = (30_000, 5_000_000), (3_000, 6_000)
"""Sagas in the ledger."""

PURGED = 5000
DAYS = 20

_FILL = """
insert into saga_run (saga_id, started_at, saga, generation, digest, input_digest, state, labels, ended_at, ran_until,
    updated_at, story)
select md5(n::text) || '-{mark}', at, 'saga-' || n % 20, 1, r.digest, r.input_digest,
    case when n % 50 = 1 then 'PARKED' else r.state end, r.labels, case when n % 50 = 1 then null else at end, at, at,
    r.story || jsonb_build_object('id', md5(n::text) || '-{mark}')
from saga_run r, generate_series(0, {rows} - 1) n,
    lateral (select now() - interval '{oldest} days' + interval '{length} days' * n / {rows} as at) t
where r.saga_id = 'template'
"""


async def measure(database: GrowthDatabase, rows: int) -> Costs:
    """Sagas of twenty days, and a few of ninety-nine days ago, which the purge deletes."""
    engine = database.engine
    await create_ledger(engine)
    await database.execute("truncate saga_run")
    ledger = RunLedger(CONNECTION, lambda: engine)
    await ledger.write([_record("template"), _record("lonely", saga="rare")])
    old = min(PURGED, rows // 10)
    await database.execute(
        _FILL.format(mark="kept", rows=rows, oldest=DAYS, length=DAYS),
        _FILL.format(mark="old", rows=old, oldest=99, length=1),
        "vacuum analyze saga_run",
    )
    now = datetime.now(UTC)
    middle = (now - timedelta(days=DAYS / 2), "m")
    lists = {
        "the newest": RunFilter(),
        "parked": RunFilter(states=("PARKED",)),
        "of one saga": RunFilter(saga="saga-7"),
        "of a rare saga": RunFilter(saga="rare"),
        "of a rare label": RunFilter(labels={"city": "nowhere"}),
        "of a prefix of ids": RunFilter(id_prefix="lone"),
        "a page in the middle": RunFilter(before=middle),
    }
    costs = {"500 final states, for each": await database.each(lambda: ledger.write(_records(500)), 5, 500)}
    costs["a saga by its id"] = await database.each(lambda: read_run(engine, "lonely"), 50)
    for name, criteria in lists.items():
        costs[f"list 50: {name}"] = await database.each(lambda by=criteria: list_runs(engine, by, 50), 5)
    costs["outcomes of an hour"] = await database.each(
        lambda: count_outcomes(engine, now - timedelta(hours=1), None), 3
    )

    async def purge() -> None:
        done = await maintain(engine, now=now, before=now - timedelta(days=90))
        assert done.deleted == old - (old + 48) // 50, done

    costs["the purge, for each saga"] = await database.each(purge, pieces=old)
    return costs


def _records(count: int) -> list[RunRecord]:
    return [_record(uuid.uuid4().hex) for _ in range(count)]


def _record(saga_id: str, saga: str = "checkout") -> RunRecord:
    at = datetime.now(UTC)
    view = SagaView(
        id=saga_id, saga=saga, state="COMPLETED", started_at=at.isoformat(), ended_at=at.isoformat(), can_undo=False
    )
    row = make_record(view.to_json(), saga_id=saga_id, labels={"city": "Bonn"}, updated_at=at, input_digest="0" * 64)
    assert row is not None
    return row
