"""The rows of the ledger on PostgreSQL, MariaDB and SQLite: later states win, hostile text, filters, retention."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from saga_activities.guard.schema import NewerTables, create_tables
from saga_activities.guard.stored_values import StoredValues, options_of
from saga_activities.ledger import audit, claims
from saga_activities.ledger.audit import DecodeAccess, StartAccess
from saga_activities.ledger.partitions import existing_months
from saga_activities.ledger.records import NewClaim, RunFilter, RunRecord
from saga_activities.ledger.retention import maintain
from saga_activities.ledger.rows import make_record
from saga_activities.ledger.schema import create_ledger, ledger_ddl
from saga_activities.ledger.tables import audit_table, definition_table, run_table
from saga_activities.value_cipher import ValueCipher
from saga_workers.ledger.run_ledger import LedgerUnavailable, RunLedger
from sagas.definition.saga_ids import UNPRINTABLE
from sagas.errors import RefusedError
from sagas.protocol.payloads import to_packed_text
from sagas.protocol.saga_view import SagaView
from sagas.settings.codec import CodecKey
from sagas.text.exact_json import decode_json, encode_json

NOW = datetime(2026, 5, 20, 10, 30, tzinfo=UTC)
HOSTILE = "a'; drop table saga_run; -- \\ \" %s :x ü 🦊 \x00 \ufffe \ufffe0000 \ud800 \u202e"


def record(
    saga_id: str = "s-1",
    state: str = "COMPLETED",
    *,
    started: datetime = NOW,
    later: float = 0.0,
    labels: dict[str, str] | None = None,
    saga: str = "checkout",
    machine: bytes | None = None,
    **fields: Any,
) -> RunRecord:
    """The row of a saga in this state, ``later`` seconds after its start."""
    at = started + timedelta(seconds=later)
    ended = None if state == "PARKED" else at.isoformat()
    view = SagaView(
        id=saga_id,
        saga=saga,
        state=state,  # pyright: ignore[reportArgumentType]
        started_at=started.isoformat(),
        ended_at=ended,
        can_undo=True,
        **fields,
    )
    row = make_record(
        view.to_json(), saga_id=saga_id, labels=labels, updated_at=at, input_digest="0" * 64, machine=machine
    )
    assert row is not None
    return row


async def test_a_state_that_cannot_be_decrypted_is_reported(ledger: RunLedger) -> None:
    values = StoredValues(ValueCipher([CodecKey("0123456789ab", b"k" * 32)]))
    with_key = RunLedger("shop", lambda: ledger.engine.execution_options(**options_of(values)))
    await with_key.write([replace(record(machine=b"state"), digest="d")])
    assert await with_key.machine("s-1") == to_packed_text(b"state")
    why = "a stored value of this saga is encrypted, and the project has no [codec] key"
    with pytest.raises(LedgerUnavailable) as missing:
        await ledger.machine("s-1")
    assert str(missing.value) == f"a state in the ledger in shop cannot be read: {why}"
    await claims.claim(ledger.engine, [], saga="s", bulk_id="bulk~1", at=NOW, definition={"digest": "d"})
    async with ledger.engine.begin() as connection:  # as bulk workflows write it: with the state alone
        await connection.execute(update(run_table).values(story="null"))
    row = await ledger.find("s-1")
    assert row is not None
    assert (row.view.state, row.view.incomplete) == ("COMPLETED", why)
    with pytest.raises(LedgerUnavailable):
        await ledger.forget(["s-1"], frozenset())  # which would lose the story
    async with ledger.engine.begin() as connection:
        await connection.execute(update(run_table).values(machine=b"saga:encrypted\0" + b"x" * 60))
    with pytest.raises(RefusedError, match="was changed in its database"):
        await with_key.machine("s-1")


async def state_of(ledger: RunLedger, saga_id: str = "s-1") -> str | None:
    row = await ledger.find(saga_id)
    return None if row is None else row.view.state


async def test_a_story_keeps_every_digit(ledger: RunLedger) -> None:
    text = '{"amount":12.50,"long":123456789012345678.123456789,"int":9007199254740993,"wide":18446744073709551617}'
    await ledger.write([record(input=decode_json(text))])
    row = await ledger.find("s-1")
    assert row is not None
    read = row.view.input
    assert encode_json({name: read[name] for name in ("amount", "long", "int", "wide")}).decode() == text


async def test_a_story_is_as_long_for_its_readers_as_it_was(ledger: RunLedger) -> None:
    await ledger.write([record(input=decode_json(f"[{','.join(['1e999', '-1e-999'] * 1_000)}]"))])
    row = await ledger.find("s-1")
    assert row is not None
    assert len(encode_json(row.view.input)) < 30_000


async def test_a_later_state_replaces_an_earlier_one_in_any_order(ledger: RunLedger) -> None:
    parked, completed, undone = record(state="PARKED", later=1), record(later=2), record(state="COMPENSATED", later=3)
    for order in ((parked, completed, undone), (undone, parked, completed), (completed, parked, undone)):
        for row in order:
            await ledger.write([row])
        assert await state_of(ledger) == "COMPENSATED"
    await ledger.write([replace(undone, state="RESIDUE")])
    assert await state_of(ledger) == "RESIDUE", "of the same time the last one counts"


async def test_an_undo_keeps_the_labels_and_takes_away_the_machine(ledger: RunLedger) -> None:
    await ledger.write([record(labels={"city": "Köln"}, machine=b"\x00\xff\x27")])
    assert await ledger.machine("s-1") is not None
    await ledger.write([record(state="COMPENSATED", later=1)])
    row = await ledger.find("s-1")
    assert row is not None
    assert (row.view.state, row.view.labels) == ("COMPENSATED", {"city": "Köln"})
    assert await ledger.machine("s-1") is None


async def test_hostile_text_is_stored_as_text(ledger: RunLedger) -> None:
    odd = record(
        UNPRINTABLE.sub("", HOSTILE).strip(),
        labels={HOSTILE: HOSTILE, "plain": "a%b"},
        input={HOSTILE: [HOSTILE, float("inf"), float("nan"), 10**400]},
        incomplete="{" * 1000,
    )
    others = [record(f"s-{number}", labels={"plain": "x"}) for number in range(3)]
    await ledger.write([odd, *others])
    row = await ledger.find(odd.saga_id)
    assert row is not None
    kept = HOSTILE.replace("\x00", "�").replace("\ud800", "�")
    assert row.view.labels == {kept: kept, "plain": "a%b"}
    assert row.view.input == {HOSTILE: [HOSTILE, "inf", "nan", 10**400]}
    assert json.loads(json.dumps(row.view.to_json()))["incomplete"] == "{" * 1000
    assert [row.view.id for row in await ledger.list(RunFilter(labels={"plain": "a%b"}), 10)] == [odd.saga_id]
    for name in ('x" or 1=1 --', "'", "$", "a.b", "x\\", kept):
        assert await ledger.list(RunFilter(labels={name: "y"}), 10) == []
    assert await ledger.find("' or '1'='1") is None


async def test_lists_are_filtered_and_continue_after_the_last_row(ledger: RunLedger) -> None:
    rows = [
        record(f"s-{number}", "COMPLETED" if number % 2 else "RESIDUE", started=NOW + timedelta(minutes=number // 2))
        for number in range(6)
    ]
    again = record("s-1", "COMPENSATED", started=NOW + timedelta(hours=1), saga="other")
    await ledger.write([*rows, again])

    async def listed(criteria: RunFilter, limit: int = 10) -> list[str]:
        return [row.view.id for row in await ledger.list(criteria, limit)]

    newest_first = await listed(RunFilter())
    assert newest_first == ["s-1", "s-5", "s-4", "s-3", "s-2", "s-0"]
    assert await listed(RunFilter(states=("COMPLETED",))) == ["s-5", "s-3"], "the earlier row of s-1 does not count"
    assert await listed(RunFilter(saga="other")) == ["s-1"]
    assert await listed(RunFilter(since=NOW + timedelta(minutes=2))) == ["s-1", "s-5", "s-4"]
    assert await listed(RunFilter(id_prefix="s-1")) == ["s-1"]
    for begin in ("S-1", "s_1", "s-1 ", "%", "s-11"):
        assert await listed(RunFilter(id_prefix=begin)) == [], begin
    first = await ledger.list(RunFilter(), 2)
    last = first[-1]
    assert await listed(RunFilter(before=(last.started_at, last.view.id))) == newest_first[2:]


async def test_old_sagas_are_deleted_and_parked_ones_are_kept(ledger: RunLedger) -> None:
    old, older = NOW - timedelta(days=20), NOW - timedelta(days=400)
    await ledger.write([record("new"), record("old", started=old), record("older", started=older)])
    await ledger.write([record("parked", "PARKED", started=older), record("long", started=older, later=395 * 86400.0)])
    done = await maintain(ledger.engine, now=NOW, before=NOW - timedelta(days=10))
    assert done.deleted == 2
    assert {row.view.id for row in await ledger.list(RunFilter(), 10)} == {"new", "parked", "long"}
    assert (await maintain(ledger.engine, now=NOW, before=NOW - timedelta(days=10))).deleted == 0


async def test_definitions_that_no_saga_needs_are_deleted(ledger: RunLedger) -> None:
    day = timedelta(days=1)

    async def use(digest: str, ago: timedelta) -> None:
        await claims.claim(
            ledger.engine, [], saga="s", bulk_id="bulk~1", at=NOW, definition={"digest": digest, "saga": "s"}
        )
        async with ledger.engine.begin() as connection:
            this = definition_table.c.digest == digest
            await connection.execute(update(definition_table).where(this).values(used_at=datetime.now(UTC) - ago))

    async def purge(retention: timedelta) -> set[str]:
        now = datetime.now(UTC)
        done = await maintain(ledger.engine, now=now, before=now - retention)
        async with ledger.engine.connect() as connection:
            remaining = set((await connection.execute(select(definition_table.c.digest))).scalars())
        assert done.definitions == before - len(remaining)
        return remaining

    now = datetime.now(UTC)
    await ledger.write([replace(record("s-1", started=now - 20 * day, later=19 * 86400.0), digest="has-a-row")])
    for digest, ago in (("has-a-row", 20 * day), ("unused", 20 * day), ("fresh", timedelta(hours=2)), ("again", day)):
        await use(digest, ago)
    before = 4
    assert await purge(10 * day) == {"has-a-row", "fresh", "again"}
    await claims.claim(ledger.engine, [], saga="s", bulk_id="bulk~2", at=NOW, definition={"digest": "again"})
    before = 3
    assert await purge(timedelta(0)) == {"fresh", "again"}, "the row is gone; both were used within a day"


async def test_no_bulk_workflow_claims_a_saga_whose_values_are_forgotten(ledger: RunLedger) -> None:
    await ledger.write([record("undone", "COMPENSATED"), record("forgotten", "COMPENSATED")])
    await ledger.begin_forgetting(["undone", "forgotten"], who="ada", reason=None)
    async with ledger.engine.begin() as connection:  # that of an earlier saga
        this = audit_table.c.saga_id == "undone"
        await connection.execute(update(audit_table).where(this).values(at=NOW - timedelta(days=1)))
    new = [NewClaim(id, "digest") for id in ("undone", "forgotten", "new")]
    result = await claims.claim(ledger.engine, new, saga="checkout", bulk_id="bulk~1", at=NOW, again=True)
    assert (set(result.earlier), set(result.ended), result.taken) == ({"undone"}, {"forgotten"}, {})
    assert set(await ledger.claims(["undone", "forgotten", "new"])) == {"undone", "new"}
    await ledger.complete_forgetting(["forgotten"])
    result = await claims.claim(ledger.engine, new, saga="checkout", bulk_id="bulk~1", at=NOW, again=True)
    assert set(result.earlier) == {"undone", "forgotten"}


async def test_repeated_starts_do_not_hide_other_accesses(ledger: RunLedger) -> None:
    await audit.record_starts(ledger.engine, [StartAccess("s-1", "shop", "started", age=9.0)])
    await ledger.record_access("s-1", "cancel", who="ada", reason=None)
    await audit.record_starts(ledger.engine, [StartAccess("s-1", "shop", "existing", age=0.0) for _ in range(200)])
    accesses = await ledger.accesses("s-1")
    assert [(each.what, each.outcome) for each in accesses] == [
        ("start", "started"),
        ("cancel", None),
        *[("start", "existing")] * 10,
    ]


async def test_decoded_values_of_a_minute_have_one_row(ledger: RunLedger) -> None:
    hour = timedelta(hours=1)
    assert await ledger.decoded(hour) == []
    access = DecodeAccess(HOSTILE, "default", payloads=3, age=50.0, row=None)
    row = await audit.record_decoding(ledger.engine, access)
    await audit.record_decoding(ledger.engine, replace(access, payloads=7, row=row))
    await audit.record_decoding(ledger.engine, DecodeAccess("old", "", payloads=1, age=4000.0, row=None))
    [decoded] = await ledger.decoded(hour)
    assert (decoded.payloads, decoded.who[:2]) == (7, HOSTILE[:2])
    assert timedelta(seconds=45) < datetime.now(UTC) - decoded.last < timedelta(minutes=5)
    assert [each.payloads for each in await ledger.decoded(2 * hour)] == [7, 1]


async def test_a_month_that_is_over_is_dropped_as_a_partition(ledger: RunLedger) -> None:
    if ledger.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has no partitions")
    async with ledger.engine.connect() as connection:
        first = (await existing_months(connection))[0]
    began = first.start + timedelta(days=1)
    await ledger.write([record("a", started=began), record("b", "PARKED", started=began)])
    much_later = first.start + timedelta(days=100)
    kept = await maintain(ledger.engine, now=much_later, before=much_later - timedelta(days=40))
    assert kept.dropped == (), "a parked saga holds its month"
    assert len(kept.created) >= 2, "the months to come"
    await ledger.write([record("b", "COMPLETED", started=began, later=1), record("c", started=much_later)])
    done = await maintain(ledger.engine, now=much_later, before=much_later - timedelta(days=40))
    assert len(done.dropped) == 1
    assert [row.view.id for row in await ledger.list(RunFilter(), 10)] == ["c"]
    async with ledger.engine.connect() as connection:
        assert first not in await existing_months(connection)


async def test_a_row_needs_no_partition_of_its_month(ledger: RunLedger) -> None:
    for years in (-3, 5):
        started = NOW.replace(year=NOW.year + years)
        await ledger.write([record(f"s{years}", started=started)])
        assert await state_of(ledger, f"s{years}") == "COMPLETED"
    # The partition of a month cannot be created any more when the default one has rows of it; nothing fails.
    await maintain(ledger.engine, now=NOW.replace(year=NOW.year + 5), before=NOW - timedelta(days=5000))
    assert await state_of(ledger, "s5") == "COMPLETED"


async def test_the_table_is_created_once_by_many(database: AsyncEngine) -> None:
    await create_tables(database)
    await asyncio.gather(*(create_ledger(database) for _ in range(3)))
    await create_ledger(database)
    await RunLedger("shop", lambda: database).write([record()])
    async with database.connect() as connection:
        await connection.execute(text("update saga_version set version = 99 where part = 'ledger'"))
        await connection.commit()
    with pytest.raises(NewerTables, match="version 99"):
        await create_ledger(database)


async def test_the_printed_sql_creates_the_same(database: AsyncEngine) -> None:
    await create_tables(database)
    async with database.connect() as connection:
        for _ in range(2):
            for statement in ledger_ddl(database.dialect.name).rstrip(";\n").split(";\n\n"):
                await connection.exec_driver_sql(statement)
        await connection.commit()
    await create_ledger(database)
    ledger = RunLedger("shop", lambda: database)
    await ledger.write([record()])
    assert await state_of(ledger) == "COMPLETED"


async def test_a_role_that_may_not_change_tables_deletes_rows_only(ledger: RunLedger) -> None:
    kind = ledger.engine.dialect.name
    if kind == "sqlite":
        pytest.skip("SQLite has no roles")
    if kind == "postgresql":
        grants = (
            "do $$ begin create role keeper login; exception when duplicate_object then null; end $$",
            "grant select, insert, update, delete on all tables in schema public to keeper",
        )
    else:
        grants = (
            "create user if not exists keeper@'%%'",
            f"grant select, insert, update, delete on {ledger.engine.url.database}.* to keeper@'%%'",
        )
    async with ledger.engine.begin() as connection:
        for statement in grants:
            await connection.exec_driver_sql(statement)
    await ledger.write([record("old", later=60)])
    keeper = create_async_engine(ledger.engine.url.set(username="keeper"))
    much_later = datetime.now(UTC) + timedelta(days=200)
    done = await maintain(keeper, now=much_later, before=much_later - timedelta(days=100))
    await keeper.dispose()
    assert (done.created, done.dropped, done.deleted) == ((), (), 1)
    assert done.refused is not None
    assert await ledger.list(RunFilter(), 10) == []


async def test_the_plan_of_a_list_begins_at_its_page_and_at_its_saga(ledger: RunLedger) -> None:
    """A list among millions of rows reads those that it shows."""
    if ledger.engine.dialect.name != "postgresql":
        pytest.skip("the plan of PostgreSQL is read")
    sent: list[tuple[str, Any]] = []

    @event.listens_for(ledger.engine.sync_engine, "before_cursor_execute")
    def note(*call: Any) -> None:
        sent.append((call[2], call[3]))

    await ledger.list(RunFilter(before=(NOW, "s")), 10)
    await ledger.list(RunFilter(saga="checkout"), 10)
    page, of_saga = [each for each in sent if "ORDER BY" in each[0]]
    async with ledger.engine.connect() as connection:
        await connection.exec_driver_sql("set enable_seqscan = off")
        await connection.exec_driver_sql("set enable_bitmapscan = off")
        plans = [
            "\n".join((await connection.exec_driver_sql(f"explain {sql}", values)).scalars())
            for sql, values in (page, of_saga)
        ]
        await connection.exec_driver_sql("reset enable_seqscan")
        await connection.exec_driver_sql("reset enable_bitmapscan")
    assert "Index Cond: (started_at <=" in plans[0]
    assert "Index Cond: (saga = " in plans[1]
