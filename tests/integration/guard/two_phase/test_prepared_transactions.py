"""Prepared transactions as operators see them: which step, how old, which locks; and the purge keeps their rows."""

from __future__ import annotations

import time

from saga_activities.guard import watermark
from saga_activities.guard.two_phase.prepared import list_prepared
from saga_workers.doctor.two_phase_checks import check_two_phase
from saga_workers.worker.prepared_gauges import PreparedGauges
from sagas.settings import SqlConnection
from tests.integration.guard.conftest import clock
from tests.integration.guard.two_phase.conftest import TwoPhaseDatabase, open_two_phase


async def test_a_prepared_transaction_names_its_step_and_its_locks(shop: TwoPhaseDatabase) -> None:
    engine = shop.database.engine
    await shop.do()
    [prepared] = await list_prepared(engine, shop.at.saga_id)
    assert prepared.entry_key == shop.at
    assert not prepared.is_foreign
    assert prepared.age is not None
    assert 0 <= prepared.age < 60
    if engine.dialect.name == "postgresql":
        assert prepared.id.startswith(f"{shop.at}~")
        assert prepared.locks == ("prepared_stock (RowExclusiveLock)",)
    async with engine.connect() as connection:
        await connection.exec_driver_sql(prepared.rollback)
    assert await list_prepared(engine, shop.at.saga_id) == []


async def test_the_doctor_reports_one_that_is_stuck(shop: TwoPhaseDatabase) -> None:
    engine = shop.database.engine
    assert (await check_two_phase("shop", engine, 0.0))[0].ok
    await shop.do()
    checks = await check_two_phase("shop", engine, -1.0)
    [stuck] = [check for check in checks if shop.at.saga_id in (check.help or "")]
    assert stuck.ok is False
    assert "prepared for" in stuck.message
    connection = SqlConnection(name="shop", prepared_warn_after=-1.0)
    gauges = PreparedGauges(lambda: {"shop": (connection, engine)})
    await gauges.refresh()
    [metric] = gauges.collect()
    counts = {sample.labels["owner"]: sample.value for sample in metric.samples}
    assert counts["saga"] >= 1


async def test_the_purge_keeps_the_rows_of_a_prepared_step(shop: TwoPhaseDatabase) -> None:
    other = await open_two_phase(shop.database)
    await shop.database.rows("update saga_watermark set watermark = 0")  # other tests have raised it
    for participant in (shop, other):
        await participant.guard.do(
            participant.at, "hash", participant.take, scheduled_at=5.0, deadline=time.time() + 10
        )
    await other.guard.undo(other.at, known_done=True, scheduled_at=6.0, deadline=time.time() + 10)
    await watermark.clean_up(
        shop.database.engine, oldest_open=10.0, now=time.time(), longest_transaction=0.0, retention=0.0
    )
    assert await shop.reasons() == {"do": "do"}
    assert await other.reasons() == {}
    assert (await shop.guard.confirm(shop.at, **clock())).kind == "done"
