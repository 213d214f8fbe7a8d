"""Every concurrent pair of messages, in every state that up to two earlier messages leave.

Their outcomes, and the tables afterwards, must equal those of one of the two serial orders. The in-memory guard gives
the expected result; tests/unit/guard compares it with the model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations_with_replacement, product
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from saga_activities.connections import DatabaseConnections
from saga_activities.guard import result_codec
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.guard import Guard
from saga_activities.guard.rules import ScriptResult
from saga_activities.guard.script_transactions import GuardScript
from saga_activities.guard.tables import guard_table as rows
from saga_activities.guard.tables import outbox_table
from saga_activities.guard.transaction import GuardRow, GuardTransaction, RowOp
from sagas.protocol.outcomes import Outcome
from sagas.settings import SqlConnection
from tests.helpers.sampling import is_long
from tests.integration.guard.conftest import GuardDatabase, clock
from tests.unit.guard.memory_guard import TIMES, Memory, MemoryGuard, body, now
from tests.unit.guard.messages import MESSAGES
from tests.unit.guard.model import State

HOLD = {"postgres": 0.02, "mariadb": 0.02, "sqlite": 0.0}
"""Seconds that a transaction stays open, so that the other one comes as far or waits for it."""

PAIRS_AT_ONCE = {"postgres": 16, "mariadb": 16, "sqlite": 1}
"""SQLite has one writer: with more than two messages at once all but one would only wait."""

effects = sa.table("effects", *(sa.column(name) for name in ("saga_id", "step", "generation", "kind", "at_time")))

OutcomeSummary = tuple[Any, ...]
"""An outcome, as its caller sees it."""

StoredState = tuple[Mapping[RowOp, GuardRow], State]
"""The rows of an entry, and its effects."""


@dataclass(frozen=True, eq=False)
class Case:
    """Two messages after some others, and what may become of them: one result for each order."""

    saga_id: str
    before: tuple[str, ...]
    pair: tuple[str, str]
    serial: tuple[tuple[tuple[OutcomeSummary, ...], StoredState], ...]


def all_cases() -> Iterator[Case]:
    """All but the pairs of which neither does anything in that state: both only read what is there."""
    pairs = list(combinations_with_replacement(MESSAGES, 2))
    for before, memory in _states().items():
        idle = {name for name in MESSAGES if _is_idle(memory, name)}
        for pair in pairs:
            if idle.issuperset(pair):
                continue
            there, told_there = _after(memory, pair)
            back, told_back = _after(memory, pair[::-1])
            serial = ((told_there, _stored_state(there)), (told_back[::-1], _stored_state(back)))
            yield Case(f"pair-{uuid4()}", before, pair, serial)


def cases_of(kind: str) -> list[Case]:
    """In `make test` each pair meets another state, and the databases take turns."""
    if is_long():
        return list(all_cases())
    by_pair: dict[tuple[str, str], list[Case]] = {}
    for case in all_cases():
        by_pair.setdefault(case.pair, []).append(case)
    some = [cases[number % len(cases)] for number, cases in enumerate(by_pair.values())]
    return some[list(PAIRS_AT_ONCE).index(kind) :: len(PAIRS_AT_ONCE)]


@cache
def _states() -> Mapping[tuple[str, ...], Memory]:
    """States after up to two messages. Rows that differ in their results alone are the same to every message."""
    collected: dict[Any, tuple[tuple[str, ...], Memory]] = {}
    for length in range(3):
        for before in product(MESSAGES, repeat=length):
            memory, _ = _after(Memory({}, {}), before)
            rows = frozenset(
                (op, row.reason, row.args_hash is None, row.result is None, str(result_codec.decode_marker(row.result)))
                for (_, op), row in memory.rows.items()
            )
            collected.setdefault((rows, memory.state(1).event), (before, memory))
    return dict(collected.values())


def _is_idle(memory: Memory, message: str) -> bool:
    after, (reported,) = _after(memory, [message])
    return _stored_state(after) == _stored_state(memory) and reported[0] != "rejected"


def _after(memory: Memory, messages: Sequence[str]) -> tuple[Memory, tuple[OutcomeSummary, ...]]:
    guard = MemoryGuard(memory)

    async def send(name: str) -> Any:
        return await MESSAGES[name](guard, EntryKey("saga", "step"), body, TIMES)

    reported = tuple(_summarize(now(send(name))) for name in messages)
    return guard.memory, reported


def _summarize(outcome: Outcome | None) -> OutcomeSummary:
    if outcome is None:
        return ("open",)
    failure = outcome.failure.type if outcome.failure else None
    return (outcome.kind, outcome.marker, repr(outcome.result), failure, outcome.park_reason, outcome.retryable)


def _stored_state(memory: Memory) -> StoredState:
    return {op: row for (_, op), row in memory.rows.items()}, memory.state(1)


class Rendezvous:
    """A place where the two transactions of a case wait for each other before they end."""

    def __init__(self, hold: float) -> None:
        self._hold = hold
        self._missing = 2
        self._all_here = asyncio.Event()

    async def wait(self) -> None:
        """Until the other one is here, too, or has ended, or most probably waits for a lock of this one."""
        self.leave()
        try:
            async with asyncio.timeout(self._hold):
                await self._all_here.wait()
        except TimeoutError:
            return

    def leave(self) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self._all_here.set()


_rendezvous: ContextVar[Rendezvous] = ContextVar("_meeting")


class PausingGuard(Guard):
    """Holds each transaction open at its end: that is where the other message can do harm."""

    async def run(self, address: EntryKey, op: Any, script: GuardScript, *more: Any, **limits: Any) -> Outcome:
        async def held(tx: GuardTransaction) -> ScriptResult:
            try:
                return await script(tx)
            finally:
                await _rendezvous.get().wait()

        return await super().run(address, op, held, *more, **limits)


async def send(
    guard_database: GuardDatabase, guard: Guard, case: Case, name: str, rendezvous: Rendezvous
) -> OutcomeSummary:
    """The final outcome of the message: after an infrastructure failure it is sent again."""
    _rendezvous.set(rendezvous)
    address = EntryKey(case.saga_id, "step")

    def make_body(kind: str | None) -> Any:
        return guard_database.body(kind, address)

    outcome: Outcome | None = None
    for _ in range(20):
        outcome = await MESSAGES[name](guard, address, make_body, clock(60))
        if outcome is None or not outcome.infrastructure:
            rendezvous.leave()
            return _summarize(outcome)
        assert outcome.kind == "failed", outcome
    raise AssertionError(f"{name} of {case.pair} after {case.before} never got through: {outcome}")


@pytest.mark.sampled(keep=1)
async def test_every_concurrent_pair_is_serializable(guard_database: GuardDatabase) -> None:
    pairs_at_once = PAIRS_AT_ONCE[guard_database.kind]
    connections = DatabaseConnections(
        [SqlConnection(name="shop", url_setting=guard_database.url)], pool_size=2 * pairs_at_once
    )
    guard = PausingGuard("shop", connections.engine("shop"))
    cases = cases_of(guard_database.kind)
    await _prepare(guard_database, cases)
    places = asyncio.Semaphore(pairs_at_once)
    reported: dict[str, tuple[OutcomeSummary, ...]] = {}

    async def run(case: Case) -> None:
        async with places:
            rendezvous = Rendezvous(HOLD[guard_database.kind])
            both = [send(guard_database, guard, case, name, rendezvous) for name in case.pair]
            reported[case.saga_id] = tuple(await asyncio.gather(*both))

    async with asyncio.TaskGroup() as group:
        for case in cases:
            group.create_task(run(case))
    await connections.close()
    stored = await _read(guard_database)
    ended = {case: (reported[case.saga_id], stored.get(case.saga_id, ({}, State()))) for case in cases}
    wrong = [
        f"{case.pair} after {case.before}: {end}\n  is neither of {case.serial}"
        for case, end in ended.items()
        if end not in case.serial
    ]
    assert not wrong, f"{len(wrong)} of {len(cases)}, for instance\n" + "\n".join(wrong[:5])


async def _prepare(guard_database: GuardDatabase, cases: Sequence[Case]) -> None:
    """Send the messages before the pairs once for each state, and copy what they leave for every pair."""
    copies: dict[sa.FromClause, list[dict[str, Any]]] = {rows: [], effects: [], outbox_table: []}
    states = {case.before for case in cases}
    stored = {before: await _left_by(guard_database, before) for before in states}
    for case in cases:
        for table, stored_rows in stored[case.before].items():
            new = ({**row, "saga_id": case.saga_id} for row in stored_rows)
            copies[table] += ({**row, "event_id": str(uuid4())} for row in new) if table is outbox_table else new
    async with guard_database.engine.connect() as connection:
        await connection.exec_driver_sql("BEGIN")
        for table, copied in copies.items():
            await connection.execute(sa.insert(table), copied)  # pyright: ignore[reportArgumentType]
        await connection.exec_driver_sql("COMMIT")


async def _left_by(guard_database: GuardDatabase, messages: Sequence[str]) -> dict[sa.FromClause, list[dict[str, Any]]]:
    address = EntryKey(f"before-{uuid4()}", "step")
    for name in messages:
        await MESSAGES[name](guard_database.guard, address, lambda kind: guard_database.body(kind, address), clock())
    collected: dict[sa.FromClause, list[dict[str, Any]]] = {}
    async with guard_database.engine.connect() as connection:
        for table in (rows, effects, outbox_table):
            columns = [column for column in table.c if column.name != "id"]
            query = sa.select(*columns).where(table.c.saga_id == address.saga_id)
            collected[table] = [dict(row) for row in (await connection.execute(query)).mappings()]
    return {**collected}


async def _read(guard_database: GuardDatabase) -> dict[str, StoredState]:
    """Read the rows that each case has left, and delete the copies, so that other tests find small tables."""
    collected: dict[str, tuple[dict[RowOp, GuardRow], State]] = {}

    def of(row: Any) -> tuple[dict[RowOp, GuardRow], State]:
        return collected.setdefault(row["saga_id"], ({}, State()))

    async with guard_database.engine.connect() as connection:
        for table in (rows, effects, outbox_table):
            ours = table.c.saga_id.like("pair-%")
            for row in (await connection.execute(sa.select(table).where(ours))).mappings():
                there, state = of(row)
                if table is rows:
                    there[row["op"]] = GuardRow(row["reason"], row["args_hash"], row["result"])
                    if row["op"] in ("do", "confirm", "undo"):
                        state = replace(state, **{row["op"]: row["reason"]})
                elif table is effects:
                    state = replace(state, **{row["kind"]: getattr(state, row["kind"]) + 1})
                else:
                    state = replace(state, event=row["status"])
                collected[row["saga_id"]] = there, state
            await connection.execute(sa.delete(table).where(ours))
    return {**collected}
