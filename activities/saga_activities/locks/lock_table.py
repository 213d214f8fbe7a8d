"""Requests and releases of semantic locks, each in one transaction of the lock database.

Every transaction first updates the row of ``saga_lock_order``, so they come one after the other, on any database and
without a deadlock. Each takes a few milliseconds. Both may be repeated at any time, also after a lost COMMIT.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.rules import ScriptResult
from saga_activities.guard.script_transactions import ScriptTransactions
from saga_activities.guard.sql_session import Row, SqlSession
from saga_activities.guard.tables import now_sql
from saga_activities.guard.transaction import GuardTransaction
from saga_activities.locks.arrival_order import Blocker, HeldLock, LockRequest, blockers_of, grant_waiting
from saga_activities.locks.tables import lock_table, order_table, request_table, wait_table
from sagas.errors import InfrastructureError
from sagas.portions import in_portions
from sagas.protocol.origin import same_owner
from sagas.protocol.outcomes import Outcome
from sagas.text.exact_json import decode_json, encode_json

_ENTRY = "saga.locks"
"""Names the transactions in the guard; no guard row is written."""

MAX_SIGNALS = 100
"""Granted sagas that one release signals; the next release signals the others."""

_PORTION = 500

_MAX_BLOCKERS = 10
"""Blockers in an answer: more help nobody."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request: see :class:`sagas.protocol.messages.LocksAnswered`.

    ``waited`` is the time in seconds from the request to its grant; None if it was answered before.
    """

    answer: str
    blockers: tuple[Blocker, ...] = ()
    waited: float | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """A request that the release of another one has granted, and whose workflow does not know it yet."""

    holder: str
    owner: str
    workflow_id: str


class LockTable:
    """The locks of one database. All times are seconds since the epoch; outcomes: :class:`ScriptTransactions`."""

    def __init__(self, name: str, engine: AsyncEngine) -> None:
        self._transactions = ScriptTransactions(name, engine, isolation="READ COMMITTED")

    async def acquire(
        self,
        keys: Iterable[str],
        *,
        owner: str,
        holder: str,
        workflow_id: str,
        waits: bool,
        scheduled_at: float,
        deadline: float,
        start: str = "",
    ) -> Outcome:
        """Grant the keys, or take a place in the order of arrival. The result of the outcome is an :class:`Answer`.

        ``start``: what tells the owner from others with its id, see :func:`sagas.protocol.origin.start_of`.
        """
        request = _RequestedLocks(frozenset(keys), owner, start, holder, workflow_id, scheduled_at)

        async def script(tx: GuardTransaction) -> ScriptResult:
            await _open(tx)
            return await _acquire(tx.sql, request, waits=waits)

        return await self._transactions.run(EntryKey(owner, _ENTRY), "do", script, scheduled_at, deadline)

    async def release(
        self, *, owner: str, holder: str, scheduled_at: float, deadline: float, start: str = ""
    ) -> Outcome:
        """Release what the holder was granted and withdraw what it waits for; a later request of it is `late`.

        ``start``: as of :meth:`acquire`; what another saga has under its id stays. Empty: whatever it is.

        The result of the outcome is a list of :class:`Granted`, also of those that an earlier release has granted.
        """

        async def script(tx: GuardTransaction) -> ScriptResult:
            await _open(tx)
            return await _release(tx.sql, owner, start, holder, scheduled_at)

        return await self._transactions.run(EntryKey(owner, _ENTRY), "undo", script, scheduled_at, deadline)


async def _open(tx: GuardTransaction) -> None:
    await tx.rows()
    tx.sql.refusal = None  # the tables of the locks have no foreign keys


@dataclass(frozen=True, slots=True)
class _RequestedLocks:
    keys: frozenset[str]
    owner: str
    start: str
    holder: str
    workflow_id: str
    scheduled_at: float


async def _acquire(sql: SqlSession, request: _RequestedLocks, *, waits: bool) -> ScriptResult:
    position, now = await _take_turn(sql)
    row = await sql.one_or_none(sa.select(request_table).where(request_table.c.holder == request.holder))
    if row is not None and row["status"] == "closed":
        return _answered(Answer("late"), commit=False)
    if row is not None and not same_owner(row["saga_start"], request.start):
        since = float(row["requested_at"])
        return _answered(
            Answer("refused", tuple(Blocker(key, request.owner, since) for key in decode_json(row["lock_keys"]))),
            commit=False,
        )
    if row is not None and row["status"] == "held":
        return _answered(Answer("granted"), commit=False)
    if row is not None and row["status"] == "granted":
        await _set_status(sql, [request.holder], "held")
        return _answered(Answer("granted", waited=max(0.0, now - row["requested_at"])), commit=True)
    since = now
    if row is not None:
        position, since = row["position"], row["requested_at"]
    own = LockRequest(position, request.owner, request.keys, since)
    held = await _held(sql, request.keys)
    earlier = await _waiting_for(sql, request.keys)
    owner_holds = bool(await _holding(sql, [request.owner]))
    blockers = blockers_of(own, held, earlier, owner_holds=owner_holds)
    if blockers and not waits:
        return _answered(Answer("refused", tuple(blockers[:_MAX_BLOCKERS])), commit=False)
    if row is None:
        status = "waiting" if blockers else "held"
        await sql.execute(sa.insert(request_table), _request_row(request, position, status, now))
        if blockers:
            await _insert_waiting(sql, own)
    elif not blockers:
        await _set_status(sql, [request.holder], "held")
        await sql.execute(sa.delete(wait_table).where(wait_table.c.position == position))
    if blockers:
        return _answered(Answer("waiting", tuple(blockers[:_MAX_BLOCKERS])), commit=True)
    await _insert_locks(sql, request.keys - held.keys(), request.owner, request.holder, now)
    return _answered(Answer("granted", waited=max(0.0, now - since)), commit=True)


async def _release(sql: SqlSession, owner: str, start: str, holder: str, scheduled_at: float) -> ScriptResult:
    position, now = await _take_turn(sql)
    row = await sql.one_or_none(sa.select(request_table).where(request_table.c.holder == holder))
    freed: set[str] = set()
    if row is None:
        closed = _RequestedLocks(frozenset(), owner, start, holder, "", scheduled_at)
        await sql.execute(sa.insert(request_table), _request_row(closed, position, "closed", now))
    elif not same_owner(row["saga_start"], start):
        return ScriptResult(Outcome.done(await _not_signalled(sql), attempt=None), commit=True)
    elif row["status"] != "closed":
        await _set_status(sql, [holder], "closed")
        await sql.execute(sa.delete(wait_table).where(wait_table.c.position == row["position"]))
        freed.update(decode_json(row["lock_keys"]))
    freed |= await _free_or_pass_on(sql, owner, holder)
    if freed:
        await _grant_next(sql, freed, now)
    return ScriptResult(Outcome.done(await _not_signalled(sql), attempt=None), commit=True)


async def _free_or_pass_on(sql: SqlSession, owner: str, holder: str) -> set[str]:
    """Delete the locks of the holder. A key that was also granted to another request of the same owner goes to that."""
    rows = await sql.all(sa.select(lock_table.c.key).where(lock_table.c.holder == holder))
    held = {str(row["key"]) for row in rows}
    if not held:
        return held
    others = await sql.all(
        sa.select(request_table.c.holder, request_table.c.lock_keys)
        .where(request_table.c.saga_id == owner, request_table.c.status.in_(("granted", "held")))
        .where(request_table.c.holder != holder)
        .order_by(request_table.c.position)
    )
    for other in others:
        shared = held & set(decode_json(other["lock_keys"]))
        if shared:
            await sql.execute(
                sa.update(lock_table).where(lock_table.c.key.in_(sorted(shared))).values(holder=other["holder"])
            )
            held -= shared
    if held:
        await sql.execute(sa.delete(lock_table).where(lock_table.c.key.in_(sorted(held))))
    return held


async def _grant_next(sql: SqlSession, freed: set[str], now: float) -> None:
    """Grant the requests that waited for these keys and are first for all of theirs now."""
    candidates = await _waiting_for(sql, freed)
    if not candidates:
        return
    keys = frozenset().union(*(candidate.keys for candidate in candidates))
    waiting = candidates if keys <= freed else await _waiting_for(sql, keys)
    held = await _held(sql, keys)
    holding = await _holding(sql, {candidate.owner for candidate in candidates})
    for request in grant_waiting(candidates, held, waiting, holding):
        holder = await sql.scalar(
            sa.select(request_table.c.holder)
            .where(request_table.c.status == "waiting", request_table.c.position == request.position)
            .limit(1)
        )
        await sql.execute(sa.delete(wait_table).where(wait_table.c.position == request.position))
        if holder is None:
            continue  # its row was deleted by hand, so nobody would release what it is granted
        await _set_status(sql, [holder], "granted")
        taken = await _held(sql, request.keys)
        await _insert_locks(sql, request.keys - taken.keys(), request.owner, holder, now)


async def _take_turn(sql: SqlSession) -> tuple[int, float]:
    """Wait for the turn of this transaction; returns its place in the order and the time of the database."""
    turned = await sql.execute(sa.update(order_table).values(position=order_table.c.position + 1))
    if turned != 1:
        raise InfrastructureError("run `saga setup`: the row of saga_lock_order is missing")
    now = sa.literal_column(now_sql(sql.dialect)).label("now")
    row = await sql.one(sa.select(order_table.c.position, now))
    return int(row["position"]), float(row["now"])


def _request_row(request: _RequestedLocks, position: int, status: str, now: float) -> dict[str, Any]:
    return {
        "holder": request.holder,
        "saga_id": request.owner,
        "saga_start": request.start,
        "workflow_id": request.workflow_id,
        "status": status,
        "position": position,
        "lock_keys": encode_json(sorted(request.keys)).decode(),
        "requested_at": now,
        "created_at": request.scheduled_at,
    }


async def _set_status(sql: SqlSession, holders: Iterable[str], status: str) -> None:
    await sql.execute(sa.update(request_table).where(request_table.c.holder.in_(sorted(holders))).values(status=status))


async def _insert_waiting(sql: SqlSession, request: LockRequest) -> None:
    shared = {"position": request.position, "saga_id": request.owner, "since": request.since}
    await sql.execute(sa.insert(wait_table), [{"key": key, **shared} for key in sorted(request.keys)])


async def _insert_locks(sql: SqlSession, keys: Iterable[str], owner: str, holder: str, now: float) -> None:
    shared = {"saga_id": owner, "acquired_at": now, "holder": holder}
    if rows := [{"key": key, **shared} for key in sorted(keys)]:
        await sql.execute(sa.insert(lock_table), rows)


async def _held(sql: SqlSession, keys: Iterable[str]) -> dict[str, HeldLock]:
    held = {}
    for portion in in_portions(sorted(keys), _PORTION):
        for row in await sql.all(sa.select(lock_table).where(lock_table.c.key.in_(portion))):
            held[row["key"]] = HeldLock(row["saga_id"], row["acquired_at"])
    return held


async def _holding(sql: SqlSession, owners: Iterable[str]) -> set[str]:
    """Return those of the owners that hold a lock."""
    holding: set[str] = set()
    for portion in in_portions(sorted(owners), _PORTION):
        rows = await sql.all(sa.select(lock_table.c.saga_id).distinct().where(lock_table.c.saga_id.in_(portion)))
        holding.update(row["saga_id"] for row in rows)
    return holding


async def _waiting_for(sql: SqlSession, keys: Iterable[str]) -> list[LockRequest]:
    """The requests that wait for one of these keys, each with all of its keys."""
    rows: list[Row] = []
    for portion in in_portions(sorted(keys), _PORTION):
        positions = sa.select(wait_table.c.position).where(wait_table.c.key.in_(portion))
        rows += await sql.all(sa.select(wait_table).where(wait_table.c.position.in_(positions)))
    return requests_of(rows)


def requests_of(rows: Iterable[Row | Mapping[str, Any]]) -> list[LockRequest]:
    """The requests with these rows of ``saga_lock_wait``, in their order of arrival."""
    keys: dict[int, set[str]] = {}
    holders: dict[int, tuple[str, float]] = {}
    for row in rows:
        keys.setdefault(row["position"], set()).add(row["key"])
        holders[row["position"]] = row["saga_id"], row["since"]
    return [
        LockRequest(position, holders[position][0], frozenset(keys[position]), holders[position][1])
        for position in sorted(holders)
    ]


async def _not_signalled(sql: SqlSession) -> list[Granted]:
    rows = await sql.all(
        sa.select(request_table)
        .where(request_table.c.status == "granted")
        .order_by(request_table.c.position)
        .limit(MAX_SIGNALS)
    )
    return [Granted(row["holder"], row["saga_id"], row["workflow_id"]) for row in rows]


def _answered(answer: Answer, *, commit: bool) -> ScriptResult:
    return ScriptResult(Outcome.done(answer, attempt=None), commit=commit)
