"""The claims of the ledger on PostgreSQL, MariaDB and SQLite: whose end deletes them, and who gets their labels."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from saga_activities.ledger import claims
from saga_activities.ledger.records import NewClaim, RunRecord
from saga_workers.ledger.run_ledger import RunLedger
from tests.integration.ledger.test_ledger_rows import NOW, record

DIGEST = record().input_digest or ""
OTHER_DIGEST = "1" * 64
LABELS = {"batch": "b-1"}


async def claim(ledger: RunLedger, bulk_id: str | None) -> None:
    """Claim the id `s-1` for a saga `checkout`. Without ``bulk_id`` it has left the bulk workflow `bulk~1`."""
    new = [NewClaim("s-1", DIGEST, LABELS)]
    await claims.claim(ledger.engine, new, saga="checkout", bulk_id="bulk~1", at=NOW)
    if bulk_id is None:
        await claims.hand_over(ledger.engine, ["s-1"], bulk_id="bulk~1")


@pytest.mark.parametrize("bulk_id", ["bulk~1", None], ids=["in bulk", "has left"])
async def test_only_the_end_of_its_own_saga_deletes_a_claim(ledger: RunLedger, bulk_id: str | None) -> None:
    await claim(ledger, bulk_id)
    strangers = [
        record(saga="other", later=1),
        replace(record(saga="other", started=NOW + timedelta(seconds=2)), input_digest=None),
        replace(record(started=NOW + timedelta(seconds=1)), input_digest=OTHER_DIGEST),
    ]
    for stranger in strangers:
        await ledger.write([stranger])
    assert (await ledger.claims(["s-1"]))["s-1"].bulk_id == bulk_id
    assert await claims.take(ledger.engine, "s-1", claimed_at=NOW, run_id="run")
    later = NOW + timedelta(seconds=3)
    await ledger.write([record(started=later), replace(strangers[0], started_at=later + timedelta(seconds=1))])
    assert await ledger.claims(["s-1"]) == {}, "a stranger ended in the same statement"


async def test_any_end_deletes_the_claim_of_a_single_start(ledger: RunLedger) -> None:
    """The start was refused, or another one has replaced it: the row keeps bulk workflows from the id."""
    claimed = await claims.claim_single(ledger.engine, NewClaim("s-1", DIGEST), saga="checkout")
    assert claimed.made_at is not None
    await ledger.write([record(saga="other", later=1)])
    assert await ledger.claims(["s-1"]) == {}


async def test_a_claim_that_a_run_has_taken_stays_its_own(ledger: RunLedger) -> None:
    """The start of the run is known before the bulk workflow hands the claim over."""
    await claim(ledger, "bulk~1")
    assert await claims.take(ledger.engine, "s-1", claimed_at=NOW, run_id="run")
    await claims.hand_over(ledger.engine, ["s-1"], bulk_id="bulk~1")
    assert not await claims.take(ledger.engine, "s-1", claimed_at=NOW, run_id="other")
    assert await claims.take(ledger.engine, "s-1", claimed_at=NOW, run_id="run")


async def test_an_end_without_a_digest_may_be_its_own(ledger: RunLedger) -> None:
    await claim(ledger, "bulk~1")
    await ledger.write([replace(record(later=1), input_digest=None)])
    assert await ledger.claims(["s-1"]) == {}


async def test_the_end_of_an_earlier_generation_leaves_the_claim_of_a_bulk_workflow(ledger: RunLedger) -> None:
    await claim(ledger, "bulk~1")
    await ledger.write([record(started=NOW - timedelta(hours=1))])
    assert set(await ledger.claims(["s-1"])) == {"s-1"}


async def test_a_stranger_does_not_get_the_labels_of_a_batch(ledger: RunLedger) -> None:
    await claim(ledger, "bulk~1")

    async def labels_of(row: RunRecord) -> dict[str, str]:
        await ledger.write([row])
        read = await ledger.find("s-1")
        assert read is not None
        return dict(read.view.labels)

    assert await labels_of(record(saga="other", later=1)) == {}
    assert await labels_of(replace(record(started=NOW + timedelta(seconds=1)), input_digest=OTHER_DIGEST)) == {}
    assert await ledger.count_batch("b-1") == {}
    assert await labels_of(record(started=NOW + timedelta(seconds=2))) == LABELS
    assert await ledger.count_batch("b-1") == {"COMPLETED": 1}
