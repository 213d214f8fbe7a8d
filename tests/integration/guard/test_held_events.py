"""Held events are queried, listed and decided on every database."""

from __future__ import annotations

import time

import pytest
from temporalio.client import Client as Temporal

from saga_activities.concurrency import Backoff
from saga_workers.relay.check_back import CheckBack
from saga_workers.relay.undecided_events import MAX_UNANSWERED, decide_event, list_undecided
from sagas.errors import RefusedError
from tests.helpers.free_ports import free_port
from tests.integration.guard.conftest import GuardDatabase, clock, new_address


async def test_held_events_are_listed_and_decided(guard_database: GuardDatabase) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    back = CheckBack(lambda: Temporal.connect(nobody), intervals=Backoff(0.0, 3600.0))
    await guard_database.rows("update saga_outbox set status = 'DROPPED' where status = 'HELD'")  # of other tests
    address = guard_database.current = new_address()
    assert (await guard_database.guard.do(address, "h", guard_database.body("applied"), **clock())).kind == "done"
    mine = "select event_id, status, checks, next_check_at, note from saga_outbox where saga_id = :s"
    for times in range(1, MAX_UNANSWERED + 1):
        assert await back.check(guard_database.guard) == 1
        [row] = await guard_database.rows(mine, s=address.saga_id)
        assert (row.status, row.checks) == ("HELD", times)
        assert row.note.startswith("Temporal does not answer")
        assert await list_undecided(guard_database.engine) == [] or times == MAX_UNANSWERED
        await guard_database.rows("update saga_outbox set next_check_at = 0 where saga_id = :s", s=address.saga_id)
    [undecided] = await list_undecided(guard_database.engine)
    assert (undecided.saga_id, undecided.step, undecided.topic, undecided.key) == (
        address.saga_id,
        address.entry,
        "charged",
        "k",
    )
    assert abs(undecided.since - time.time()) < 600
    output = await decide_event(
        guard_database.engine, undecided.event_id, "release", reason="it was charged", who="ada"
    )
    assert output is not None
    [row] = await guard_database.rows(mine, s=address.saga_id)
    assert (row.status, row.note) == ("NEW", "release: ada: it was charged")
    with pytest.raises(RefusedError):
        await decide_event(guard_database.engine, undecided.event_id, "drop", reason="no", who="ada")


async def test_held_events_are_polled_in_order(guard_database: GuardDatabase) -> None:
    async def nobody() -> Temporal:
        raise AssertionError("nothing is due, so nobody is asked")

    await guard_database.rows("update saga_outbox set status = 'DROPPED' where status = 'HELD'")
    address = guard_database.current = new_address()
    await guard_database.guard.do(address, "h", guard_database.body("applied"), **clock())
    assert await CheckBack(nobody).check(guard_database.guard) == 0
