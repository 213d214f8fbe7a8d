"""What is asked, shown and decided about held events, in the words of each database."""

from __future__ import annotations

import time

import pytest
from temporalio.client import Client as Temporal

from saga_workers.devstack.ports import choose_ports
from saga_workers.relay.held_events import MAX_UNANSWERED, CheckBack, CheckIntervals, decide_event, list_undecided
from sagas.errors import RefusedError
from tests.integration.guard.conftest import Laboratory, clock, new_address


async def test_asking_in_vain_and_deciding(laboratory: Laboratory) -> None:
    nobody = f"127.0.0.1:{choose_ports({'nobody': None}, {}, ())['nobody']}"
    back = CheckBack(lambda: Temporal.connect(nobody), CheckIntervals(first=0.0))
    await laboratory.rows("update saga_outbox set status = 'DROPPED' where status = 'HELD'")  # of other tests
    address = laboratory.current = new_address()
    assert (await laboratory.guard.do(address, "h", laboratory.body("applied"), **clock())).kind == "done"
    mine = "select event_id, status, checks, next_check_at, note from saga_outbox where saga_id = :s"
    for times in range(1, MAX_UNANSWERED + 1):
        assert await back.check("shop", laboratory.engine) == 1
        [row] = await laboratory.rows(mine, s=address.saga_id)
        assert (row.status, row.checks) == ("HELD", times)
        assert row.note.startswith("Temporal does not answer")
        assert await list_undecided(laboratory.engine) == [] or times == MAX_UNANSWERED
        await laboratory.rows("update saga_outbox set next_check_at = 0 where saga_id = :s", s=address.saga_id)
    [found] = await list_undecided(laboratory.engine)
    assert (found.saga_id, found.step, found.topic, found.key) == (address.saga_id, address.entry, "charged", "k")
    assert abs(found.since - time.time()) < 600
    said = await decide_event(laboratory.engine, found.event_id, "release", reason="it was charged", who="ada")
    assert said is not None
    [row] = await laboratory.rows(mine, s=address.saga_id)
    assert (row.status, row.note) == ("NEW", "release: ada: it was charged")
    with pytest.raises(RefusedError):
        await decide_event(laboratory.engine, found.event_id, "drop", reason="no", who="ada")


async def test_an_event_waits_for_its_turn(laboratory: Laboratory) -> None:
    async def nobody() -> Temporal:
        raise AssertionError("nothing is due, so nobody is asked")

    await laboratory.rows("update saga_outbox set status = 'DROPPED' where status = 'HELD'")
    address = laboratory.current = new_address()
    await laboratory.guard.do(address, "h", laboratory.body("applied"), **clock())
    assert await CheckBack(nobody).check("shop", laboratory.engine) == 0
